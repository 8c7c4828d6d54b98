#include "pkv-cells.h"

#include "pkv-access.h"
#include "pkv-shards.h"
#include "pkv-tensor.h"

#include <algorithm>
#include <limits>

// a run of cells [begin, begin + n)
struct cell_run {
    uint32_t begin;
    uint32_t n;
};

static void append_run(std::vector<cell_run> & runs, uint32_t i) {
    if (!runs.empty() && runs.back().begin + runs.back().n == i) {
        runs.back().n++;
    } else {
        runs.push_back({ i, 1 });
    }
}

// K, and V as flash attention wants it: one row a cell.
static pkv_block block_rows(const ggml_tensor * t, const cell_run & run) {
    return { run.begin * t->nb[1], run.n * t->nb[1] };
}

// V without flash attention is stored transposed: one element a cell in each of n_embd rows of n_cells elements.
static pkv_block block_columns(const ggml_tensor * t, const cell_run & run) {
    const size_t size_el = ggml_type_size(t->type);

    return { run.begin * size_el, run.n * size_el, (size_t) t->ne[0], (size_t) t->ne[1] * size_el };
}

template <typename F>
static void for_each_block(llama_kv_cache & kv, uint32_t strm, const cell_run & run, F f) {
    for (const auto & layer : pkv_access::layers(kv)) {
        if (ggml_tensor * k = layer.k_stream[strm]) {
            f(k, block_rows(k, run));
        }
        if (ggml_tensor * v = layer.v_stream[strm]) {
            f(v, pkv_access::v_trans(kv) ? block_columns(v, run) : block_rows(v, run));
        }
    }
}

//
// copies
//

bool pkv_crosses_streams(llama_kv_cache & kv, llama_seq_id src, llama_seq_id dst) {
    const auto & strm = pkv_access::seq_to_stream(kv);

    return !pkv_access::borrowed(kv) && strm[src] != strm[dst];
}

static std::vector<uint32_t> cells_in(const llama_kv_cells & cells, llama_seq_id seq, llama_pos p0, llama_pos p1) {
    const auto & set = cells.seq_pos_get(seq);

    std::vector<uint32_t> res;
    for (auto it = set.lower_bound({ p0, 0 }); it != set.end() && it->first < p1; ++it) {
        res.push_back(it->second);
    }
    std::sort(res.begin(), res.end());

    return res;
}

static bool covers(const llama_kv_cells & cells, llama_seq_id seq, llama_pos p0, llama_pos p1) {
    return p0 <= std::max(0, cells.seq_pos_min(seq)) && p1 > cells.seq_pos_max(seq);
}

uint32_t pkv_copy_need(llama_kv_cache & kv, llama_seq_id src, llama_seq_id dst, llama_pos p0, llama_pos p1) {
    if (!pkv_crosses_streams(kv, src, dst)) {
        return 0;
    }
    pkv_close_range(p0, p1);

    return cells_in(kv.get_cells(src), src, p0, p1).size();
}

uint32_t pkv_copy_room(llama_kv_cache & kv, llama_seq_id src, llama_seq_id dst, llama_pos p0, llama_pos p1) {
    if (!pkv_crosses_streams(kv, src, dst)) {
        return 0;
    }
    pkv_close_range(p0, p1);

    const auto & to = kv.get_cells(dst);
    const bool whole = covers(kv.get_cells(src), src, p0, p1);

    return pkv_free_cells(kv, dst) + (whole ? to.get_used() : (uint32_t) cells_in(to, dst, p0, p1).size());
}

// Where the copied cells go: at the same indices if those are free, which keeps the layout that upstream gives a whole copy;
// else one run that holds them all; else wherever there is room.
static std::vector<uint32_t> place(const llama_kv_cells & cells, const std::vector<uint32_t> & from) {
    if (std::all_of(from.begin(), from.end(), [&](uint32_t i) { return cells.is_empty(i); })) {
        return from;
    }

    std::vector<uint32_t> res;
    for (const uint32_t n_want : { (uint32_t) from.size(), 1u }) {
        std::vector<uint32_t> run;
        res.clear();
        for (uint32_t i = 0; i < cells.size() && res.size() < from.size(); ++i) {
            if (!cells.is_empty(i)) {
                run.clear();
                continue;
            }
            run.push_back(i);
            if (run.size() == n_want) {
                res.insert(res.end(), run.begin(), run.end());
                run.clear();
            }
        }
        if (res.size() == from.size()) {
            break;
        }
    }

    return res;
}

static void copy_cell(const llama_kv_cells & from, uint32_t i, llama_kv_cells & to, uint32_t j, llama_seq_id seq) {
    // a shift that is still to be applied to the source's key has to be applied to the copy too
    const llama_pos shift = from.get_shift(i);

    to.pos_set(j, from.pos_get(i) - shift);
    to.seq_add(j, seq);
    if (shift != 0) {
        to.pos_add(j, shift);
    }
    to.ext_set(j, from.ext_get(i));
}

bool pkv_copy_cells(llama_kv_cache & kv, llama_seq_id src, llama_seq_id dst, llama_pos p0, llama_pos p1) {
    pkv_close_range(p0, p1);

    if (pkv_copy_need(kv, src, dst, p0, p1) > pkv_copy_room(kv, src, dst, p0, p1)) {
        return false;
    }

    const auto & strm = pkv_access::seq_to_stream(kv);

    const auto & from = pkv_access::cells(kv)[strm[src]];
    auto &       to   = pkv_access::cells(kv)[strm[dst]];

    const bool whole = covers(from, src, p0, p1);

    // outside unified mode a stream belongs to one sequence, so nobody else's cells are in the way
    for (const uint32_t i : whole ? cells_in(to, dst, 0, std::numeric_limits<llama_pos>::max()) : cells_in(to, dst, p0, p1)) {
        to.rm(i);
    }

    const auto idx_src = cells_in(from, src, p0, p1);
    const auto idx_dst = place(to, idx_src);

    llama_kv_cache::pkv_copy copy = { strm[src], strm[dst], {} };

    for (size_t k = 0; k < idx_src.size(); ++k) {
        copy_cell(from, idx_src[k], to, idx_dst[k], dst);
        copy.cells.emplace_back(idx_src[k], idx_dst[k]);
    }

    pkv_access::heads(kv)[strm[dst]] = whole ? pkv_access::heads(kv)[strm[src]] : 0;
    pkv_access::copies(kv).push_back(std::move(copy));

    return true;
}

std::vector<uint32_t> pkv_shared_cells(llama_kv_cache & kv, llama_seq_id seq, llama_pos p0, llama_pos p1) {
    if (pkv_access::borrowed(kv)) {
        return {};
    }

    const auto & cells = kv.get_cells(seq);

    auto res = cells_in(cells, seq, p0, p1);
    res.erase(std::remove_if(res.begin(), res.end(), [&](uint32_t i) { return cells.seq_count(i) == 1; }), res.end());

    return res;
}

uint32_t pkv_free_cells(llama_kv_cache & kv, llama_seq_id seq) {
    const auto & cells = kv.get_cells(seq);

    return cells.size() - cells.get_used();
}

void pkv_part_cells(llama_kv_cache & kv, llama_seq_id seq, llama_pos p0, llama_pos p1) {
    const auto shared = pkv_shared_cells(kv, seq, p0, p1);
    if (shared.empty()) {
        return;
    }

    const uint32_t strm = pkv_access::seq_to_stream(kv)[seq];

    auto & cells = pkv_access::cells(kv)[strm];

    llama_kv_cache::pkv_copy copy = { strm, strm, {} };

    const auto own = place(cells, shared);
    for (size_t k = 0; k < shared.size(); ++k) {
        copy_cell(cells, shared[k], cells, own[k], seq);
        cells.seq_rm(shared[k], seq);
        copy.cells.emplace_back(shared[k], own[k]);
    }

    pkv_access::heads(kv)[strm] = 0;
    pkv_access::copies(kv).push_back(std::move(copy));
}

bool pkv_has_copies(llama_kv_cache & kv) {
    return !pkv_access::copies(kv).empty();
}

void pkv_run_copies(llama_kv_cache & kv) {
    for (const auto & copy : pkv_access::copies(kv)) {
        // cells that are neighbours on both sides move together
        for (size_t a = 0; a < copy.cells.size(); ) {
            size_t b = a + 1;
            while (b < copy.cells.size() &&
                    copy.cells[b].first  == copy.cells[b - 1].first  + 1 &&
                    copy.cells[b].second == copy.cells[b - 1].second + 1) {
                ++b;
            }

            const cell_run from = { copy.cells[a].first,  (uint32_t) (b - a) };
            const cell_run to   = { copy.cells[a].second, (uint32_t) (b - a) };

            for (const auto & layer : pkv_access::layers(kv)) {
                if (ggml_tensor * k = layer.k_stream[copy.ssrc]) {
                    pkv_copy_block(k, block_rows(k, from), layer.k_stream[copy.sdst], block_rows(k, to));
                }
                if (ggml_tensor * v = layer.v_stream[copy.ssrc]) {
                    const auto block = pkv_access::v_trans(kv) ? block_columns : block_rows;
                    pkv_copy_block(v, block(v, from), layer.v_stream[copy.sdst], block(v, to));
                }
            }

            a = b;
        }
    }

    pkv_access::copies(kv).clear();
}

//
// free cells
//

static std::vector<cell_run> free_runs(llama_kv_cells & cells, bool all) {
    std::vector<cell_run> runs;
    for (uint32_t i = 0; i < cells.size(); ++i) {
        if (cells.is_empty(i) && (all || cells.is_stale(i))) {
            append_run(runs, i);
        }
    }

    return runs;
}

size_t pkv_scrub_cells(llama_kv_cache & kv, bool all) {
    if (pkv_access::borrowed(kv)) {
        return 0;
    }

    size_t res = 0;

    auto & streams = pkv_access::cells(kv);
    for (uint32_t s = 0; s < streams.size(); ++s) {
        for (const auto & run : free_runs(streams[s], all)) {
            for_each_block(kv, s, run, [&](ggml_tensor * t, const pkv_block & b) {
                pkv_zero_block(t, b);
                res += b.size * b.n_rows;
            });
        }
        streams[s].reset_stale();
    }

    return res;
}

size_t pkv_residue_cells(llama_kv_cache & kv) {
    if (pkv_access::borrowed(kv)) {
        return 0;
    }

    size_t res = 0;

    auto & streams = pkv_access::cells(kv);
    for (uint32_t s = 0; s < streams.size(); ++s) {
        for (const auto & run : free_runs(streams[s], true)) {
            for_each_block(kv, s, run, [&](ggml_tensor * t, const pkv_block & b) {
                res += pkv_count_nonzero(t, b);
            });
        }
    }

    return res;
}
