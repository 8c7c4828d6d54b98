// A memory is made of shards: attention caches, sliding windows, recurrent states, compressed rows. An edit concerns them
// all, so this is where a memory is taken apart, once, for everybody.
#pragma once

#include "llama.h"

#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

struct llama_memory_i;
class llama_kv_cache;
class llama_kv_cache_dsv4;
class llama_memory_recurrent;

// A sliding-window cache and the cache of the same tokens that forgets nothing. Where they differ, there is a hole.
struct pkv_window {
    llama_kv_cache * full;
    llama_kv_cache * swa;
};

// llama.h's convention for open ends, as a range with two ends: p0 < 0 is the start, p1 < 0 is everything above.
inline void pkv_close_range(llama_pos & p0, llama_pos & p1) {
    p0 = p0 < 0 ? 0 : p0;
    p1 = p1 < 0 ? std::numeric_limits<llama_pos>::max() : p1;
}

struct pkv_shards {
    std::vector<llama_kv_cache *> kv;      // attention caches whose rows are owned through cells
    std::vector<pkv_window>       windows; // those of them that must agree
    bool                          by_pos = false; // an indexer finds the cells of a sequence by their positions
    llama_memory_recurrent *      rs   = nullptr;
    llama_kv_cache_dsv4 *         dsv4 = nullptr; // its compressed rows have no cells, they follow the raw cache

    explicit pkv_shards(llama_memory_i & mem);

    // sequence ids are valid in [0, n_seq)
    uint32_t n_seq() const;

    // the ids that seq stands for, as a half open range: itself, or all for a negative one
    std::pair<llama_seq_id, llama_seq_id> ids(llama_seq_id seq) const;

    // positions present in the attention shards, or in the state where there is none; -1 when the sequence is empty
    llama_pos pos_min(llama_seq_id seq) const;
    llama_pos pos_max(llama_seq_id seq) const;

private:
    void add_window(llama_kv_cache * full, llama_kv_cache * swa);
};
