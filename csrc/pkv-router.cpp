#include "pkv-router.h"

#include "pkv-access.h"
#include "pkv-cells.h"
#include "pkv-edit.h"
#include "pkv-reason.h"
#include "pkv-rules.h"
#include "pkv-shards.h"

#include "ggml-backend.h"
#include "llama-batch.h"
#include "llama-context.h"
#include "llama-graph.h"
#include "llama-model.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>

pkv_router * pkv_router::of(llama_context & ctx) {
    if (!ctx.pkv_moe && ctx.model.hparams.n_expert > 0) {
        ctx.pkv_moe = std::make_shared<pkv_router>(ctx);
    }

    return ctx.pkv_moe.get();
}

void pkv_router::set_rows(bool on) {
    if (on == keeping) {
        return;
    }
    keeping = on;
    rows.clear();
    // the next decode builds and reserves its graph anew, with other marks
    ctx.sched_need_reserve = true;
}

void pkv_router::set_guard(pkv_router_guard mode) {
    if (mode == guard) {
        return;
    }
    guard = mode;
    ctx.sched_need_reserve = true;
}

//
// graphs
//

// The names that llm_graph_context::build_moe_ffn gives. Of the weights the last one counts: it is what the experts' results
// are multiplied by.
static int layer_of(const ggml_tensor * t, std::initializer_list<const char *> names) {
    for (const char * name : names) {
        const size_t n = strlen(name);
        if (strncmp(t->name, name, n) == 0 && t->name[n] == '-') {
            char * end;
            const long il = strtol(t->name + n + 1, &end, 10);
            if (end != t->name + n + 1 && *end == '\0') { // not "… (reshaped)"
                return (int) il;
            }
        }
    }

    return -1;
}

// marked as an output, its memory is not given to another tensor of the graph; a view's memory is its source's
static void keep(ggml_tensor * t) {
    ggml_set_output(t->view_src ? t->view_src : t);
}

void pkv_router::bind(llama_context & ctx, const llm_graph_result & res) {
    pkv_router * r = of(ctx);
    if (!r) {
        return;
    }

    r->graphs.erase(&res);
    if (r->guard == PKV_GUARD_OFF && !r->keeping) {
        return;
    }

    graph g;

    ggml_cgraph * gf = res.get_gf();
    for (int i = 0; gf && i < ggml_graph_n_nodes(gf); ++i) {
        ggml_tensor * t = ggml_graph_node(gf, i);
        if (strncmp(t->name, "ffn_moe_", 8) != 0) {
            continue;
        }

        int il = layer_of(t, { "ffn_moe_topk" });
        if (il >= 0) {
            g.calls.push_back({ il, t, nullptr });
            continue;
        }
        il = layer_of(t, { "ffn_moe_weights", "ffn_moe_weights_softmax", "ffn_moe_weights_norm", "ffn_moe_weights_scaled" });
        if (il >= 0 && !g.calls.empty() && g.calls.back().il == il) {
            g.calls.back().weights = t;
        }
    }

    g.calls.erase(std::remove_if(g.calls.begin(), g.calls.end(), [](const call & c) {
        return !c.weights || c.weights->type != GGML_TYPE_F32 || c.ids->type != GGML_TYPE_I32 ||
                !ggml_is_contiguous(c.weights) || c.ids->ne[0] == 0 ||
                ggml_nelements(c.weights) != c.ids->ne[0]*c.ids->ne[1];
    }), g.calls.end());

    for (const auto & c : g.calls) {
        keep(c.weights);
        if (r->keeping) {
            keep(c.ids);
        }
    }

    if (!g.calls.empty()) {
        r->graphs[&res] = std::move(g);
    }
}

// On a device, reading the weights back means waiting for it: not unless asked for.
bool pkv_router::guards(graph & g) {
    if (!g.placed) {
        g.placed  = true;
        g.on_host = true;
        for (const auto & c : g.calls) {
            const ggml_backend_t backend = ggml_backend_sched_get_tensor_backend(ctx.sched.get(), c.weights);
            const ggml_backend_dev_t dev = backend ? ggml_backend_get_device(backend) : nullptr;
            g.on_host = g.on_host && dev && ggml_backend_dev_type(dev) == GGML_BACKEND_DEVICE_TYPE_CPU;
        }
    }

    return guard == PKV_GUARD_ON || (guard == PKV_GUARD_AUTO && g.on_host);
}

//
// after a ubatch
//

// F32 [n_used, n_rows], without a copy where it lies in host memory
static const float * read_weights(const ggml_tensor * t, bool on_host, std::vector<float> & buf) {
    if (on_host) {
        return (const float *) t->data;
    }
    buf.resize(ggml_nelements(t));
    ggml_backend_tensor_get(t, buf.data(), 0, ggml_nbytes(t));

    return buf.data();
}

// I32 [n_used, n_rows]: mostly a view of the first columns of a sorted matrix
static const int32_t * read_ids(const ggml_tensor * t, std::vector<int32_t> & buf) {
    const size_t size = t->ne[0]*sizeof(int32_t);

    buf.resize(t->ne[0]*t->ne[1]);
    for (int64_t i = 0; i < t->ne[1]; ++i) {
        ggml_backend_tensor_get(t, buf.data() + i*t->ne[0], i*t->nb[1], size);
    }

    return buf.data();
}

// The token of each row: all tokens, or those whose output was asked for, which is all that a last layer computes.
static std::vector<uint32_t> tokens_of_rows(const llama_ubatch & ubatch, int64_t n_rows) {
    std::vector<uint32_t> res;
    for (uint32_t i = 0; i < ubatch.n_tokens; ++i) {
        if (n_rows == ubatch.n_tokens || ubatch.output[i]) {
            res.push_back(i);
        }
    }
    if ((int64_t) res.size() != n_rows) {
        res.clear();
    }

    return res;
}

bool pkv_router::inspect(graph & g, const llama_ubatch & ubatch) {
    ggml_backend_sched_synchronize(ctx.sched.get());

    const auto & batch_idxs = ubatch.data->batch_idxs;

    // one look at the weights of each layer: NaN in the hidden state of a token stays there through all layers that follow
    std::vector<int32_t> bad;
    bool found = false;

    for (size_t k = 0; k < g.calls.size(); ++k) {
        const auto &  c = g.calls[k];
        const int64_t n = ggml_nelements(c.weights);
        if (!g.on_host && !keeping && n > 0 && k + 2 < g.calls.size() && !found) {
            continue; // each read waits for the device; the last layers tell as much
        }

        const float * w = read_weights(c.weights, g.on_host, buf_w);

        float sum = 0.0f;
        for (int64_t i = 0; i < n; ++i) {
            sum += w[i] - w[i]; // 0, or NaN for NaN and infinity
        }
        if (sum == 0.0f) {
            continue;
        }
        found = true;

        const int64_t n_used = c.ids->ne[0];
        const auto    tokens = tokens_of_rows(ubatch, n/n_used);
        for (size_t row = 0; row < tokens.size(); ++row) {
            const uint32_t i = tokens[row];
            if (cur.bad[batch_idxs[i]] || std::all_of(w + row*n_used, w + (row + 1)*n_used, [](float x) { return std::isfinite(x); })) {
                continue;
            }
            cur.bad[batch_idxs[i]] = 1;
            faults.push_back({ ubatch.seq_id[i][0], ubatch.pos[i], c.il });
        }
    }

    return !found;
}

bool pkv_router::check(
          llama_context & ctx,
 const llm_graph_result & res,
     const llama_ubatch & ubatch,
                int64_t   n_tokens_prev,
                int64_t   n_outputs_prev) {
    pkv_router * r = ctx.pkv_moe.get();
    if (!r) {
        return true;
    }

    if (n_tokens_prev == 0) {
        r->cur = {};
        if (!r->recovering) {
            r->faults.clear();
        }
    }

    const auto it = r->graphs.find(&res);
    if (it == r->graphs.end() || !ubatch.data) {
        return true;
    }

    const bool guarded = r->guards(it->second);

    if (guarded) {
        r->cur.n_outputs = n_outputs_prev + ctx.n_outputs;
        for (const int32_t i : ubatch.data->batch_idxs) {
            if ((size_t) i >= r->cur.bad.size()) {
                r->cur.bad.resize(i + 1);
            }
            r->cur.done.push_back(i);
        }
        if (!r->inspect(it->second, ubatch)) {
            return false;
        }
    }

    if (r->keeping) {
        r->record(it->second, ubatch);
    }

    return true;
}

//
// rows
//

static llama_kv_cache * cache_of(llama_context & ctx) {
    auto * mem = ctx.get_memory();
    if (!mem) {
        return nullptr;
    }
    const auto kv = pkv_shards(*mem).kv;

    return kv.empty() || pkv_access::borrowed(*kv[0]) ? nullptr : kv[0];
}

// the cell of a token; images give several tokens the same position, and tell them apart by two more
static int64_t cell_of(const llama_kv_cells & cells, const llama_ubatch & ubatch, uint32_t i) {
    const llama_pos pos = ubatch.pos[i];
    const auto &    set = cells.seq_pos_get(ubatch.seq_id[i][0]);

    for (auto it = set.lower_bound({ pos, 0 }); it != set.end() && it->first == pos; ++it) {
        if (!ubatch.is_pos_2d() || !ubatch.embd) {
            return it->second;
        }
        const auto & ext = cells.ext_get(it->second);
        if (ext.y == ubatch.pos[i + ubatch.n_tokens] && ext.x == ubatch.pos[i + 2*ubatch.n_tokens]) {
            return it->second;
        }
    }

    return -1;
}

void pkv_router::record(graph & g, const llama_ubatch & ubatch) {
    llama_kv_cache * kv = cache_of(ctx);
    if (!kv || ctx.cparams.warmup) {
        return;
    }

    ggml_backend_sched_synchronize(ctx.sched.get());

    if (rows.il.empty()) {
        for (const auto & c : g.calls) {
            rows.il.push_back(c.il);
            rows.n_used = std::max(rows.n_used, (uint32_t) c.ids->ne[0]);
        }
    }
    if (rows.il.size() != g.calls.size()) {
        return; // a graph of another kind, such as that of the draft head
    }

    const auto & strm = pkv_access::seq_to_stream(*kv);

    std::vector<int16_t *> ids    (ubatch.n_tokens, nullptr);
    std::vector<float   *> weights(ubatch.n_tokens, nullptr);

    // twice: the first round may move what the second points to
    for (int round = 0; round < 2; ++round) {
        for (uint32_t i = 0; i < ubatch.n_tokens; ++i) {
            const uint32_t s    = strm[ubatch.seq_id[i][0]];
            const int64_t  cell = cell_of(pkv_access::cells(*kv)[s], ubatch, i);
            if (cell >= 0) {
                rows.add(s, cell, &ids[i], &weights[i]);
            }
        }
    }

    for (size_t k = 0; k < g.calls.size(); ++k) {
        const auto &   c      = g.calls[k];
        const uint32_t n_used = c.ids->ne[0];
        if (c.il != rows.il[k] || n_used > rows.n_used) {
            continue;
        }

        const auto      tokens = tokens_of_rows(ubatch, c.ids->ne[1]);
        const float   * w      = read_weights(c.weights, g.on_host, buf_w);
        const int32_t * e      = read_ids(c.ids, buf_i);

        for (size_t row = 0; row < tokens.size(); ++row) {
            const uint32_t i = tokens[row];
            if (!ids[i]) {
                continue;
            }
            for (uint32_t j = 0; j < n_used; ++j) {
                ids    [i][k*rows.n_used + j] = (int16_t) e[row*n_used + j];
                weights[i][k*rows.n_used + j] = w[row*n_used + j];
            }
        }
    }
}

void pkv_router_expire(llama_context & ctx) {
    pkv_router * r = pkv_router::of(ctx);
    if (!r || !r->keeping) {
        return;
    }
    if (llama_kv_cache * kv = cache_of(ctx)) {
        r->rows.expire(*kv);
    }
}

void pkv_router_settle(llama_context & ctx) {
    ctx.get_memory()->pkv.stale = true;
    pkv_settle(ctx);
}

void pkv_router_follow(llama_context & ctx) {
    pkv_router * r = pkv_router::of(ctx);
    llama_kv_cache * kv = r && r->keeping ? cache_of(ctx) : nullptr;
    if (!kv || !pkv_has_copies(*kv)) {
        return;
    }

    pkv_router_settle(ctx);
    for (const auto & copy : pkv_access::copies(*kv)) {
        for (const auto & [src, dst] : copy.cells) {
            r->rows.copy(copy.ssrc, src, copy.sdst, dst);
        }
    }
}
