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

#ifdef __cplusplus
}
#endif
