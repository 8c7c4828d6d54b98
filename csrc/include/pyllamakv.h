// What pyllamakv adds to libllama.
//
// llama.h stays as it is: a program built for the stock library runs on the patched one. The functions here answer what
// llama.h cannot: whether an edit was made, why not, and what is left behind. Every one of them is safe to call with any
// argument but a bad context pointer.
#pragma once

#include "llama.h"

#ifdef __cplusplus
extern "C" {
#endif

// Version of this header. It grows when a declaration below changes its meaning.
#define PKV_ABI_VERSION 1

LLAMA_API int32_t pkv_abi_version(void);

// JSON: pin, digest of the patch series, backend, compiler, flags. Static storage.
LLAMA_API const char * pkv_build_info(void);

// Why the last edit on this thread was refused; "" when it was made. Valid until the next edit on this thread.
LLAMA_API const char * pkv_last_reason(void);

//
// Edits of a context's memory.
//
// true : done, in every shard.
// false: refused or failed; nothing has changed and pkv_last_reason() says why.
//
// Positions are half open, [p0, p1). p0 < 0 means from the start, p1 < 0 to the end, as in llama.h.
//

// Removes positions of a sequence (-1: of every sequence).
// Unlike llama_memory_seq_rm() it also refuses where a recurrent state would go on knowing what was removed.
LLAMA_API bool pkv_memory_remove(struct llama_context * ctx, llama_seq_id seq, llama_pos p0, llama_pos p1);

// Copies positions of src to dst. A whole copy replaces dst; a part replaces those positions of dst.
LLAMA_API bool pkv_memory_copy(
        struct llama_context * ctx,
        llama_seq_id           src,
        llama_seq_id           dst,
        llama_pos              p0,
        llama_pos              p1);

// Removes every sequence but one.
LLAMA_API bool pkv_memory_keep(struct llama_context * ctx, llama_seq_id seq);

// Adds delta to positions; keys are rotated before the next decode or state access.
LLAMA_API bool pkv_memory_shift(
        struct llama_context * ctx,
        llama_seq_id           seq,
        llama_pos              p0,
        llama_pos              p1,
        llama_pos              delta);

// Divides positions by d > 1.
LLAMA_API bool pkv_memory_divide(struct llama_context * ctx, llama_seq_id seq, llama_pos p0, llama_pos p1, int32_t d);

// Empties the memory; data: the buffers are zeroed as well.
LLAMA_API bool pkv_memory_clear(struct llama_context * ctx, bool data);

// Carries out whatever is still queued (key shifts, scrubbing) now instead of before the next decode.
LLAMA_API bool pkv_memory_sync(struct llama_context * ctx);

//
// Scrubbing: what happens to the data of cells that no sequence owns any more.
//

enum pkv_scrub {
    PKV_SCRUB_LAZY  = 0, // zeroed before the next graph that could read it
    PKV_SCRUB_EAGER = 1, // zeroed before the removing call returns, in every shard
};

LLAMA_API bool           pkv_set_scrub(struct llama_context * ctx, enum pkv_scrub mode);
LLAMA_API enum pkv_scrub pkv_get_scrub(const struct llama_context * ctx);

// Zeroes every free cell and free recurrent state now, dirty or not. Bytes zeroed, or -1.
LLAMA_API int64_t pkv_memory_scrub(struct llama_context * ctx);

// Audit: how many bytes of free cells and free recurrent states are not zero, or -1. Reads every free cell.
LLAMA_API int64_t pkv_memory_residue(struct llama_context * ctx);

//
// The router of a mixture of experts. Everything here refuses (false, -1, 0) where the model has no experts.
//

// llama_decode(): the routing of some sequences was NaN or infinite. What the batch added to them was taken out of the memory
// (a sequence that cannot go back was emptied: see its positions), the rest of the batch was decoded and has its outputs, at the
// places that they have in the batch. pkv_router_faults() tells which.
#define PKV_NON_FINITE -4

enum pkv_router_guard {
    PKV_GUARD_AUTO = 0, // on where experts are chosen on the CPU; elsewhere looking would mean waiting for the device
    PKV_GUARD_ON   = 1,
    PKV_GUARD_OFF  = 2,
};

LLAMA_API bool           pkv_set_router_guard(struct llama_context * ctx, enum pkv_router_guard mode);
LLAMA_API enum pkv_router_guard pkv_get_router_guard(struct llama_context * ctx);

struct pkv_router_fault {
    llama_seq_id seq;
    llama_pos    pos;   // the first token
    int32_t      layer; // the first layer; -1: in the input, or in what the sequence held before
};

// What the last decode of this context took out, one fault a sequence. Returns how many; writes up to n to dst.
LLAMA_API int32_t pkv_router_faults(struct llama_context * ctx, struct pkv_router_fault * dst, int32_t n);

// Router rows: which experts each token went to, and with what weights, kept beside its cell. Off by default: no cost. Switching
// them off forgets them. They follow copies and shifts and go with the cell; llama_state_*() does not save them, these do.
LLAMA_API bool pkv_set_router(struct llama_context * ctx, bool on);
LLAMA_API bool pkv_get_router(struct llama_context * ctx);

// The rows of a sequence, by position. Returns the size in bytes, or -1; writes to dst where `size` is enough. Layout:
//   uint32_t magic ("PKVR"), version (1), n_tokens, n_calls, n_used, n_expert
//   int32_t  layer[n_calls]                          calls of the router, one after the other; a layer can have two
//   int32_t  pos[n_tokens]
//   float    weights[n_tokens][n_calls][n_used]
//   int16_t  ids    [n_tokens][n_calls][n_used]      -1: no choice (decoded before rows were kept; a last layer computes only
//                                                    the tokens whose output was asked for)
LLAMA_API int64_t pkv_router_get(struct llama_context * ctx, llama_seq_id seq, uint8_t * dst, size_t size);

// Gives rows that pkv_router_get() returned to the tokens of a sequence that was restored, by position.
LLAMA_API bool pkv_router_set(struct llama_context * ctx, llama_seq_id seq, const uint8_t * src, size_t size);

#ifdef __cplusplus
}
#endif
