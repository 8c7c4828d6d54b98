// What the reproductions of the pages share. Each of them is the body of a function that gets a loaded model:
//
//   #include "reproduce.h"
//   static void reproduce(struct llama_model * model) { … }
#pragma once

#include "llama.h"

#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

// Decodes n tokens of a sequence from position pos on, in one batch with logits for the last; llama_decode's code.
static int feed(struct llama_context * ctx, llama_seq_id seq, llama_pos pos, int n) {
    struct llama_batch batch = llama_batch_init(n, 0, 1);
    for (int i = 0; i < n; i++) {
        batch.token[i]     = 1 + (7 * (pos + i)) % 100;
        batch.pos[i]       = pos + i;
        batch.n_seq_id[i]  = 1;
        batch.seq_id[i][0] = seq;
        batch.logits[i]    = i == n - 1;
    }
    batch.n_tokens = n;
    const int code = llama_decode(ctx, batch);
    llama_batch_free(batch);
    return code;
}

// The same with rows of `value` in place of the tokens' embeddings: NAN for a request that overflows.
static int feed_value(struct llama_context * ctx, llama_seq_id seq, llama_pos pos, int n, float value) {
    const int n_embd = llama_model_n_embd(llama_get_model(ctx));
    struct llama_batch batch = llama_batch_init(n, n_embd, 1);
    for (int i = 0; i < n * n_embd; i++) {
        batch.embd[i] = value;
    }
    for (int i = 0; i < n; i++) {
        batch.pos[i]       = pos + i;
        batch.n_seq_id[i]  = 1;
        batch.seq_id[i][0] = seq;
        batch.logits[i]    = i == n - 1;
    }
    batch.n_tokens = n;
    const int code = llama_decode(ctx, batch);
    llama_batch_free(batch);
    return code;
}
