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
struct llama_ubatch;
struct pkv_move;
class  llama_io_read_i;

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

// Removes what pkv_may_remove() has allowed. seq -1 is every sequence, in every kind of memory.
bool pkv_remove(llama_memory_i & mem, llama_seq_id seq, llama_pos p0, llama_pos p1);

// Copies what pkv_may_copy() has allowed, in place of what dst held there.
void pkv_copy(llama_memory_i & mem, llama_seq_id src, llama_seq_id dst, llama_pos p0, llama_pos p1);

// Removes every sequence but one, from every stream.
void pkv_keep(llama_memory_i & mem, llama_seq_id seq);

// Moves positions, if pkv_may_move() allows it. What seq shares with others in that range it gets a copy of first, so that
// theirs stay where they are.
void pkv_shift(llama_memory_i & mem, llama_seq_id seq, llama_pos p0, llama_pos p1, const pkv_move & move);

// Does seq hold nothing from before position p0, as far as its shards can tell?
bool pkv_begins_at(llama_memory_i & mem, llama_seq_id seq, llama_pos p0);

// Takes what a batch added to seq, from p0 on, out again. Where that would leave a hole or half a state, the sequence is emptied
// instead and the log says so. The caller stands inside an edit.
void pkv_take_back(llama_memory_i & mem, llama_seq_id seq, llama_pos p0);

// Takes the positions of a failed or aborted ubatch out again.
void pkv_undo(llama_memory_i & mem, const llama_ubatch & ubatch);

// Before a graph that can be aborted: the recurrent states that it would move for the ubatch's sake are moved now, so that
// those of other sequences are whole whatever happens.
void pkv_hold_states(llama_context & ctx, const llama_ubatch & ubatch);

// state_read() that leaves a sequence empty, in all shards, where it fails or the shards would disagree. Throws as it does.
void pkv_read_state(llama_memory_i & mem, llama_io_read_i & io, llama_seq_id seq, llama_state_seq_flags flags);

// Has a queued shift of positions not been applied to the keys?
bool pkv_has_shift(llama_context & ctx);

// Calls f at the end of the scope.
template <typename F>
struct pkv_finally {
    F f;

    ~pkv_finally() { f(); }
};

template <typename F>
pkv_finally(F) -> pkv_finally<F>;

size_t pkv_scrub_all  (llama_context & ctx);
size_t pkv_residue_all(llama_context & ctx);
