#include "pkv-shift.h"

#include "pkv-access.h"

#include "llama-context.h"
#include "llama-graph.h"
#include "llama-impl.h"
#include "llama-model.h"

#include <algorithm>
#include <cmath>

// the shifted cells, as rows of the key tensors
class pkv_input_shift : public llm_graph_input_i {
public:
    explicit pkv_input_shift(const llama_kv_cache & kv) : kv(kv) {
        const auto & streams = pkv_access::cells(kv);
        for (size_t s = 0; s < streams.size(); ++s) {
            const auto & cells = streams[s];
            for (uint32_t i = 0; i < cells.size(); ++i) {
                if (!cells.is_empty(i) && cells.get_shift(i) != 0) {
                    v_src  .push_back((int32_t) (s*cells.size() + i));
                    v_dst  .push_back((int64_t) (s*cells.size() + i));
                    v_shift.push_back(cells.get_shift(i));
                }
            }
        }
    }

    void set_input(const llama_ubatch *) override {
        // a graph whose layers are all without positions does not use its inputs
        if (src->buffer) {
            ggml_backend_tensor_set(src,   v_src  .data(), 0, ggml_nbytes(src));
            ggml_backend_tensor_set(dst,   v_dst  .data(), 0, ggml_nbytes(dst));
            ggml_backend_tensor_set(shift, v_shift.data(), 0, ggml_nbytes(shift));
        }
        if (rot && rot->buffer) {
            kv.set_input_k_rot(rot);
        }
    }

    void build(ggml_context * ctx) {
        src   = ggml_new_tensor_1d(ctx, GGML_TYPE_I32, v_src  .size());
        dst   = ggml_new_tensor_1d(ctx, GGML_TYPE_I64, v_dst  .size());
        shift = ggml_new_tensor_1d(ctx, GGML_TYPE_I32, v_shift.size());
        rot   = kv.build_input_k_rot(ctx);

        ggml_set_input(src);
        ggml_set_input(dst);
        ggml_set_input(shift);
    }

    int64_t size() const { return v_src.size(); }

    ggml_tensor * src   = nullptr; // I32 [n], get_rows() takes no other
    ggml_tensor * dst   = nullptr; // I64 [n], as in set_input_k_idxs()
    ggml_tensor * shift = nullptr; // I32 [n]
    ggml_tensor * rot   = nullptr; // F32 [n_had, n_had], its own inverse; nullptr where keys are stored as they are

private:
    const llama_kv_cache & kv;

    std::vector<int32_t> v_src;
    std::vector<int64_t> v_dst;
    std::vector<int32_t> v_shift;
};

struct rope_params {
    ggml_tensor * factors;
    float freq_base;
    float freq_scale;
    float ext_factor;
};

// What the graph of the model turns its keys by. Some do not ask for what the layer has, whatever the file says.
static rope_params rope_of(const llama_model & model, const llama_cparams & cparams, uint32_t il) {
    rope_params res = {
        model.get_rope_factors   (cparams, il),
        model.get_rope_freq_base (cparams, il),
        model.get_rope_freq_scale(cparams, il),
        cparams.yarn_ext_factor,
    };

    switch (model.arch) {
        case LLM_ARCH_COGVLM: // ggml_rope() and its defaults
            res = { nullptr, 10000.0f, 1.0f, 0.0f };
            break;
        case LLM_ARCH_FALCON_H1:
            res.factors = nullptr;
            break;
        case LLM_ARCH_COHERE2MOE:
        case LLM_ARCH_EXAONE_MOE: // windowed layers too
            res.freq_base  = cparams.rope_freq_base;
            res.freq_scale = cparams.rope_freq_scale;
            break;
        default:
            break;
    }

    return res;
}

// ggml_rope_ext() multiplies by attn_factor, and with YaRN by 1 + 0.1*log(1/freq_scale). The stored key has all of that
// already: the rotation must keep its length.
static float keep_length(const rope_params & rope) {
    return rope.ext_factor != 0.0f ? 1.0f/(1.0f + 0.1f*std::log(1.0f/rope.freq_scale)) : 1.0f;
}

ggml_cgraph * pkv_build_shift(const llama_kv_cache & kv, llm_graph_result * res, llama_context * lctx) {
    auto * ctx = res->get_ctx();
    auto * gf  = res->get_gf();

    const auto & cparams = lctx->get_cparams();
    const auto & hparams = pkv_access::hparams(kv);
    const auto & model   = pkv_access::model  (kv);

    // for M-RoPE the whole head is rotated, in NeoX order (see build_rope_shift())
    const bool is_mrope  = hparams.rope_type == LLAMA_ROPE_TYPE_MROPE || hparams.rope_type == LLAMA_ROPE_TYPE_IMROPE;
    const int  rope_type = is_mrope ? LLAMA_ROPE_TYPE_NEOX : hparams.rope_type;

    // as the constructor of the cache tells them apart
    const bool is_indexer = hparams.indexer_head_size > 0 && hparams.n_embd_head_k_full == hparams.indexer_head_size;

    auto inp = std::make_unique<pkv_input_shift>(kv);
    if (inp->size() == 0) {
        return nullptr;
    }
    inp->build(ctx);

    // the keys pass through the compute buffer as F32: not all of a long cache at once
    const int64_t n_chunk = std::max<int64_t>(8192, (inp->size() + 7)/8);

    for (const auto & layer : pkv_access::layers(kv)) {
        const uint32_t il = layer.il;

        // EXAONE MoE turns the keys of its windowed layers only, and its pattern does not say so
        const bool is_plain = model.arch == LLM_ARCH_EXAONE_MOE && !hparams.is_swa(il);
        if (is_plain || !hparams.has_rope(il)) {
            continue;
        }

        const int64_t n_head = hparams.n_head_kv(il);
        const int64_t n_embd = hparams.n_embd_head_k(il);
        const int64_t n_rot  = hparams.n_rot(il);

        // a head of an MLA model ends in its rotated part, any other begins with it, and so do those of an indexer
        const int64_t n_nope = hparams.n_lora_kv > 0 && !is_indexer ? n_embd - n_rot : 0;

        const auto rope = rope_of(model, cparams, il);

        ggml_tensor * k = ggml_reshape_2d(ctx, layer.k, layer.k->ne[0], ggml_nrows(layer.k));

        for (int64_t i0 = 0; i0 < inp->size(); i0 += n_chunk) {
            const int64_t n = std::min(n_chunk, inp->size() - i0);

            const auto part = [&](ggml_tensor * idxs) { return ggml_view_1d(ctx, idxs, n, i0*idxs->nb[0]); };

            // any type of key becomes F32 [n_embd, n_head, n]
            ggml_tensor * cur = ggml_reshape_3d(ctx, ggml_get_rows(ctx, k, part(inp->src)), n_embd, n_head, n);
            if (inp->rot) {
                cur = llama_mul_mat_hadamard(ctx, cur, inp->rot);
            }

            const auto dims = [&](int64_t n_dims, int64_t first) {
                return ggml_view_3d(ctx, cur, n_dims, n_head, n, cur->nb[1], cur->nb[2], first*cur->nb[0]);
            };

            ggml_tensor * rotated = ggml_rope_ext(ctx, n_nope > 0 ? dims(n_rot, n_nope) : cur, part(inp->shift),
                    rope.factors, n_rot, rope_type, cparams.n_ctx_orig_yarn, rope.freq_base, rope.freq_scale, rope.ext_factor,
                    keep_length(rope), cparams.yarn_beta_fast, cparams.yarn_beta_slow);

            cur = n_nope > 0 ? ggml_concat(ctx, dims(n_nope, 0), rotated, 0) : rotated;
            if (inp->rot) {
                cur = llama_mul_mat_hadamard(ctx, cur, inp->rot);
            }

            ggml_build_forward_expand(gf, ggml_set_rows(ctx, k, ggml_reshape_2d(ctx, cur, k->ne[0], n), part(inp->dst)));
        }
    }

    if (ggml_graph_n_nodes(gf) == 0) {
        return nullptr;
    }

    res->add_input(std::move(inp));

    return gf;
}
