// What stands around every edit of a memory and every access to its state.
//
// Upstream queues some of the work of an edit until the next decode. Whatever looks at the memory in between sees half of
// it. Here nothing stays queued that a later call could see: copies are carried out when the edit ends, key shifts before
// the state is read or written, and freed cells are scrubbed when the edit ends (eager) or before the next graph (lazy).
#pragma once

#include "llama.h"

#include <cstddef>

struct llama_context;
struct llama_memory_i;

// Lives for the length of one edit.
class pkv_edit {
public:
    explicit pkv_edit(llama_memory_i * mem);
    ~pkv_edit();

    pkv_edit(const pkv_edit &) = delete;
    pkv_edit & operator=(const pkv_edit &) = delete;

private:
    llama_memory_i * mem;
};

// Before a graph is built: scrubs what edits have freed. Costs one test when nothing was.
void pkv_settle(llama_context & ctx);

// Before the state of a sequence (or -1, all) is read or written: everything queued is carried out.
// Throws std::runtime_error when that fails or the id is out of range; the callers turn it into 0.
void pkv_sync_state(llama_context & ctx, llama_seq_id seq = -1);

// Takes the positions of a failed or aborted ubatch out again. Where they cannot be taken out without leaving a hole or half
// a state, the sequence is emptied instead and the log says so.
void pkv_undo(llama_memory_i & mem, llama_seq_id seq, llama_pos p0);

size_t pkv_scrub_all  (llama_context & ctx);
size_t pkv_residue_all(llama_context & ctx);
