#include "pkv-router-rows.h"

#include "pkv-access.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>

static const uint32_t ROWS_MAGIC   = 0x52564b50; // "PKVR"
static const uint32_t ROWS_VERSION = 1;

//
// one row
//

void pkv_rows::add(uint32_t strm, uint32_t cell, int16_t ** ids, float ** weights) {
    if (streams.size() <= strm) {
        streams.resize(strm + 1);
    }

    auto & s = streams[strm];
    if (s.has.size() <= cell) {
        // in steps, since cells are taken one after the other
        const size_t n = std::max<size_t>(256, cell + 1 + cell/2);
        s.has    .resize(n);
        s.ids    .resize(n*n_row());
        s.weights.resize(n*n_row());
    }

    s.has[cell] = true;

    *ids     = s.ids.data()     + cell*n_row();
    *weights = s.weights.data() + cell*n_row();

    std::fill_n(*ids,     n_row(), (int16_t) -1);
    std::fill_n(*weights, n_row(), 0.0f);
}

bool pkv_rows::has(uint32_t strm, uint32_t cell) const {
    return strm < streams.size() && cell < streams[strm].has.size() && streams[strm].has[cell];
}

void pkv_rows::drop(uint32_t strm, uint32_t cell) {
    if (has(strm, cell)) {
        streams[strm].has[cell] = false;
    }
}

void pkv_rows::copy(uint32_t sstrm, uint32_t src, uint32_t dstrm, uint32_t dst) {
    if (!has(sstrm, src)) {
        drop(dstrm, dst);
        return;
    }

    int16_t * ids;
    float   * weights;
    add(dstrm, dst, &ids, &weights);

    const auto & s = streams[sstrm];
    std::copy_n(s.ids.data()     + src*n_row(), n_row(), ids);
    std::copy_n(s.weights.data() + src*n_row(), n_row(), weights);
}

void pkv_rows::clear() {
    streams.clear();
    il.clear();
    n_used = 0;
}

void pkv_rows::expire(llama_kv_cache & kv) {
    const auto & cells = pkv_access::cells(kv);

    for (uint32_t s = 0; s < streams.size() && s < cells.size(); ++s) {
        for (uint32_t i = 0; i < streams[s].has.size() && i < cells[s].size(); ++i) {
            if (cells[s].is_stale(i)) {
                streams[s].has[i] = false;
            }
        }
    }
}

//
// the rows of a sequence, as bytes
//

namespace {

struct rows_header {
    uint32_t magic    = ROWS_MAGIC;
    uint32_t version  = ROWS_VERSION;
    uint32_t n_tokens = 0;
    uint32_t n_calls  = 0;
    uint32_t n_used   = 0;
    uint32_t n_expert = 0;
};

// Header, layers I32 [n_calls], positions I32 [n_tokens], weights F32 and ids I16 [n_tokens][n_calls][n_used].
struct rows_layout {
    size_t layers, positions, weights, ids, end;

    explicit rows_layout(const rows_header & h) {
        const size_t n = (size_t) h.n_tokens * h.n_calls * h.n_used;

        layers    = sizeof(rows_header);
        positions = layers    + sizeof(int32_t) * h.n_calls;
        weights   = positions + sizeof(int32_t) * h.n_tokens;
        ids       = weights   + sizeof(float)   * n;
        end       = ids       + sizeof(int16_t) * n;
    }
};

} // namespace

std::vector<uint8_t> pkv_rows::get(llama_kv_cache & kv, llama_seq_id seq, uint32_t n_expert) const {
    const uint32_t strm = pkv_access::seq_to_stream(kv)[seq];
    const auto &   set  = pkv_access::cells(kv)[strm].seq_pos_get(seq);

    rows_header h;
    h.n_tokens = set.size();
    h.n_calls  = il.size();
    h.n_used   = n_used;
    h.n_expert = n_expert;

    const rows_layout at(h);
    std::vector<uint8_t> res(at.end);

    memcpy(res.data(), &h, sizeof(h));
    if (!il.empty()) {
        memcpy(res.data() + at.layers, il.data(), sizeof(int32_t)*il.size());
    }

    size_t t = 0;
    for (const auto & [pos, cell] : set) {
        const int32_t p = pos;
        memcpy(res.data() + at.positions + t*sizeof(p), &p, sizeof(p));

        uint8_t * weights = res.data() + at.weights + t*n_row()*sizeof(float);
        uint8_t * ids     = res.data() + at.ids     + t*n_row()*sizeof(int16_t);
        if (n_row() > 0 && has(strm, cell)) {
            memcpy(weights, streams[strm].weights.data() + cell*n_row(), n_row()*sizeof(float));
            memcpy(ids,     streams[strm].ids.data()     + cell*n_row(), n_row()*sizeof(int16_t));
        } else if (n_row() > 0) {
            memset(ids, 0xff, n_row()*sizeof(int16_t));
        }
        ++t;
    }

    return res;
}

void pkv_rows::set(llama_kv_cache & kv, llama_seq_id seq, uint32_t n_expert, const uint8_t * data, size_t size) {
    rows_header h;
    if (size < sizeof(h)) {
        throw std::runtime_error("these are not the bytes of router rows: too short");
    }
    memcpy(&h, data, sizeof(h));
    if (h.magic != ROWS_MAGIC || h.version != ROWS_VERSION) {
        throw std::runtime_error("these are not the bytes of router rows, or of another version");
    }
    // bounds first, so that nothing below overflows
    if (h.n_expert != n_expert || h.n_calls > 4096 || h.n_used > 4096 || h.n_tokens > size/sizeof(int32_t) ||
            (h.n_calls*h.n_used > 0 && h.n_tokens > size/(h.n_calls*h.n_used))) {
        throw std::runtime_error("the router rows are of another model, or damaged");
    }

    const rows_layout at(h);
    if (size != at.end) {
        throw std::runtime_error("the router rows are cut short");
    }

    std::vector<int32_t> layers(h.n_calls);
    if (h.n_calls > 0) {
        memcpy(layers.data(), data + at.layers, sizeof(int32_t)*h.n_calls);
    }
    if (il.empty()) {
        il     = layers;
        n_used = h.n_used;
    } else if (h.n_calls > 0 && (il != layers || n_used != h.n_used)) {
        throw std::runtime_error("the router rows are of a model with other layers");
    }

    for (size_t k = 0; k < h.n_tokens*(size_t) h.n_calls*h.n_used; ++k) {
        int16_t id;
        memcpy(&id, data + at.ids + k*sizeof(id), sizeof(id));
        if (id < -1 || id >= (int32_t) n_expert) {
            throw std::runtime_error("the router rows name an expert that does not exist");
        }
    }

    const uint32_t strm = pkv_access::seq_to_stream(kv)[seq];
    const auto &   cset = pkv_access::cells(kv)[strm].seq_pos_get(seq);

    // both sides are ordered by position; a position can have several cells (images), in the same order on both sides
    auto it = cset.begin();
    for (size_t t = 0; t < h.n_tokens; ++t) {
        int32_t pos;
        memcpy(&pos, data + at.positions + t*sizeof(pos), sizeof(pos));
        while (it != cset.end() && it->first < pos) {
            ++it;
        }
        if (it == cset.end()) {
            break;
        }
        if (it->first != pos || n_row() == 0 || h.n_calls == 0) {
            continue;
        }

        int16_t * ids;
        float   * weights;
        add(strm, it->second, &ids, &weights);
        memcpy(weights, data + at.weights + t*n_row()*sizeof(float),   n_row()*sizeof(float));
        memcpy(ids,     data + at.ids     + t*n_row()*sizeof(int16_t), n_row()*sizeof(int16_t));
        // decoded before rows were kept: it has none
        if (std::all_of(ids, ids + n_row(), [](int16_t id) { return id < 0; })) {
            drop(strm, it->second);
        }
        ++it;
    }
}
