// Who shares tokens of a batch with whom: such sequences can only be taken out, and decoded again, together.
#pragma once

#include "llama.h"

#include <cstdint>
#include <map>
#include <vector>

struct llama_batch_ext;

struct pkv_router_group {
    std::vector<int32_t>              todo; // batch indices of what is to be decoded: all, or what was not reached
    std::map<llama_seq_id, llama_pos> from; // where the batch continues each sequence

    bool bad = false;
};

// done: batch indices of the tokens that were computed; bad: by index, whether the token is not finite.
std::vector<pkv_router_group> pkv_router_groups(
        const llama_batch_ext      & batch,
        const std::vector<int32_t> & done,
        const std::vector<uint8_t> & bad);
