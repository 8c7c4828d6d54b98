// The router of a mixture of experts: which experts each token goes to, and with what weights.
//
// It has no memory of its own; what it chose is read back from the graph that chose it. Two things are made of that:
//
// guard: a token whose routing is NaN or infinite is taken out again, with its sequence's other tokens of the same batch, and
//        the rest of the batch is decoded as if they had not been in it. Without that, one such token damages every other
//        sequence of a unified cache: its keys are masked, and 0 times NaN is NaN.
// rows:  the choices are kept beside the cell of the token (see pkv-router-rows.h).
//
// Nothing is added to the graph. The tensors that hold the choices are marked as outputs, which keeps them from being
// overwritten: a few hundred bytes a token. With both switched off, not even that.
#pragma once

#include "pkv-router-rows.h"
#include "pyllamakv.h"

#include <cstdint>
#include <map>
#include <vector>

struct ggml_tensor;
struct llama_batch_ext;
struct llama_context;
struct llama_ubatch;
class llm_graph_result;

struct pkv_router {
    //
    // what the patch calls; each costs one test where the model has no experts
    //

    // A graph has been built and is about to be allocated.
    static void bind(llama_context & ctx, const llm_graph_result & res);

    // Before a batch is split. false: it holds input that a recurrent state could not be freed from; call recover().
    static bool admit(llama_context & ctx, const llama_batch_ext & batch);

    // A ubatch was computed and its outputs were extracted, behind those of the n_tokens_prev tokens before it.
    // false: some of its routing is not finite; call recover().
    static bool check(
                  llama_context & ctx,
         const llm_graph_result & res,
             const llama_ubatch & ubatch,
                        int64_t   n_tokens_prev,
                        int64_t   n_outputs_prev);

    // Takes out what caused it and decodes the rest of the batch, its outputs at the places that they have in the batch.
    // Always PKV_NON_FINITE, or 2 when the rest was aborted. The faults say what was taken out.
    static int recover(llama_context & ctx, const llama_batch_ext & batch);

    //
    // settings and results
    //

    static pkv_router * of(llama_context & ctx);

    void set_rows (bool on);
    void set_guard(pkv_router_guard mode);

    explicit pkv_router(llama_context & ctx) : ctx(ctx) {}

    llama_context & ctx;

    pkv_router_guard guard   = PKV_GUARD_AUTO;
    bool      keeping = false;

    pkv_rows rows;

    // of the last decode
    std::vector<pkv_router_fault> faults;

private:
    // one call of the router in a graph
    struct call {
        int32_t       il;
        ggml_tensor * ids;     // I32 [n_used, n_rows]
        ggml_tensor * weights; // F32 [n_used, n_rows]
    };

    struct graph {
        std::vector<call> calls;

        bool placed  = false; // `on_host` is known
        bool on_host = false;
    };

    // what recover() has to know about the batch in hand
    struct progress {
        std::vector<int32_t> done;    // batch indices of the tokens in the memory
        std::vector<uint8_t> bad;     // of those: routed by NaN
        int64_t              n_outputs = 0;
    };

    struct recovery;

    bool guards(graph & g);
    bool inspect(graph & g, const llama_ubatch & ubatch);
    void record (graph & g, const llama_ubatch & ubatch);

    std::map<const llm_graph_result *, graph> graphs;

    progress cur;
    bool     recovering = false;

    std::vector<float>   buf_w;
    std::vector<int32_t> buf_i;
};

// Rows follow their cells (see pkv-edit.cpp): before queued copies are carried out, and before marks of freed cells are reset.
void pkv_router_follow(llama_context & ctx);
void pkv_router_expire(llama_context & ctx);

// Before rows are written other than by a decode: the marks of freed cells are reset, so that they are not taken for news later.
void pkv_router_settle(llama_context & ctx);
