#include "pkv-planes.h"

#include "llama-batch.h"
#include "llama-memory-recurrent.h"

#include <algorithm>

uint32_t pkv_planes::depth(llama_seq_id seq, uint32_t idx) const {
    return (size_t) seq < v.size() && v[seq] > idx ? v[seq] - idx : 0;
}

void pkv_planes::set(llama_seq_id seq, uint32_t depth) {
    if ((size_t) seq >= v.size()) {
        v.resize(seq + 1, 0);
    }
    v[seq] = depth;
}

void pkv_planes::moved(llama_seq_id seq, llama_pos last, llama_pos p0, llama_pos p1) {
    // nothing changes where all that can be taken back has moved together, or none of it
    const llama_pos first = last - (llama_pos) depth(seq, 0);
    if (p0 < p1 && p0 <= last && p1 > first && (p0 > first || p1 <= last)) {
        set(seq, 0);
    }
}

void pkv_planes::note(const llama_ubatch & ubatch, uint32_t n_rs_seq) {
    for (uint32_t s = 0; s < ubatch.n_seqs_unq; ++s) {
        const llama_seq_id seq = ubatch.seq_id_unq[s];

        // tokens at the end of the sequence whose positions follow each other
        uint32_t  n_tokens = 0;
        llama_pos pos_next = -1;
        bool      is_gap   = false;
        for (uint32_t i = ubatch.n_tokens; i-- > 0; ) {
            const auto * ids = ubatch.seq_id[i];
            if (std::find(ids, ids + ubatch.n_seq_id[i], seq) == ids + ubatch.n_seq_id[i]) {
                continue;
            }
            if (n_tokens > 0 && ubatch.pos[i] != pos_next - 1) {
                is_gap = true;
                break;
            }
            pos_next = ubatch.pos[i];
            ++n_tokens;
        }

        // the state before the ubatch is one of them, if there is no gap on the way to it
        set(seq, n_tokens == 0 ? 0 : std::min(is_gap ? n_tokens - 1 : n_tokens, n_rs_seq));
    }
}

void pkv_note_planes(llama_memory_recurrent & rs, const llama_ubatch & ubatch) {
    if (rs.n_rs_seq == 0) {
        return;
    }

    for (uint32_t i = 0; i < rs.n; ++i) {
        const auto & cell = rs.cells[rs.head + i];

        if (i < ubatch.n_seqs) {
            // a state that becomes one for several sequences is that of the first
            const llama_seq_id * ids = ubatch.seq_id[i*ubatch.n_seq_tokens];
            for (const llama_seq_id seq : cell.seq_id) {
                rs.rs_idx[seq] = rs.rs_idx[ids[0]];
            }
            continue;
        }

        // the graph moves the current state of the others in the range, not what is behind it
        for (const llama_seq_id seq : cell.seq_id) {
            if (cell.src0 != (int32_t) (rs.head + i) || rs.rs_idx[seq] != 0) {
                rs.planes.set(seq, 0);
            }
        }
    }

    rs.planes.note(ubatch, rs.n_rs_seq);
}

void pkv_share_planes(llama_memory_recurrent & rs, llama_seq_id src, llama_seq_id dst) {
    rs.set_rs_idx(dst, rs.rs_idx[src]);
    rs.planes.set(dst, rs.planes.depth(src, 0));
}
