#include "pyllamakv.h"

#include "pkv-access.h"
#include "pkv-reason.h"
#include "pkv-router.h"
#include "pkv-rules.h"
#include "pkv-shards.h"

#include "llama-context.h"
#include "llama-model.h"

#include <algorithm>
#include <cstring>
#include <exception>

template <typename T, typename F>
static T answered(T failed, F f) {
    try {
        pkv_reason_clear();
        return f();
    } catch (const std::exception & err) {
        pkv_refuse("%s", err.what());
        return failed;
    }
}

static pkv_router * router_of(llama_context * ctx) {
    pkv_router * res = ctx ? pkv_router::of(*ctx) : nullptr;
    if (!res) {
        pkv_refuse("this model has no experts, and no router");
    }

    return res;
}

static llama_kv_cache * rows_cache(llama_context & ctx) {
    auto * mem = ctx.get_memory();
    const auto kv = mem ? pkv_shards(*mem).kv : std::vector<llama_kv_cache *>();
    if (kv.empty() || pkv_access::borrowed(*kv[0])) {
        pkv_refuse("router rows are kept beside the cells of an attention cache, and this context has none");
        return nullptr;
    }

    return kv[0];
}

bool pkv_set_router(llama_context * ctx, bool on) {
    return answered(false, [&] {
        pkv_router * r = router_of(ctx);
        if (!r || (on && !rows_cache(*ctx))) {
            return false;
        }
        r->set_rows(on);
        return true;
    });
}

bool pkv_get_router(llama_context * ctx) {
    return answered(false, [&] {
        pkv_router * r = ctx ? pkv_router::of(*ctx) : nullptr;
        return r && r->keeping;
    });
}

int64_t pkv_router_get(llama_context * ctx, llama_seq_id seq, uint8_t * dst, size_t size) {
    return answered((int64_t) -1, [&]() -> int64_t {
        pkv_router * r = router_of(ctx);
        llama_kv_cache * kv = r ? rows_cache(*ctx) : nullptr;
        if (!kv || !pkv_has_seq(*ctx->get_memory(), seq)) {
            return -1;
        }
        if (!r->keeping) {
            pkv_refuse("router rows are not kept: switch them on with pkv_set_router() before the decode");
            return -1;
        }

        pkv_router_expire(*ctx);
        const auto res = r->rows.get(*kv, seq, ctx->get_model().hparams.n_expert);
        if (dst && size >= res.size()) {
            memcpy(dst, res.data(), res.size());
        }
        return res.size();
    });
}

bool pkv_router_set(llama_context * ctx, llama_seq_id seq, const uint8_t * src, size_t size) {
    return answered(false, [&] {
        pkv_router * r = router_of(ctx);
        llama_kv_cache * kv = r ? rows_cache(*ctx) : nullptr;
        if (!kv || !pkv_has_seq(*ctx->get_memory(), seq)) {
            return false;
        }
        if (!r->keeping) {
            return pkv_refuse("router rows are not kept: switch them on with pkv_set_router() first");
        }

        pkv_router_settle(*ctx);
        r->rows.set(*kv, seq, ctx->get_model().hparams.n_expert, src, src ? size : 0);
        return true;
    });
}

bool pkv_set_router_guard(llama_context * ctx, enum pkv_router_guard mode) {
    return answered(false, [&] {
        pkv_router * r = router_of(ctx);
        if (!r) {
            return false;
        }
        if (mode != PKV_GUARD_AUTO && mode != PKV_GUARD_ON && mode != PKV_GUARD_OFF) {
            return pkv_refuse("guard mode %d is unknown", (int) mode);
        }
        r->set_guard(mode);
        return true;
    });
}

enum pkv_router_guard pkv_get_router_guard(llama_context * ctx) {
    return answered(PKV_GUARD_OFF, [&] {
        pkv_router * r = ctx ? pkv_router::of(*ctx) : nullptr;
        return r ? r->guard : PKV_GUARD_OFF;
    });
}

// leaves the reason of the decode as it is
int32_t pkv_router_faults(llama_context * ctx, struct pkv_router_fault * dst, int32_t n) {
    const pkv_router * r = ctx ? pkv_router::of(*ctx) : nullptr;

    const int32_t n_faults = r ? (int32_t) r->faults.size() : 0;
    for (int32_t i = 0; dst && i < std::min(n, n_faults); ++i) {
        dst[i] = r->faults[i];
    }

    return n_faults;
}
