// The data behind the cells of a recurrent memory: one state a sequence, and its rollback snapshots.
#pragma once

#include <cstddef>

class llama_memory_recurrent;

// Zeroes the states of free cells, in every snapshot plane. Returns the bytes zeroed. The caller has synchronized.
size_t pkv_scrub_states(llama_memory_recurrent & rs);

// Bytes of free states that are not zero. The caller has synchronized.
size_t pkv_residue_states(const llama_memory_recurrent & rs);
