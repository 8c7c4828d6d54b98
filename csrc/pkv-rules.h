// When an edit is allowed. Every shard is asked before any is changed, so that an edit happens in all of them or in none.
// Each rule returns false after pkv_refuse(); none changes anything.
#pragma once

#include "llama.h"

struct llama_memory_i;
struct llama_model;

// The id is one that this memory can hold; all: -1 stands for every sequence.
bool pkv_has_seq(llama_memory_i & mem, llama_seq_id seq, bool all = false);

// After the removal every position that the next token attends to is still there, in every shard.
//   strict: also refuse where a recurrent state would keep what was removed. Without it a purely recurrent memory answers
//   as upstream does (true, unchanged); a hybrid refuses either way, since its halves would disagree.
bool pkv_may_remove(llama_memory_i & mem, llama_seq_id seq, llama_pos p0, llama_pos p1, bool strict = false);

// The copy fits into the free cells of the destination and leaves it without a hole.
//   strict: see above; a recurrent state can only be copied whole.
bool pkv_may_copy(
        llama_memory_i & mem,
        llama_seq_id     src,
        llama_seq_id     dst,
        llama_pos        p0,
        llama_pos        p1,
        bool             strict = false);

// Positions of this memory can be shifted or divided at all.
bool pkv_may_shift(llama_memory_i & mem);

// The positions of the batch are inside the table of learned positions, where the model has one.
bool pkv_may_embed(const llama_model & model, const llama_batch & batch);
