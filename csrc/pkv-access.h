// The one door to the private parts of upstream's caches. A patch declares it a friend; whatever we lean on is listed here,
// so that a version bump shows at a glance what moved.
#pragma once

#include "llama-kv-cache.h"

struct pkv_access {
    static auto & layers       (llama_kv_cache & kv) { return kv.layers; }
    static auto & cells        (llama_kv_cache & kv) { return kv.v_cells; }
    static auto & layers       (const llama_kv_cache & kv) { return kv.layers; }
    static auto & cells        (const llama_kv_cache & kv) { return kv.v_cells; }
    static auto & heads        (llama_kv_cache & kv) { return kv.v_heads; }
    static auto & seq_to_stream(llama_kv_cache & kv) { return kv.seq_to_stream; }
    static auto & copies       (llama_kv_cache & kv) { return kv.pkv_copies; }
    static bool   v_trans      (const llama_kv_cache & kv) { return kv.v_trans; }

    // a draft context can borrow the cells of another one; they are the owner's to edit
    static bool   borrowed     (const llama_kv_cache & kv) { return kv.other != nullptr; }

    static const llama_model   & model  (const llama_kv_cache & kv) { return kv.model; }
    static const llama_hparams & hparams(const llama_kv_cache & kv) { return kv.hparams; }

    static uint32_t         n_swa   (const llama_kv_cache & kv) { return kv.n_swa; }
    static llama_swa_type   swa_type(const llama_kv_cache & kv) { return kv.swa_type; }
};
