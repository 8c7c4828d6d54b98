#include "pkv-tensor.h"

#include "llama-impl.h"

#include <algorithm>
#include <cstring>

// direct access only where the backend itself calls the buffer host memory
static uint8_t * host_data(ggml_tensor * t) {
    ggml_backend_buffer_t buf = t->view_src ? t->view_src->buffer : t->buffer;

    return buf && ggml_backend_buffer_is_host(buf) ? (uint8_t *) t->data : nullptr;
}

static size_t n_bytes(const pkv_block & b) {
    return b.size * b.n_rows;
}

static std::vector<uint8_t> read_block(ggml_tensor * t, const pkv_block & b) {
    std::vector<uint8_t> buf(n_bytes(b));
    if (b.n_rows == 1) {
        ggml_backend_tensor_get(t, buf.data(), b.offset, b.size);
    } else {
        ggml_backend_tensor_get_2d(t, buf.data(), b.offset, b.size, b.n_rows, b.stride, b.size);
    }
    return buf;
}

static void write_block(ggml_tensor * t, const pkv_block & b, const std::vector<uint8_t> & buf) {
    if (b.n_rows == 1) {
        ggml_backend_tensor_set(t, buf.data(), b.offset, b.size);
    } else {
        ggml_backend_tensor_set_2d(t, buf.data(), b.offset, b.size, b.n_rows, b.stride, b.size);
    }
}

void pkv_zero_block(ggml_tensor * t, const pkv_block & b) {
    if (n_bytes(b) == 0) {
        return;
    }

    if (uint8_t * data = host_data(t)) {
        for (size_t r = 0; r < b.n_rows; ++r) {
            memset(data + b.offset + r*b.stride, 0, b.size);
        }
    } else if (b.n_rows == 1) {
        // not every backend can memset a tensor, upstream's helper knows
        llama_clear_tensor_data(t, b.offset, b.size);
    } else {
        write_block(t, b, std::vector<uint8_t>(n_bytes(b), 0));
    }
}

void pkv_copy_block(ggml_tensor * src, const pkv_block & from, ggml_tensor * dst, const pkv_block & to) {
    if (n_bytes(from) == 0) {
        return;
    }

    const uint8_t * data_src = host_data(src);
    uint8_t *       data_dst = host_data(dst);

    if (data_src && data_dst) {
        for (size_t r = 0; r < from.n_rows; ++r) {
            memcpy(data_dst + to.offset + r*to.stride, data_src + from.offset + r*from.stride, from.size);
        }
    } else {
        write_block(dst, to, read_block(src, from));
    }
}

void pkv_copy_slice(ggml_tensor * t, int64_t i, int64_t j) {
    pkv_copy_block(t, { i*t->nb[2], t->nb[2] }, t, { j*t->nb[2], t->nb[2] });
}

void pkv_get_rows(ggml_backend_t backend, const ggml_tensor * t, float * dst, int64_t i0, int64_t n_rows, int64_t n_dst) {
    const size_t n_row = t->ne[0]*sizeof(float);

    if (t->ne[0] == n_dst) {
        ggml_backend_tensor_get_async(backend, t, dst, i0*n_row, n_rows*n_row);
        return;
    }

    std::fill(dst, dst + n_rows*n_dst, 0.0f);
    for (int64_t i = 0; i < n_rows; ++i) {
        ggml_backend_tensor_get_async(backend, t, dst + i*n_dst, (i0 + i)*n_row, std::min<size_t>(n_row, n_dst*sizeof(float)));
    }
}

size_t pkv_count_nonzero(ggml_tensor * t, const pkv_block & b) {
    const auto buf = read_block(t, b);

    return buf.size() - std::count(buf.begin(), buf.end(), (uint8_t) 0);
}
