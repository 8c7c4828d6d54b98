// Rotating the keys of shifted cells to their new positions.
#pragma once

#include "ggml.h"

class  llama_kv_cache;
class  llm_graph_result;
struct llama_context;

// The graph that rotates the keys of the cells whose position was shifted, and of no others: a key that is read back,
// rotated by zero and stored again would lose bits if the cache is quantized, and would be scaled once more by YaRN.
// nullptr: there is nothing to rotate.
ggml_cgraph * pkv_build_shift(const llama_kv_cache & kv, llm_graph_result * res, llama_context * lctx);
