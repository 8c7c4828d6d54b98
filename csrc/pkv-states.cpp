#include "pkv-states.h"

#include "pkv-tensor.h"

#include "ggml-backend.h"

#include "llama-batch.h"
#include "llama-memory-recurrent.h"

#include <algorithm>

// rows that nobody owns and nobody is about to read
static std::vector<uint32_t> free_rows(const llama_memory_recurrent & rs) {
    std::vector<bool> used(rs.size, false);
    for (uint32_t i = 0; i < rs.size; ++i) {
        const auto & cell = rs.cells[i];
        if (cell.is_empty()) {
            continue;
        }
        used[i] = true;
        // a state that was shared and is about to part still lies in the row of its source
        if (cell.src >= 0) {
            used[cell.src] = true;
        }
    }

    std::vector<uint32_t> res;
    for (uint32_t plane = 0; plane <= rs.n_rs_seq; ++plane) {
        for (uint32_t i = 0; i < rs.size; ++i) {
            if (!used[i]) {
                res.push_back(plane*rs.size + i);
            }
        }
    }

    return res;
}

std::vector<ggml_tensor *> pkv_state_tensors(const llama_memory_recurrent & rs) {
    std::vector<ggml_tensor *> res;
    for (const auto * tensors : { &rs.r_l, &rs.s_l, &rs.p_l }) {
        std::copy_if(tensors->begin(), tensors->end(), std::back_inserter(res),
                [](const ggml_tensor * t) { return t && t->nb[1] > 0; });
    }

    return res;
}

static pkv_block row_block(const ggml_tensor * t, uint32_t row) {
    return { row*t->nb[1], t->nb[1] };
}

template <typename F>
static void for_each_free_row(const llama_memory_recurrent & rs, F f) {
    const auto rows = free_rows(rs);

    for (ggml_tensor * t : pkv_state_tensors(rs)) {
        for (const uint32_t row : rows) {
            f(t, row_block(t, row));
        }
    }
}

bool pkv_shares_state(const llama_memory_recurrent & rs, llama_seq_id seq) {
    const int32_t tail = rs.cells[seq].tail;

    return tail >= 0 && rs.cells[tail].seq_id.size() > 1;
}

void pkv_own_state(llama_memory_recurrent & rs, llama_seq_id seq) {
    if (!pkv_shares_state(rs, seq)) {
        return;
    }
    const int32_t tail = rs.cells[seq].tail;

    // there are as many cells as sequences, and two of them share one
    const auto it = std::find_if(rs.cells.begin(), rs.cells.end(), [](const auto & c) { return c.is_empty(); });
    GGML_ASSERT(it != rs.cells.end());

    const uint32_t row = it - rs.cells.begin();

    for (ggml_tensor * t : pkv_state_tensors(rs)) {
        for (uint32_t plane = 0; plane <= rs.n_rs_seq; ++plane) {
            pkv_copy_block(t, row_block(t, plane*rs.size + tail), t, row_block(t, plane*rs.size + row));
        }
    }

    it->pos    = rs.cells[tail].pos;
    it->src    = row;
    it->seq_id = { seq };

    rs.cells[tail].seq_id.erase(seq);
    rs.cells[seq].tail = row;
    rs.used++;
}

using state_cell = llama_memory_recurrent::mem_cell;

// a state that starts from zero is the only one that refers to rs_z
static bool is_fresh(const llama_memory_recurrent & rs, const state_cell & cell) {
    return cell.is_empty() || cell.src0 == rs.rs_z;
}

static uint32_t plane_of(const llama_memory_recurrent & rs, const state_cell & cell) {
    return rs.n_rs_seq == 0 ? 0 : rs.rs_idx[*cell.seq_id.begin()];
}

bool pkv_pushes_states(const llama_memory_recurrent & rs, const llama_ubatch & ubatch) {
    for (uint32_t i = rs.head + ubatch.n_seqs; i < rs.head + rs.n; ++i) {
        const auto & cell = rs.cells[i];
        if (!is_fresh(rs, cell) && (cell.src0 != (int32_t) i || plane_of(rs, cell) != 0)) {
            return true;
        }
    }

    return false;
}

void pkv_move_states(llama_memory_recurrent & rs) {
    for (ggml_tensor * t : pkv_state_tensors(rs)) {
        std::vector<std::vector<uint8_t>> rows(rs.n);
        for (uint32_t i = 0; i < rs.n; ++i) {
            const auto & cell = rs.cells[rs.head + i];
            if (!is_fresh(rs, cell)) {
                const pkv_block from = row_block(t, plane_of(rs, cell)*rs.size + cell.src0);
                rows[i].resize(from.size);
                ggml_backend_tensor_get(t, rows[i].data(), from.offset, from.size);
            }
        }
        for (uint32_t i = 0; i < rs.n; ++i) {
            const pkv_block to = row_block(t, rs.head + i);
            if (!rows[i].empty()) {
                ggml_backend_tensor_set(t, rows[i].data(), to.offset, to.size);
            }
        }
    }

    // what the graph zeroes first has to be a row that none of them lies in now
    std::vector<uint32_t> fresh;
    for (uint32_t i = rs.head; i < rs.head + rs.n; ++i) {
        auto & cell = rs.cells[i];
        if (is_fresh(rs, cell)) {
            fresh.push_back(i);
            continue;
        }
        cell.src0 = i;
        if (rs.n_rs_seq > 0) {
            for (const llama_seq_id seq : cell.seq_id) {
                rs.rs_idx[seq] = 0;
            }
        }
    }
    for (const uint32_t i : fresh) {
        rs.cells[i].src0 = fresh.front();
    }
    rs.rs_z = fresh.empty() ? -1 : (int32_t) fresh.front();
}

size_t pkv_scrub_states(llama_memory_recurrent & rs) {
    size_t res = 0;
    for_each_free_row(rs, [&](ggml_tensor * t, const pkv_block & b) {
        pkv_zero_block(t, b);
        res += b.size;
    });

    return res;
}

size_t pkv_residue_states(const llama_memory_recurrent & rs) {
    size_t res = 0;
    for_each_free_row(rs, [&](ggml_tensor * t, const pkv_block & b) {
        res += pkv_count_nonzero(t, b);
    });

    return res;
}
