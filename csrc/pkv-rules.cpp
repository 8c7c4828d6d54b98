#include "pkv-rules.h"

#include "pkv-access.h"
#include "pkv-cells.h"
#include "pkv-reason.h"
#include "pkv-shards.h"

#include "llama-kv-cache-dsv4.h"
#include "llama-memory-recurrent.h"
#include "llama-cparams.h"
#include "llama-model.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <set>

static const llama_pos POS_END = std::numeric_limits<llama_pos>::max();

static bool is_whole(llama_pos p0, llama_pos p1, llama_pos pos_min, llama_pos pos_max) {
    return p0 <= pos_min && p1 > pos_max;
}

bool pkv_has_seq(llama_memory_i & mem, llama_seq_id seq, bool all) {
    if (all && seq == -1) {
        return true;
    }

    const uint32_t n_seq = pkv_shards(mem).n_seq();
    if (seq < 0 || (uint32_t) seq >= n_seq) {
        return pkv_refuse("sequence id %d is out of range, this memory holds ids 0 to %u (n_seq_max)", seq, n_seq - 1);
    }

    return true;
}

//
// windows
//

using has_pos_fn = std::function<bool(llama_pos)>;

// Does every position that the token after `last` attends to exist in the window, as far as it exists at all?
static bool window_complete(
        const pkv_window & win,
               llama_pos   last,
        const has_pos_fn & in_full,
        const has_pos_fn & in_swa,
               llama_pos * missing) {
    const uint32_t       n_swa = pkv_access::n_swa(*win.swa);
    const llama_swa_type type  = pkv_access::swa_type(*win.swa);

    // walking back from the end stops at the first masked position: all window types are intervals
    for (llama_pos p = last; p >= 0 && !llama_hparams::is_masked_swa(n_swa, type, p, last + 1); --p) {
        if (in_full(p) && !in_swa(p)) {
            *missing = p;
            return false;
        }
    }

    return true;
}

// the largest position of seq below p, or -1
static llama_pos pos_below(llama_kv_cache & kv, llama_seq_id seq, llama_pos p) {
    const auto & set = kv.get_cells(seq).seq_pos_get(seq);
    const auto it = set.lower_bound({ p, 0 });

    return it == set.begin() ? -1 : std::prev(it)->first;
}

// the smallest position of seq from p on, or POS_END
static llama_pos pos_from(llama_kv_cache & kv, llama_seq_id seq, llama_pos p) {
    const auto & set = kv.get_cells(seq).seq_pos_get(seq);
    const auto it = set.lower_bound({ p, 0 });

    return it == set.end() ? POS_END : it->first;
}

static bool has_pos(llama_kv_cache & kv, llama_seq_id seq, llama_pos p) {
    const auto & set = kv.get_cells(seq).seq_pos_get(seq);
    const auto it = set.lower_bound({ p, 0 });

    return it != set.end() && it->first == p;
}

static bool may_remove_window(const pkv_window & win, llama_seq_id seq, llama_pos p0, llama_pos p1) {
    // what remains ends either above the range or just below it
    llama_pos last = win.full->seq_pos_max(seq);
    if (last < p1) {
        last = std::min(last, pos_below(*win.full, seq, p0));
    }
    if (last < 0) {
        return true; // nothing remains, nothing is missing
    }

    const auto removed = [&](llama_pos p) { return p >= p0 && p < p1; };

    llama_pos missing;
    if (!window_complete(win, last,
                [&](llama_pos p) { return !removed(p) && has_pos(*win.full, seq, p); },
                [&](llama_pos p) { return !removed(p) && has_pos(*win.swa,  seq, p); }, &missing)) {
        return pkv_refuse("removing positions [%d, %d) of sequence %d would leave a hole: the next token, at %d, attends to "
                "position %d, which the sliding window of %u has already dropped; restore a checkpoint, decode again from an "
                "earlier point, or use swa_full", p0, p1 == POS_END ? -1 : p1, seq, last + 1, missing,
                pkv_access::n_swa(*win.swa));
    }

    return true;
}

//
// recurrent states
//

static bool may_roll_back(const pkv_planes & planes, llama_seq_id seq, uint32_t idx, uint32_t n_rs_seq, llama_pos n_back) {
    const llama_pos depth = planes.depth(seq, idx);
    if (n_back > depth) {
        return pkv_refuse("the state of sequence %d cannot go back %d positions: its last ubatch left snapshots of %d (n_rs_seq "
                "= %u)", seq, n_back, depth, n_rs_seq);
    }

    return true;
}

// A state is one point in time: it can be dropped, or rolled back as far as snapshots reach, but not cut.
// mirrors llama_memory_recurrent::seq_rm
static bool may_remove_state(const llama_memory_recurrent & rs, llama_seq_id seq, llama_pos p0, llama_pos p1) {
    const llama_pos last = rs.seq_pos_max(seq);
    if (last < 0 || p0 > last || p0 >= p1 || is_whole(p0, p1, 0, last)) {
        return true;
    }

    if (p1 <= last) {
        return pkv_refuse("positions [%d, %d) of sequence %d cannot be removed: its recurrent state at %d has already taken them "
                "in; remove everything and decode again, or restore a checkpoint", p0, p1, seq, last);
    }

    return may_roll_back(rs.planes, seq, rs.rs_idx[seq], rs.n_rs_seq, last - (p0 - 1));
}

// The compressed rows of DeepSeek V4 are made of what is removed.
// mirrors llama_kv_cache_dsv4::seq_rm
static bool may_remove_rows(const llama_kv_cache_dsv4 & kv, llama_seq_id seq, llama_pos p0, llama_pos p1) {
    const llama_pos last = kv.seq_pos_max(seq);
    if (last < 0 || p0 > last || p0 >= p1 || is_whole(p0, p1, 0, last)) {
        return true;
    }

    if (p1 <= last) {
        return pkv_refuse("positions [%d, %d) of sequence %d cannot be removed: its compressed rows have already taken them in",
                p0, p1, seq);
    }

    return may_roll_back(kv.planes, seq, kv.get_rs_idx()[seq], kv.get_n_rs_seq(), last - (p0 - 1));
}

//
// rules
//

bool pkv_may_move(llama_memory_i & mem, llama_seq_id seq, llama_pos p0, llama_pos p1, const pkv_move & move, bool strict) {
    if (move.div < 1) {
        return pkv_refuse("positions cannot be divided by %d", move.div);
    }
    pkv_close_range(p0, p1);

    pkv_shards shards(mem);

    if (shards.dsv4 || std::any_of(shards.kv.begin(), shards.kv.end(), [](auto * kv) { return !kv->get_can_shift(); })) {
        return pkv_refuse("the positions of this memory cannot be moved: they have several dimensions, a RoPE of their own in each "
                "layer, or compressed rows");
    }

    // cells below zero are dropped, which a state cannot follow
    if (shards.rs && shards.rs->seq_pos_max(seq) >= p0) {
        const llama_pos last  = shards.rs->seq_pos_max(seq);
        const llama_pos first = !shards.kv.empty() ? pos_from(*shards.kv[0], seq, p0) : strict ? p0 : last;
        if (first < p1 && first + move.add < 0) {
            return pkv_refuse("moving positions [%d, %d) of sequence %d by %d would drop those below zero, and its recurrent state "
                    "has already taken them in", p0, p1 == POS_END ? -1 : p1, seq, move.add);
        }
    }

    for (auto * kv : shards.kv) {
        const uint32_t n_need = pkv_shared_cells(*kv, seq, p0, p1).size();
        const uint32_t n_free = pkv_free_cells(*kv, seq);
        if (n_need > n_free) {
            return pkv_refuse("positions [%d, %d) of sequence %d cannot be moved: %u of their cells belong to other sequences too "
                    "and need a copy, %u cells are free", p0, p1 == POS_END ? -1 : p1, seq, n_need, n_free);
        }
    }

    const auto inside = [&](llama_pos p) { return p >= p0 && p < p1; };

    if (shards.by_pos) {
        std::set<llama_pos> taken;
        for (const auto & [p, i] : shards.kv[0]->get_cells(seq).seq_pos_get(seq)) {
            if (!taken.insert(inside(p) ? move.to(p) : p).second) {
                return pkv_refuse("moving positions [%d, %d) of sequence %d would put two tokens on position %d, and the indexer "
                        "of this memory finds cells by their position", p0, p1 == POS_END ? -1 : p1, seq,
                        inside(p) ? move.to(p) : p);
            }
        }
    }

    for (const auto & win : shards.windows) {
        // the last position that there will be
        const llama_pos last_in  = std::min(win.full->seq_pos_max(seq), pos_below(*win.full, seq, p1));
        const llama_pos last_out = win.full->seq_pos_max(seq) >= p1 ? win.full->seq_pos_max(seq) : pos_below(*win.full, seq, p0);
        const llama_pos last     = std::max(last_out, inside(last_in) ? move.to(last_in) : -1);

        // is there a position that becomes q?
        const auto has = [&](llama_kv_cache & kv, llama_pos q) {
            if (!inside(q) && has_pos(kv, seq, q)) {
                return true;
            }
            for (llama_pos p = move.first(q); p <= move.last(q); ++p) {
                if (inside(p) && has_pos(kv, seq, p)) {
                    return true;
                }
            }
            return false;
        };

        llama_pos missing;
        if (last >= 0 && !window_complete(win, last,
                    [&](llama_pos q) { return has(*win.full, q); },
                    [&](llama_pos q) { return has(*win.swa,  q); }, &missing)) {
            return pkv_refuse("moving positions [%d, %d) of sequence %d would leave a hole: the next token attends to what would be "
                    "position %d, which the sliding window has already dropped; use swa_full", p0, p1 == POS_END ? -1 : p1, seq,
                    missing);
        }
    }

    return true;
}

bool pkv_may_remove(llama_memory_i & mem, llama_seq_id seq, llama_pos p0, llama_pos p1, bool strict) {
    pkv_close_range(p0, p1);

    pkv_shards shards(mem);

    const bool whole = p0 == 0 && p1 == POS_END;
    if (whole || p0 >= p1) {
        return true;
    }

    const auto [s0, s1] = shards.ids(seq);

    for (llama_seq_id s = s0; s < s1; ++s) {
        for (const auto & win : shards.windows) {
            if (!may_remove_window(win, s, p0, p1)) {
                return false;
            }
        }
        if (shards.dsv4 && !may_remove_rows(*shards.dsv4, s, p0, p1)) {
            return false;
        }
        // upstream: what a state has taken in and cannot give back is not removed, and that is no failure; strict knows better
        const bool is_tail = shards.rs && p1 > shards.rs->seq_pos_max(s);
        if (shards.rs && (strict || is_tail || !shards.kv.empty()) && !may_remove_state(*shards.rs, s, p0, p1)) {
            return false;
        }
    }

    return true;
}

bool pkv_copies_all(llama_memory_i & mem, llama_seq_id src, llama_pos p0, llama_pos p1) {
    pkv_close_range(p0, p1);

    pkv_shards shards(mem);

    // a state does not know where it began
    const llama_pos first = shards.kv.empty() ? 0 : std::max(0, shards.pos_min(src));
    const llama_pos last  = shards.pos_max(src);

    return last < 0 ? p0 == 0 && p1 == POS_END : is_whole(p0, p1, first, last);
}

bool pkv_may_copy(llama_memory_i & mem, llama_seq_id src, llama_seq_id dst, llama_pos p0, llama_pos p1) {
    pkv_close_range(p0, p1);

    if (src == dst || p0 >= p1) {
        return true;
    }

    pkv_shards shards(mem);

    const bool whole = pkv_copies_all(mem, src, p0, p1);

    if (shards.rs && !whole) {
        return pkv_refuse("positions [%d, %d) of sequence %d cannot be copied: a recurrent state can only be copied whole",
                p0, p1 == POS_END ? -1 : p1, src);
    }
    if (shards.dsv4 && !(p0 == 0 && p1 == POS_END)) {
        return pkv_refuse("positions [%d, %d) of sequence %d cannot be copied: compressed rows can only be copied whole",
                p0, p1 == POS_END ? -1 : p1, src);
    }

    for (auto * kv : shards.kv) {
        const uint32_t n_need = pkv_copy_need(*kv, src, dst, p0, p1);
        const uint32_t n_free = pkv_copy_room(*kv, src, dst, p0, p1);
        if (n_need > n_free) {
            return pkv_refuse("copying %u cells of sequence %d: sequence %d has room for %u", n_need, src, dst, n_free);
        }
    }

    const auto copied = [&](llama_pos p) { return p >= p0 && p < p1; };

    for (const auto & win : shards.windows) {
        llama_pos last = std::min(win.full->seq_pos_max(src), pos_below(*win.full, src, p1));
        if (last < p0) {
            continue; // nothing to copy
        }
        if (!whole) {
            last = std::max(last, win.full->seq_pos_max(dst));
        }

        const auto in = [&](llama_kv_cache & kv, llama_pos p) {
            return (copied(p) && has_pos(kv, src, p)) || (!whole && !copied(p) && has_pos(kv, dst, p));
        };

        llama_pos missing;
        if (!window_complete(win, last,
                    [&](llama_pos p) { return in(*win.full, p); },
                    [&](llama_pos p) { return in(*win.swa,  p); }, &missing)) {
            return pkv_refuse("copying positions [%d, %d) of sequence %d would leave a hole in sequence %d: position %d, which "
                    "the next token attends to, has already left the sliding window", p0, p1 == POS_END ? -1 : p1, src, dst,
                    missing);
        }
    }

    return true;
}

bool pkv_needs_one_ubatch(const llama_cparams & cparams) {
    const bool is_pooled = cparams.embeddings && (
            cparams.pooling_type == LLAMA_POOLING_TYPE_MEAN ||
            cparams.pooling_type == LLAMA_POOLING_TYPE_CLS  ||
            cparams.pooling_type == LLAMA_POOLING_TYPE_RANK);

    return is_pooled || !cparams.causal_attn;
}

bool pkv_may_store(ggml_type type) {
    if (type < 0 || type >= GGML_TYPE_COUNT) {
        return false;
    }
    const auto * traits = ggml_get_type_traits(type);

    return type == GGML_TYPE_F32 || (traits->to_float && traits->from_float_ref);
}

bool pkv_may_embed(const llama_model & model, const llama_batch & batch) {
    // an n-gram has one history, and compressed rows have one owner
    if (model.arch == LLM_ARCH_DEEPSEEK4 || model.hparams.ple_n_heads > 0) {
        for (int32_t i = 0; i < batch.n_tokens; ++i) {
            if (batch.n_seq_id[i] > 1) {
                return pkv_refuse("token %d belongs to %d sequences: this model takes one", i, batch.n_seq_id[i]);
            }
        }
    }

    if (!model.pos_embd) {
        return true;
    }

    const int64_t n_pos = model.pos_embd->ne[1];
    for (int32_t i = 0; i < batch.n_tokens; ++i) {
        if (batch.pos[i] < 0 || batch.pos[i] >= n_pos) {
            return pkv_refuse("position %d does not exist: this model has learned positions 0 to %d", batch.pos[i],
                    (int) n_pos - 1);
        }
    }

    return true;
}
