// How far a recurrent state can be taken back.
//
// With n_rs_seq > 0 a graph stores, beside the state after the last token of each sequence, the states some tokens back: plane
// k of a sequence's row holds the state k tokens ago. It writes only the planes that its own tokens reach, so a rollback can
// go no further than the last ubatch did. Upstream compares with n_rs_seq alone and reads planes of another time.
#pragma once

#include "llama.h"

#include <cstdint>
#include <vector>

class  llama_memory_recurrent;
struct llama_ubatch;

// One number a sequence: planes [1, depth] were written by the last ubatch of that sequence.
class pkv_planes {
public:
    // how many positions seq can still go back, when idx are taken back already and wait for the next graph
    uint32_t depth(llama_seq_id seq, uint32_t idx) const;

    void set(llama_seq_id seq, uint32_t depth);

    // positions [p0, p1) of a sequence that ends at last have moved: positions back are not tokens back any more
    void moved(llama_seq_id seq, llama_pos last, llama_pos p0, llama_pos p1);

    // A ubatch is about to be computed: it will leave the states after each of its tokens and the one before them.
    void note(const llama_ubatch & ubatch, uint32_t n_rs_seq);

private:
    std::vector<uint32_t> v;
};

// find_slot() has placed the ubatch: which planes will be valid after it, of its sequences and of those that it moves.
void pkv_note_planes(llama_memory_recurrent & rs, const llama_ubatch & ubatch);

// dst shares the row of src, so its rollback too
void pkv_share_planes(llama_memory_recurrent & rs, llama_seq_id src, llama_seq_id dst);
