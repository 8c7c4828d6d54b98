// The data behind the cells of a recurrent memory: one state a sequence, and its rollback snapshots.
#pragma once

#include "llama.h"

#include <cstddef>

class  llama_memory_recurrent;
struct llama_ubatch;

// Gives seq a state of its own where it shares one with others, snapshots included. The caller has synchronized.
void pkv_own_state(llama_memory_recurrent & rs, llama_seq_id seq);

// Moves the states of the ubatch that find_slot() has just placed, and of the sequences that it pushes aside, to their new
// rows now. The graph would do it layer by layer, and one that is aborted half way leaves every pushed sequence half moved.
// Does nothing where nobody is pushed aside. The caller has synchronized.
void pkv_move_states(llama_memory_recurrent & rs, const llama_ubatch & ubatch);

// Zeroes the states of free cells, in every snapshot plane. Returns the bytes zeroed. The caller has synchronized.
size_t pkv_scrub_states(llama_memory_recurrent & rs);

// Bytes of free states that are not zero. The caller has synchronized.
size_t pkv_residue_states(const llama_memory_recurrent & rs);
