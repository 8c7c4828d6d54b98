// Rows and columns of a cache tensor, wherever its buffer lies.
#pragma once

#include "ggml-backend.h"
#include "ggml.h"

#include <cstddef>
#include <cstdint>
#include <vector>

// A block of n_rows pieces of `size` bytes, `stride` apart, starting at `offset`.
struct pkv_block {
    size_t offset;
    size_t size;
    size_t n_rows = 1;
    size_t stride = 0;
};

void pkv_zero_block(ggml_tensor * t, const pkv_block & b);

// The blocks have the same shape and do not overlap.
void pkv_copy_block(ggml_tensor * src, const pkv_block & from, ggml_tensor * dst, const pkv_block & to);

// Slice j of the third dimension becomes a copy of slice i.
void pkv_copy_slice(ggml_tensor * t, int64_t i, int64_t j);

// Rows [i0, i0 + n_rows) of an F32 tensor, each in n_dst floats: the rest is zero where a row has fewer. Queued on the backend.
void pkv_get_rows(ggml_backend_t backend, const ggml_tensor * t, float * dst, int64_t i0, int64_t n_rows, int64_t n_dst);

// Bytes of the block that are not zero.
size_t pkv_count_nonzero(ggml_tensor * t, const pkv_block & b);
