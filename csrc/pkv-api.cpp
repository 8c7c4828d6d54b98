#include "pyllamakv.h"

#include "pkv-edit.h"
#include "pkv-reason.h"
#include "pkv-rules.h"

#include "llama-context.h"
#include "llama-impl.h"
#include "llama-memory.h"

#include "pkv-build-info.h"

#include <exception>

int32_t pkv_abi_version(void) {
    return PKV_ABI_VERSION;
}

const char * pkv_build_info(void) {
    return PKV_BUILD_INFO;
}

const char * pkv_last_reason(void) {
    return pkv_reason().c_str();
}

// nothing is thrown across the border
template <typename T, typename F>
static T guarded(T failed, F f) {
    try {
        return f();
    } catch (const std::exception & err) {
        pkv_refuse("%s", err.what());
        return failed;
    }
}

static llama_memory_i * memory_of(llama_context * ctx) {
    pkv_reason_clear();

    auto * mem = ctx ? ctx->get_memory() : nullptr;
    if (!mem) {
        pkv_refuse("this context has no memory");
    }

    return mem;
}

bool pkv_memory_remove(llama_context * ctx, llama_seq_id seq, llama_pos p0, llama_pos p1) {
    return guarded(false, [&] {
        auto * mem = memory_of(ctx);
        if (!mem || !pkv_has_seq(*mem, seq, true) || !pkv_may_remove(*mem, seq, p0, p1, true)) {
            return false;
        }

        // shards that were asked can still decline what only they know of
        return llama_memory_seq_rm(mem, seq, p0, p1) || (!pkv_reason().empty() ? false :
                pkv_refuse("removing positions [%d, %d) of sequence %d is not possible in this kind of memory", p0, p1, seq));
    });
}

bool pkv_memory_copy(llama_context * ctx, llama_seq_id src, llama_seq_id dst, llama_pos p0, llama_pos p1) {
    return guarded(false, [&] {
        auto * mem = memory_of(ctx);
        if (!mem || !pkv_has_seq(*mem, src) || !pkv_has_seq(*mem, dst) || !pkv_may_copy(*mem, src, dst, p0, p1)) {
            return false;
        }
        llama_memory_seq_cp(mem, src, dst, p0, p1);
        return true;
    });
}

bool pkv_memory_keep(llama_context * ctx, llama_seq_id seq) {
    return guarded(false, [&] {
        auto * mem = memory_of(ctx);
        if (!mem || !pkv_has_seq(*mem, seq)) {
            return false;
        }
        llama_memory_seq_keep(mem, seq);
        return true;
    });
}

bool pkv_memory_shift(llama_context * ctx, llama_seq_id seq, llama_pos p0, llama_pos p1, llama_pos delta) {
    return guarded(false, [&] {
        auto * mem = memory_of(ctx);
        if (!mem || !pkv_has_seq(*mem, seq) || !pkv_may_move(*mem, seq, p0, p1, { delta, 1 }, true)) {
            return false;
        }
        llama_memory_seq_add(mem, seq, p0, p1, delta);
        return true;
    });
}

bool pkv_memory_divide(llama_context * ctx, llama_seq_id seq, llama_pos p0, llama_pos p1, int32_t d) {
    return guarded(false, [&] {
        auto * mem = memory_of(ctx);
        if (!mem || !pkv_has_seq(*mem, seq) || !pkv_may_move(*mem, seq, p0, p1, { 0, d }, true)) {
            return false;
        }
        llama_memory_seq_div(mem, seq, p0, p1, d);
        return true;
    });
}

bool pkv_memory_clear(llama_context * ctx, bool data) {
    return guarded(false, [&] {
        auto * mem = memory_of(ctx);
        if (!mem) {
            return false;
        }
        llama_memory_clear(mem, data);
        return true;
    });
}

bool pkv_memory_sync(llama_context * ctx) {
    return guarded(false, [&] {
        if (!memory_of(ctx)) {
            return false;
        }
        pkv_sync_state(*ctx);
        pkv_settle(*ctx);
        return true;
    });
}

bool pkv_set_scrub(llama_context * ctx, enum pkv_scrub mode) {
    return guarded(false, [&] {
        auto * mem = memory_of(ctx);
        if (!mem) {
            return false;
        }
        if (mode != PKV_SCRUB_LAZY && mode != PKV_SCRUB_EAGER) {
            return pkv_refuse("scrub mode %d is unknown", (int) mode);
        }
        mem->pkv.eager = mode == PKV_SCRUB_EAGER;
        if (mem->pkv.eager) {
            // what was freed while it was lazy may be done with by halves
            mem->pkv.stale = true;
            pkv_settle(*ctx);
        }
        return true;
    });
}

enum pkv_scrub pkv_get_scrub(const llama_context * ctx) {
    const auto * mem = ctx ? ctx->get_memory() : nullptr;

    return mem && mem->pkv.eager ? PKV_SCRUB_EAGER : PKV_SCRUB_LAZY;
}

int64_t pkv_memory_scrub(llama_context * ctx) {
    return guarded((int64_t) -1, [&] {
        return memory_of(ctx) ? (int64_t) pkv_scrub_all(*ctx) : -1;
    });
}

int64_t pkv_memory_residue(llama_context * ctx) {
    return guarded((int64_t) -1, [&] {
        return memory_of(ctx) ? (int64_t) pkv_residue_all(*ctx) : -1;
    });
}
