// When an edit is allowed. Every shard is asked before any is changed, so that an edit happens in all of them or in none.
// Each rule returns false after pkv_refuse(); none changes anything.
#pragma once

#include "llama.h"

struct llama_memory_i;
struct llama_model;
struct llama_cparams;

// The id is one that this memory can hold; all: -1 stands for every sequence.
bool pkv_has_seq(llama_memory_i & mem, llama_seq_id seq, bool all = false);

// After the removal every position that the next token attends to is still there, in every shard.
//   strict: also refuse where a recurrent state would keep what was removed. Without it a purely recurrent memory answers
//   as upstream does (true, unchanged); a hybrid refuses either way, since its halves would disagree.
bool pkv_may_remove(llama_memory_i & mem, llama_seq_id seq, llama_pos p0, llama_pos p1, bool strict = false);

// Does a copy of [p0, p1) take everything of src? Then it replaces what dst holds; a part replaces those positions.
bool pkv_copies_all(llama_memory_i & mem, llama_seq_id src, llama_pos p0, llama_pos p1);

// The copy fits into the free cells of the destination and leaves it without a hole; a recurrent state is copied whole.
bool pkv_may_copy(llama_memory_i & mem, llama_seq_id src, llama_seq_id dst, llama_pos p0, llama_pos p1);

// What happens to a position: p becomes (p + add)/div.
struct pkv_move {
    llama_pos add = 0;
    int       div = 1;

    llama_pos to   (llama_pos p) const { return (p + add)/div; }
    llama_pos first(llama_pos q) const { return q*div - add; }           // the positions that become q
    llama_pos last (llama_pos q) const { return q*div - add + div - 1; }
};

// The positions can be moved: keys can be rotated to them, cells that other sequences share can be copied first, and no window
// is left with a hole.
//   strict: a purely recurrent memory is taken to begin at position 0, so that nothing may be pushed below it.
bool pkv_may_move(
        llama_memory_i & mem,
        llama_seq_id     seq,
        llama_pos        p0,
        llama_pos        p1,
  const pkv_move       & move,
        bool             strict = false);

// Must a batch be computed in one piece? Attention that looks ahead sees no other ubatch, and neither does a pooled embedding
// (but for that of the last token).
bool pkv_needs_one_ubatch(const llama_cparams & cparams);

// Values of this type can be written to a cache and read from it.
bool pkv_may_store(ggml_type type);

// The model can take the batch in: its positions are inside the table of learned positions, where there is one, and no token
// belongs to several sequences where a token can have but one history.
bool pkv_may_embed(const llama_model & model, const llama_batch & batch);
