#include "pkv-edit.h"

#include "pkv-cells.h"
#include "pkv-reason.h"
#include "pkv-rules.h"
#include "pkv-shards.h"
#include "pkv-states.h"

#include "llama-context.h"
#include "llama-kv-cache.h"
#include "llama-impl.h"
#include "llama-memory.h"

#include <algorithm>
#include <stdexcept>

static size_t scrub(llama_context & ctx, bool all) {
    ctx.synchronize();

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

void pkv_sync_state(llama_context & ctx, llama_seq_id seq) {
    auto * mem = ctx.get_memory();
    if (!mem) {
        return;
    }

    if (seq != -1 && !pkv_has_seq(*mem, seq)) {
        throw std::runtime_error(pkv_reason());
    }

    const auto has_shift = [&] {
        const auto kv = pkv_shards(*mem).kv;
        return std::any_of(kv.begin(), kv.end(), [](auto * c) { return c->get_has_shift(); });
    };

    if (has_shift()) {
        run_update(ctx);
        if (has_shift()) {
            throw std::runtime_error("the queued shift of positions could not be applied to the keys");
        }
    }
}

void pkv_undo(llama_memory_i & mem, llama_seq_id seq, llama_pos p0) {
    pkv_edit edit(&mem);

    if (p0 > 0 && pkv_may_remove(mem, seq, p0, -1, true) && mem.seq_rm(seq, p0, -1)) {
        return;
    }

    if (p0 > 0) {
        LLAMA_LOG_ERROR("%s: sequence %d could not be taken back to position %d and has been emptied\n", __func__, seq, p0);
    }
    mem.seq_rm(seq, -1, -1);
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
