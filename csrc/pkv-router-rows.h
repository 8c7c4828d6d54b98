// Router rows: for each cell of the attention cache, what the router chose for the token in it, in every layer with experts.
//
// A cell that several sequences share has one row; a copy into another stream copies the row; a shift moves neither; a cell
// that is freed loses its row. Of a memory with a sliding window it is the cell in the cache that forgets nothing.
#pragma once

#include "llama.h"

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

class llama_kv_cache;

struct pkv_rows {
    // a call of the router, one after the other through the layers; a layer can have two
    std::vector<int32_t> il;
    uint32_t             n_used = 0; // experts a token goes to, at most

    // The rows of a new cell, to be filled: [il.size()][n_used] each, -1 and 0 where a layer chose fewer or skipped the token.
    void add(uint32_t strm, uint32_t cell, int16_t ** ids, float ** weights);

    bool has (uint32_t strm, uint32_t cell) const;
    void drop(uint32_t strm, uint32_t cell);
    void copy(uint32_t sstrm, uint32_t src, uint32_t dstrm, uint32_t dst);
    void clear();

    // Rows of cells that were freed since the last scrub are gone.
    void expire(llama_kv_cache & kv);

    // The rows of a sequence, ordered by position, as bytes (see pyllamakv.h); set: into cells that are there. Throw.
    std::vector<uint8_t> get(llama_kv_cache & kv, llama_seq_id seq, uint32_t n_expert) const;
    void                 set(llama_kv_cache & kv, llama_seq_id seq, uint32_t n_expert, const uint8_t * data, size_t size);

private:
    struct stream {
        std::vector<bool>    has;
        std::vector<int16_t> ids;
        std::vector<float>   weights;
    };

    size_t n_row() const { return il.size() * n_used; }

    std::vector<stream> streams;
};
