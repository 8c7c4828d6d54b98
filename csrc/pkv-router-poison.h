// Looks for NaN and infinity in what a memory holds. Used after a failure only: it reads everything.
#pragma once

#include "llama.h"

#include <cstddef>
#include <map>

struct pkv_shards;

bool pkv_is_finite(const float * x, size_t n);

// The lowest position of each sequence whose keys, values or state (then 0) are not finite. The caller has synchronized.
std::map<llama_seq_id, llama_pos> pkv_find_poison(const pkv_shards & shards);
