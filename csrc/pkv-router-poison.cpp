#include "pkv-router-poison.h"

#include "pkv-access.h"
#include "pkv-shards.h"
#include "pkv-states.h"

#include "ggml-backend.h"
#include "llama-memory-recurrent.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

bool pkv_is_finite(const float * x, size_t n) {
    float sum = 0.0f;
    for (size_t i = 0; i < n; ++i) {
        sum += x[i] - x[i];
    }

    return sum == 0.0f;
}

// n_rows rows of n values each, in a buffer of the tensor's type: f(row, column) for each value that is not finite
template <typename F>
static void for_each_poison(ggml_type type, const std::vector<uint8_t> & buf, size_t n_rows, size_t n, F f) {
    const auto to_float = ggml_get_type_traits(type)->to_float;

    std::vector<float> x(n);
    for (size_t r = 0; r < n_rows; ++r) {
        const uint8_t * row = buf.data() + r*ggml_row_size(type, n);
        if (type == GGML_TYPE_F32) {
            memcpy(x.data(), row, n*sizeof(float));
        } else if (to_float) {
            to_float(row, x.data(), n);
        } else {
            return; // integers
        }
        for (size_t c = 0; c < n; ++c) {
            if (!std::isfinite(x[c])) {
                f(r, c);
            }
        }
    }
}

// marks the cells of [0, n) whose values are not finite
static void mark(const ggml_tensor * t, bool transposed, uint32_t n, std::vector<bool> & bad) {
    if (!t || n == 0) {
        return;
    }

    if (transposed) { // one element a cell in each of ne[0] rows of ne[1] cells
        const size_t size_el = ggml_type_size(t->type);

        std::vector<uint8_t> buf(n*size_el);
        for (int64_t r = 0; r < t->ne[0]; ++r) {
            ggml_backend_tensor_get(t, buf.data(), r*t->ne[1]*size_el, buf.size());
            for_each_poison(t->type, buf, 1, n, [&](size_t, size_t c) { bad[c] = true; });
        }
    } else {
        std::vector<uint8_t> buf(n*t->nb[1]);
        ggml_backend_tensor_get(t, buf.data(), 0, buf.size());
        for_each_poison(t->type, buf, n, t->ne[0], [&](size_t r, size_t) { bad[r] = true; });
    }
}

std::map<llama_seq_id, llama_pos> pkv_find_poison(const pkv_shards & shards) {
    std::map<llama_seq_id, llama_pos> res;

    const auto found = [&](llama_seq_id seq, llama_pos pos) {
        const auto it = res.emplace(seq, pos).first;
        it->second = std::min(it->second, pos);
    };

    for (auto * kv : shards.kv) {
        if (pkv_access::borrowed(*kv)) {
            continue;
        }
        for (uint32_t s = 0; s < pkv_access::cells(*kv).size(); ++s) {
            const auto &   cells = pkv_access::cells(*kv)[s];
            const uint32_t n     = cells.used_max_p1();

            std::vector<bool> bad(n, false);
            for (const auto & layer : pkv_access::layers(*kv)) {
                mark(layer.k_stream[s], false, n, bad);
                mark(layer.v_stream[s], pkv_access::v_trans(*kv), n, bad);
            }
            for (uint32_t i = 0; i < n; ++i) {
                for (llama_seq_id seq = 0; bad[i] && !cells.is_empty(i) && seq < LLAMA_MAX_SEQ; ++seq) {
                    if (cells.seq_has(i, seq)) {
                        found(seq, cells.pos_get(i));
                    }
                }
            }
        }
    }

    for (uint32_t i = 0; shards.rs && i < shards.rs->size; ++i) {
        const auto & cell = shards.rs->cells[i];
        if (cell.is_empty()) {
            continue;
        }
        bool bad = false;
        for (const ggml_tensor * t : pkv_state_tensors(*shards.rs)) {
            std::vector<uint8_t> buf(t->nb[1]);
            ggml_backend_tensor_get(t, buf.data(), i*t->nb[1], buf.size());
            for_each_poison(t->type, buf, 1, t->ne[0], [&](size_t, size_t) { bad = true; });
        }
        for (const llama_seq_id seq : cell.seq_id) {
            if (bad) {
                found(seq, 0);
            }
        }
    }

    return res;
}
