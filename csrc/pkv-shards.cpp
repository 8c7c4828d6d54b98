#include "pkv-shards.h"

#include "pkv-access.h"

#include "llama-kv-cache-dsa-iswa.h"
#include "llama-kv-cache-dsa.h"
#include "llama-kv-cache-dsv4.h"
#include "llama-kv-cache-iswa.h"
#include "llama-kv-cache-msa.h"
#include "llama-memory-hybrid-idx.h"
#include "llama-memory-hybrid-iswa.h"
#include "llama-memory-hybrid.h"
#include "llama-memory-recurrent.h"

#include <algorithm>

void pkv_shards::add_window(llama_kv_cache * full, llama_kv_cache * swa) {
    kv.push_back(full);
    kv.push_back(swa);
    windows.push_back({ full, swa });
}

pkv_shards::pkv_shards(llama_memory_i & mem) {
    if (auto * m = dynamic_cast<llama_kv_cache *>(&mem)) {
        kv.push_back(m);
    } else if (auto * m = dynamic_cast<llama_kv_cache_iswa *>(&mem)) {
        add_window(m->get_base(), m->get_swa());
    } else if (auto * m = dynamic_cast<llama_memory_recurrent *>(&mem)) {
        rs = m;
    } else if (auto * m = dynamic_cast<llama_memory_hybrid *>(&mem)) {
        kv.push_back(m->get_mem_attn());
        rs = m->get_mem_recr();
        // the indexer of hybrid-idx is a second cache over the same tokens
        if (auto * idx = dynamic_cast<llama_memory_hybrid_idx *>(&mem)) {
            if (idx->get_mem_idx()) {
                kv.push_back(idx->get_mem_idx());
            }
        }
    } else if (auto * m = dynamic_cast<llama_memory_hybrid_iswa *>(&mem)) {
        add_window(m->get_mem_attn()->get_base(), m->get_mem_attn()->get_swa());
        rs = m->get_mem_recr();
    } else if (auto * m = dynamic_cast<llama_kv_cache_dsa *>(&mem)) {
        kv.push_back(m->get_mla());
        kv.push_back(m->get_lid());
    } else if (auto * m = dynamic_cast<llama_kv_cache_dsa_iswa *>(&mem)) {
        add_window(m->get_dsa()->get_mla(), m->get_swa());
        kv.push_back(m->get_dsa()->get_lid());
    } else if (auto * m = dynamic_cast<llama_kv_cache_msa *>(&mem)) {
        kv.push_back(m->get_base());
        kv.push_back(m->get_idx());
        by_pos = true;
    } else if (auto * m = dynamic_cast<llama_kv_cache_dsv4 *>(&mem)) {
        add_window(m->get_raw()->get_base(), m->get_raw()->get_swa());
        dsv4 = m;
    }
}

uint32_t pkv_shards::n_seq() const {
    uint32_t res = LLAMA_MAX_SEQ;

    for (auto * c : kv) {
        // the one stream of a unified cache would take any id, a batch does not
        res = std::min(res, c->get_n_seq_max());
    }
    if (rs) {
        res = std::min(res, rs->size);
    }
    if (dsv4) {
        // the compressed state keeps one row block a sequence, also where the raw cells are shared
        res = std::min(res, (uint32_t) dsv4->get_rs_idx().size());
    }

    return res;
}

std::pair<llama_seq_id, llama_seq_id> pkv_shards::ids(llama_seq_id seq) const {
    return seq < 0 ? std::pair(0, (llama_seq_id) n_seq()) : std::pair(seq, seq + 1);
}

llama_pos pkv_shards::pos_min(llama_seq_id seq) const {
    return kv.empty() ? (rs ? rs->seq_pos_min(seq) : -1) : kv[0]->seq_pos_min(seq);
}

llama_pos pkv_shards::pos_max(llama_seq_id seq) const {
    return kv.empty() ? (rs ? rs->seq_pos_max(seq) : -1) : kv[0]->seq_pos_max(seq);
}
