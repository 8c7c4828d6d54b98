// The data behind the cells of one attention cache: copying it between streams, zeroing it, looking at it.
// Nothing here assumes that a buffer is host memory.
#pragma once

#include "llama.h"

#include <cstddef>
#include <cstdint>
#include <vector>

class llama_kv_cache;

// Do two sequences live in different streams, so that a copy moves data?
bool pkv_crosses_streams(llama_kv_cache & kv, llama_seq_id src, llama_seq_id dst);

// Cells that a copy of [p0, p1) needs in the destination stream, and how many it may take there. 0 within one stream.
uint32_t pkv_copy_need(llama_kv_cache & kv, llama_seq_id src, llama_seq_id dst, llama_pos p0, llama_pos p1);
uint32_t pkv_copy_room(llama_kv_cache & kv, llama_seq_id src, llama_seq_id dst, llama_pos p0, llama_pos p1);

// Gives the cells of [p0, p1) to dst, in its own stream, and queues the copy of their data. A whole copy replaces what dst
// holds, a part replaces those positions. false: no room, nothing changed.
bool pkv_copy_cells(llama_kv_cache & kv, llama_seq_id src, llama_seq_id dst, llama_pos p0, llama_pos p1);

// The cells of [p0, p1) that seq shares with others, and the cells that are free beside them. p0 and p1 are closed.
std::vector<uint32_t> pkv_shared_cells(llama_kv_cache & kv, llama_seq_id seq, llama_pos p0, llama_pos p1);
uint32_t              pkv_free_cells  (llama_kv_cache & kv, llama_seq_id seq);

// Gives seq cells of its own for those that it shares in [p0, p1), in the same stream, and queues the copy of their data.
// The caller has made sure that there is room.
void pkv_part_cells(llama_kv_cache & kv, llama_seq_id seq, llama_pos p0, llama_pos p1);

bool pkv_has_copies(llama_kv_cache & kv);

// Carries out the queued copies. The caller has synchronized.
void pkv_run_copies(llama_kv_cache & kv);

// Zeroes free cells: those that were freed since the last time, or all. Returns the bytes zeroed.
// The caller has synchronized.
size_t pkv_scrub_cells(llama_kv_cache & kv, bool all);

// Bytes of free cells that are not zero. The caller has synchronized.
size_t pkv_residue_cells(llama_kv_cache & kv);
