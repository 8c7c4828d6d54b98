#include "pkv-states.h"

#include "pkv-tensor.h"

#include "llama-memory-recurrent.h"

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

template <typename F>
static void for_each_free_row(const llama_memory_recurrent & rs, F f) {
    const auto rows = free_rows(rs);

    for (const auto * tensors : { &rs.r_l, &rs.s_l, &rs.p_l }) {
        for (ggml_tensor * t : *tensors) {
            if (!t || t->nb[1] == 0) {
                continue;
            }
            for (const uint32_t row : rows) {
                f(t, pkv_block { row*t->nb[1], t->nb[1] });
            }
        }
    }
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
