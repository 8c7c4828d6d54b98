// The data behind the cells of a recurrent memory: one state a sequence, and its rollback snapshots.
#pragma once

#include "llama.h"

#include <cstddef>
#include <vector>

struct ggml_tensor;
class  llama_memory_recurrent;
struct llama_ubatch;

// The tensors that hold one row a state.
std::vector<ggml_tensor *> pkv_state_tensors(const llama_memory_recurrent & rs);

// Is the state of seq that of other sequences too?
bool pkv_shares_state(const llama_memory_recurrent & rs, llama_seq_id seq);

// Gives seq a state of its own where it shares one with others, snapshots included. The caller has synchronized.
void pkv_own_state(llama_memory_recurrent & rs, llama_seq_id seq);

// Does the ubatch that find_slot() has just placed push the states of other sequences aside?
bool pkv_pushes_states(const llama_memory_recurrent & rs, const llama_ubatch & ubatch);

// Moves the states of the ubatch that find_slot() has just placed, and of the sequences that it pushes aside, to their new
// rows now. The graph would do it layer by layer, and one that is aborted half way leaves every pushed sequence half moved.
// The caller has synchronized.
void pkv_move_states(llama_memory_recurrent & rs);

// Zeroes the states of free cells, in every snapshot plane. Returns the bytes zeroed. The caller has synchronized.
size_t pkv_scrub_states(llama_memory_recurrent & rs);

// Bytes of free states that are not zero. The caller has synchronized.
size_t pkv_residue_states(const llama_memory_recurrent & rs);
