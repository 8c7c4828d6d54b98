#include "pkv-rules.h"

#include "pkv-access.h"
#include "pkv-cells.h"
#include "pkv-reason.h"
#include "pkv-shards.h"

#include "llama-kv-cache-dsv4.h"
#include "llama-memory-recurrent.h"
#include "llama-model.h"

#include <algorithm>
#include <functional>
#include <limits>

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

bool pkv_may_shift(llama_memory_i & mem) {
    if (!mem.get_can_shift()) {
        return pkv_refuse("the positions of this memory cannot be shifted (multi-dimensional or per-layer RoPE, or a sliding "
                "window smaller than the context: use swa_full)");
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

    const llama_pos n_back = last - (p0 - 1);
    if (rs.rs_idx[seq] != 0 || n_back > (llama_pos) rs.n_rs_seq) {
        return pkv_refuse("the recurrent state of sequence %d cannot go back %d positions: %u snapshots are kept (n_rs_seq)%s",
                seq, n_back, rs.n_rs_seq, rs.rs_idx[seq] != 0 ? " and one rollback is already pending" : "");
    }

    return true;
}

//
// rules
//

bool pkv_may_remove(llama_memory_i & mem, llama_seq_id seq, llama_pos p0, llama_pos p1, bool strict) {
    pkv_close_range(p0, p1);

    pkv_shards shards(mem);

    const bool whole = p0 == 0 && p1 == POS_END;
    if (whole || p0 >= p1) {
        return true;
    }

    const llama_seq_id s0 = seq < 0 ? 0 : seq;
    const llama_seq_id s1 = seq < 0 ? (llama_seq_id) shards.n_seq() : seq + 1;

    for (llama_seq_id s = s0; s < s1; ++s) {
        for (const auto & win : shards.windows) {
            if (!may_remove_window(win, s, p0, p1)) {
                return false;
            }
        }
        if (shards.rs && (strict || !shards.kv.empty()) && !may_remove_state(*shards.rs, s, p0, p1)) {
            return false;
        }
    }

    return true;
}

bool pkv_may_copy(llama_memory_i & mem, llama_seq_id src, llama_seq_id dst, llama_pos p0, llama_pos p1, bool strict) {
    pkv_close_range(p0, p1);

    if (src == dst) {
        return true;
    }

    pkv_shards shards(mem);

    const bool whole = is_whole(p0, p1, std::max(0, shards.pos_min(src)), shards.pos_max(src));

    if (shards.rs && !whole && (strict || !shards.kv.empty())) {
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
        // across streams a whole copy replaces the destination, everything else is added to what is there
        const bool replaced = whole && pkv_crosses_streams(*win.full, src, dst);

        llama_pos last = std::min(win.full->seq_pos_max(src), pos_below(*win.full, src, p1));
        if (last < p0) {
            continue; // nothing to copy
        }
        if (!replaced) {
            last = std::max(last, win.full->seq_pos_max(dst));
        }

        const auto in = [&](llama_kv_cache & kv, llama_pos p) {
            return (copied(p) && has_pos(kv, src, p)) || (!replaced && has_pos(kv, dst, p));
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

bool pkv_may_embed(const llama_model & model, const llama_batch & batch) {
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
