// What ci/equivalence measures: a prompt of 32 tokens, then COUNT tokens one by one, greedily, on one thread.
// Nothing but llama.h, and nothing that depends on time, on a seed or on a tokenizer.
//
//   equivalence MODEL COUNT        prints the tokens' FNV-1a hash, which two libraries must share

#include "llama.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

enum { PROMPT = 32 };

static void quiet(enum ggml_log_level level, const char * text, void * data) {
    (void) data;
    if (level == GGML_LOG_LEVEL_ERROR) {
        fputs(text, stderr);
    }
}

int main(int argc, char ** argv) {
    if (argc != 3) {
        fprintf(stderr, "usage: %s MODEL COUNT\n", argv[0]);
        return 2;
    }
    llama_log_set(quiet, NULL);
    llama_backend_init();

    struct llama_model_params model_params = llama_model_default_params();
    model_params.n_gpu_layers = 0;
    struct llama_model * model = llama_model_load_from_file(argv[1], model_params);
    if (model == NULL) {
        return 1;
    }
    struct llama_context_params params = llama_context_default_params();
    params.n_ctx           = 1024;
    params.n_threads       = 1;
    params.n_threads_batch = 1;
    struct llama_context * ctx = llama_init_from_model(model, params);
    if (ctx == NULL) {
        return 1;
    }

    const int n_vocab = llama_vocab_n_tokens(llama_model_get_vocab(model));
    llama_token tokens[PROMPT];
    for (int i = 0; i < PROMPT; i++) {
        tokens[i] = (llama_token) ((7919u * (unsigned) (i + 1)) % (unsigned) n_vocab);
    }
    struct llama_batch batch = llama_batch_get_one(tokens, PROMPT);
    uint64_t hash = 14695981039346656037u;
    for (int i = 0; i < atoi(argv[2]); i++) {
        if (llama_decode(ctx, batch) != 0) {
            return 1;
        }
        const float * logits = llama_get_logits_ith(ctx, -1);
        llama_token best = 0;
        for (llama_token id = 1; id < n_vocab; id++) {
            if (logits[id] > logits[best]) {
                best = id;
            }
        }
        hash = (hash ^ (uint64_t) best) * 1099511628211u;
        tokens[0] = best;
        batch = llama_batch_get_one(tokens, 1);
    }
    printf("%016llx\n", (unsigned long long) hash);

    llama_free(ctx);
    llama_model_free(model);
    llama_backend_free();
    return 0;
}
