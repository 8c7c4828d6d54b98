#include "pkv-edit.h"

#include "pkv-cells.h"
#include "pkv-reason.h"
#include "pkv-router.h"
#include "pkv-rules.h"
#include "pkv-shards.h"
#include "pkv-states.h"

#include "llama-context.h"
#include "llama-kv-cache.h"
#include "llama-impl.h"
#include "llama-memory.h"

#include "llama-batch.h"
#include "llama-kv-cache-dsv4.h"
#include "llama-memory-recurrent.h"

#include <algorithm>
#include <limits>
#include <map>
#include <stdexcept>

static size_t scrub(llama_context & ctx, bool all) {
    ctx.synchronize();
    pkv_router_expire(ctx);

    pkv_shards shards(*ctx.get_memory());

    size_t res = 0;
    for (auto * kv : shards.kv) {
        res += pkv_scrub_cells(*kv, all);
    }
    if (shards.rs && (all || ctx.get_memory()->pkv.eager)) {
        // a fresh sequence starts from a true zero state, whatever its row held: no need to do this for correctness
        res += pkv_scrub_states(*shards.rs);
    }

    return res;
}

// key shifts of attention caches, copies of compressed rows: what upstream does in its memory update
static void run_update(llama_context & ctx) {
    ctx.sched_reserve();
    if (ctx.memory_update(false)) {
        ctx.synchronize();
    }
}

static void run_copies(llama_context & ctx, llama_memory_i & mem) {
    pkv_shards shards(mem);

    bool has_copies = false;
    for (auto * kv : shards.kv) {
        has_copies |= pkv_has_copies(*kv);
    }
    if (has_copies) {
        // the graph of the last decode may still be running on a device
        ctx.synchronize();
        pkv_router_follow(ctx);
        for (auto * kv : shards.kv) {
            pkv_run_copies(*kv);
        }
    }

    if (shards.dsv4) {
        run_update(ctx);
    }
}

pkv_edit::pkv_edit(llama_memory_i * mem) : mem(mem) {
    pkv_reason_clear();
}

pkv_edit::~pkv_edit() {
    if (!mem || !mem->pkv.ctx) {
        return;
    }

    try {
        run_copies(*mem->pkv.ctx, *mem);

        mem->pkv.stale = true;
        if (mem->pkv.eager) {
            pkv_settle(*mem->pkv.ctx);
        }
    } catch (const std::exception & err) {
        LLAMA_LOG_ERROR("%s: %s\n", __func__, err.what());
    }
}

void pkv_settle(llama_context & ctx) {
    auto * mem = ctx.get_memory();
    if (!mem || !mem->pkv.stale) {
        return;
    }

    scrub(ctx, false);
    mem->pkv.stale = false;
}

bool pkv_has_shift(llama_context & ctx) {
    auto * mem = ctx.get_memory();
    if (!mem) {
        return false;
    }

    const auto kv = pkv_shards(*mem).kv;
    return std::any_of(kv.begin(), kv.end(), [](auto * c) { return c->get_has_shift(); });
}

void pkv_sync_state(llama_context & ctx, llama_seq_id seq) {
    auto * mem = ctx.get_memory();
    if (!mem) {
        return;
    }

    if (seq != -1 && !pkv_has_seq(*mem, seq)) {
        throw std::runtime_error(pkv_reason());
    }

    if (pkv_has_shift(ctx)) {
        run_update(ctx);
        if (pkv_has_shift(ctx)) {
            throw std::runtime_error("the queued shift of positions could not be applied to the keys");
        }
    }
}

// seq gets a state of its own if it ends in [p0, p1)
static void part_state(llama_memory_i & mem, llama_memory_recurrent & rs, llama_seq_id seq, llama_pos p0, llama_pos p1) {
    const llama_pos last = rs.seq_pos_max(seq);
    if (last < 0 || last < p0 || last >= p1 || !pkv_shares_state(rs, seq)) {
        return;
    }
    if (mem.pkv.ctx) {
        mem.pkv.ctx->synchronize();
    }
    pkv_own_state(rs, seq);
}

bool pkv_remove(llama_memory_i & mem, llama_seq_id seq, llama_pos p0, llama_pos p1) {
    pkv_shards shards(mem);

    pkv_close_range(p0, p1);
    if (p0 == 0 && p1 == std::numeric_limits<llama_pos>::max()) {
        return mem.seq_rm(seq, -1, -1);
    }

    bool res = true;

    const auto [s0, s1] = shards.ids(seq);
    for (llama_seq_id s = s0; s < s1; ++s) {
        const llama_pos last = shards.pos_max(s);
        if (p0 > last || p0 >= p1) {
            continue;
        }
        if (shards.rs && p0 > 0) {
            part_state(mem, *shards.rs, s, p0, p1);
        }
        // "everything from here" is what all shards understand
        res &= mem.seq_rm(s, p0 == 0 ? -1 : p0, p1 > last ? -1 : p1);
    }

    return res;
}

void pkv_copy(llama_memory_i & mem, llama_seq_id src, llama_seq_id dst, llama_pos p0, llama_pos p1) {
    pkv_close_range(p0, p1);
    if (src == dst || p0 >= p1) {
        return;
    }

    // what is copied whole is not a range any more: not every shard knows where the others begin
    if (pkv_copies_all(mem, src, p0, p1)) {
        mem.seq_rm(dst, -1, -1);
        if (pkv_shards(mem).pos_max(src) >= 0) {
            mem.seq_cp(src, dst, -1, -1);
        }
        return;
    }

    pkv_remove(mem, dst, p0, p1);
    if (pkv_shards(mem).pos_max(src) >= 0) {
        mem.seq_cp(src, dst, p0, p1);
    }
}

void pkv_keep(llama_memory_i & mem, llama_seq_id seq) {
    pkv_shards shards(mem);

    for (llama_seq_id s = 0; s < (llama_seq_id) shards.n_seq(); ++s) {
        if (s != seq && shards.pos_max(s) >= 0) {
            mem.seq_rm(s, -1, -1);
        }
    }
    mem.seq_keep(seq);
}

void pkv_shift(llama_memory_i & mem, llama_seq_id seq, llama_pos p0, llama_pos p1, const pkv_move & move) {
    if (!pkv_may_move(mem, seq, p0, p1, move)) {
        return;
    }

    pkv_close_range(p0, p1);

    pkv_shards shards(mem);

    for (auto * kv : shards.kv) {
        pkv_part_cells(*kv, seq, p0, p1);
    }
    if (shards.rs) {
        part_state(mem, *shards.rs, seq, p0, p1);
    }

    if (move.div > 1) {
        mem.seq_div(seq, p0, p1, move.div);
    } else {
        mem.seq_add(seq, p0, p1, move.add);
    }
}

bool pkv_begins_at(llama_memory_i & mem, llama_seq_id seq, llama_pos p0) {
    const pkv_shards shards(mem);

    // a state does not know where it began
    return p0 == 0 || (!shards.kv.empty() && shards.pos_min(seq) >= p0);
}

void pkv_take_back(llama_memory_i & mem, llama_seq_id seq, llama_pos p0) {
    if (pkv_begins_at(mem, seq, p0)) {
        mem.seq_rm(seq, -1, -1);
        return;
    }

    if (!pkv_may_remove(mem, seq, p0, -1, true) || !pkv_remove(mem, seq, p0, -1)) {
        LLAMA_LOG_ERROR("%s: sequence %d could not be taken back to position %d and has been emptied\n", __func__, seq, p0);
        mem.seq_rm(seq, -1, -1);
    }
}

void pkv_undo(llama_memory_i & mem, const llama_ubatch & ubatch) {
    pkv_edit edit(&mem);

    pkv_shards shards(mem);

    std::map<llama_seq_id, llama_pos> first;
    for (uint32_t i = 0; i < ubatch.n_tokens; ++i) {
        for (int32_t k = 0; k < ubatch.n_seq_id[i]; ++k) {
            const auto it = first.emplace(ubatch.seq_id[i][k], ubatch.pos[i]).first;
            it->second = std::min(it->second, ubatch.pos[i]);
        }
    }

    for (const auto & [seq, p0] : first) {
        // nobody knows which layers have taken the tokens in
        if (shards.rs) {
            shards.rs->set_rs_idx(seq, 0);
        }
        if (shards.dsv4) {
            shards.dsv4->planes.set(seq, 0);
        }

        pkv_take_back(mem, seq, p0);
    }

    // find_slot() took the rows of free cells in its range for zeroed; the graph that would have done it did not
    if (shards.rs) {
        for (auto & cell : shards.rs->cells) {
            if (cell.is_empty()) {
                cell.src = -1;
            }
        }
    }
}

void pkv_hold_states(llama_context & ctx, const llama_ubatch & ubatch) {
    pkv_shards shards(*ctx.get_memory());

    if (shards.rs && pkv_pushes_states(*shards.rs, ubatch)) {
        ctx.synchronize();
        pkv_move_states(*shards.rs);
    }
}

void pkv_read_state(llama_memory_i & mem, llama_io_read_i & io, llama_seq_id seq, llama_state_seq_flags flags) {
    const auto empty = [&] {
        if (seq == -1) {
            mem.clear(true);
        } else {
            mem.seq_rm(seq, -1, -1);
        }
    };

    try {
        mem.state_read(io, seq, flags);
    } catch (...) {
        empty();
        throw;
    }

    if (flags != 0) {
        return; // a part of the memory: the caller removes from the others what lies beyond it
    }

    pkv_shards shards(mem);

    const auto [s0, s1] = shards.ids(seq);
    for (llama_seq_id s = s0; s < s1; ++s) {
        const llama_pos last = shards.pos_max(s);

        bool same = !shards.rs || shards.rs->seq_pos_max(s) == last;
        for (auto * kv : shards.kv) {
            same &= kv->seq_pos_max(s) == last;
        }
        if (!same) {
            empty();
            throw std::runtime_error("the parts of the state end at different positions");
        }
    }
}

size_t pkv_scrub_all(llama_context & ctx) {
    return ctx.get_memory() ? scrub(ctx, true) : 0;
}

size_t pkv_residue_all(llama_context & ctx) {
    auto * mem = ctx.get_memory();
    if (!mem) {
        return 0;
    }

    ctx.synchronize();

    pkv_shards shards(*mem);

    size_t res = 0;
    for (auto * kv : shards.kv) {
        res += pkv_residue_cells(*kv);
    }
    if (shards.rs) {
        res += pkv_residue_states(*shards.rs);
    }

    return res;
}
