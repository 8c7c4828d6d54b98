// What happens after a token was routed by NaN.
//
// Which sequence caused it cannot be read off the result: with the keys of one sequence, every sequence that attends over
// them is NaN from the same layer on. So all sequences that are damaged are taken out and decoded again, one after the other.
// The one that is NaN on its own is the cause. It stays out; the others never meet it.
#include "pkv-router.h"

#include "pkv-access.h"
#include "pkv-edit.h"
#include "pkv-reason.h"
#include "pkv-router-groups.h"
#include "pkv-router-poison.h"
#include "pkv-rules.h"
#include "pkv-shards.h"

#include "llama-batch.h"
#include "llama-context.h"
#include "llama-impl.h"
#include "llama-memory-recurrent.h"
#include "llama-model.h"

#include <algorithm>
#include <cstring>
#include <set>

// A state that has taken NaN in can mostly not be taken back, nor a window that has moved on, so that the neighbours of the
// sequence could not be decoded again. The one way in that can be watched beforehand is the batch itself.
bool pkv_router::admit(llama_context & ctx, const llama_batch_ext & batch) {
    pkv_router * r = ctx.pkv_moe.get();
    if (!r || r->recovering) {
        return true;
    }

    r->cur = {};
    r->faults.clear();

    auto * mem = ctx.get_memory();
    if (batch.n_embd == 0 || !mem || r->guard == PKV_GUARD_OFF) {
        return true;
    }
    const pkv_shards shards(*mem);
    if (!shards.rs && !shards.dsv4 && shards.windows.empty()) {
        return true; // goes back to anywhere; the layers will tell more than the input does
    }

    r->cur.bad.resize(batch.tokens.size());

    bool res = true;
    for (size_t i = 0; i < batch.tokens.size(); ++i) {
        const auto & t = batch.tokens[i];
        if (t.has_embd && !pkv_is_finite(batch.embd.data() + t.embd_off, batch.n_embd)) {
            r->cur.bad[i] = 1;
            for (const llama_seq_id s : t.seq_ids) {
                r->faults.push_back({ s, t.pos[0], -1 });
            }
            res = false;
        }
    }

    return res;
}

struct pkv_router::recovery {
    llama_context &         ctx;
    const llama_batch_ext & batch;
    pkv_router &            r;
    llama_memory_i &        mem;

    // the outputs that are right, by index in the batch
    struct output {
        std::vector<float> logits;
        std::vector<float> embd;
    };

    std::map<int32_t, output>                  outputs;
    std::map<llama_seq_id, std::vector<float>> pooled;

    using group = pkv_router_group;

    std::vector<group> groups;

    std::vector<pkv_router_fault> found;

    // sequences that held poison before the batch
    std::set<llama_seq_id> gone;
    bool                   searched = false;

    int code = PKV_NON_FINITE;

    recovery(llama_context & ctx, const llama_batch_ext & batch, pkv_router & r)
        : ctx(ctx), batch(batch), r(r), mem(*ctx.memory) {}

    // can the sequences go back to where the batch found them?
    bool can_undo(const group & g) {
        for (const auto & [s, p] : g.from) {
            if (!pkv_begins_at(mem, s, p) && !pkv_may_remove(mem, s, p, -1, true)) {
                return false;
            }
        }
        return true;
    }

    void take_back(llama_seq_id s, llama_pos p) {
        pkv_edit edit(&mem);
        pkv_take_back(mem, s, p);
    }

    void undo(const group & g) {
        for (const auto & [s, p] : g.from) {
            if (mem.seq_pos_max(s) >= p) {
                take_back(s, p);
            }
        }
        for (int32_t i = 0; i < (int32_t) batch.tokens.size(); ++i) {
            if (g.from.count(*batch.tokens[i].seq_ids.begin())) {
                outputs.erase(i);
            }
        }
    }

    // What was there before the batch and is not finite (an overflow, a damaged state) damages the rest as well. Reads all of the
    // memory: only where the batch itself does not explain what happened.
    bool remove_live_poison() {
        if (searched) {
            return false;
        }
        searched = true;

        ctx.synchronize();
        const auto poison = pkv_find_poison(pkv_shards(mem));
        for (const auto & [s, p] : poison) {
            found.push_back({ s, p, -1 });
            take_back(s, p);
            gone.insert(s);
        }

        return !poison.empty();
    }

    bool is_gone(const group & g) const {
        return std::any_of(g.from.begin(), g.from.end(), [&](const auto & f) { return gone.count(f.first) > 0; });
    }

    // the outputs of the batch that was just decoded, whole or in part; to: batch indices
    void collect(const std::vector<int32_t> & rows, const std::vector<int32_t> & to) {
        ctx.synchronize();

        const size_t n_vocab = ctx.model.vocab.n_tokens();
        const size_t n_embd  = ctx.model.hparams.n_embd_out();

        for (size_t k = 0; k < to.size(); ++k) {
            if (rows[k] < 0) {
                continue;
            }
            auto & o = outputs[to[k]];
            if (ctx.logits.data) {
                o.logits.assign(ctx.logits.data + rows[k]*n_vocab, ctx.logits.data + (rows[k] + 1)*n_vocab);
            }
            if (ctx.embd.data && ctx.cparams.pooling_type == LLAMA_POOLING_TYPE_NONE) {
                o.embd.assign(ctx.embd.data + rows[k]*n_embd, ctx.embd.data + (rows[k] + 1)*n_embd);
            }
        }
        for (const auto & [s, e] : ctx.embd_seq) {
            pooled[s] = e;
        }
    }

    void collect_first() {
        if (r.cur.done.empty()) {
            return;
        }
        const auto & ids = ctx.balloc->get_out_ids();

        std::vector<int32_t> rows, to;
        for (int64_t k = 0; k < r.cur.n_outputs && k < (int64_t) ids.size(); ++k) {
            rows.push_back(k);
            to.push_back(ids[k]);
        }
        collect(rows, to);
    }

    // the first n of the tokens that are to be decoded again
    int decode_first(const group & g, size_t n) {
        llama_batch_ext sub(&ctx);
        sub.n_embd = batch.n_embd;
        for (size_t k = 0; k < n; ++k) {
            auto t = batch.tokens[g.todo[k]];
            if (t.has_embd) {
                const float * src = batch.embd.data() + t.embd_off;
                t.embd_off = sub.embd.size();
                sub.embd.insert(sub.embd.end(), src, src + batch.n_embd);
            }
            sub.tokens.push_back(t);
        }

        return ctx.decode(sub);
    }

    void decode(const group & g) {
        if (is_gone(g) || code != PKV_NON_FINITE) {
            undo(g);
            return;
        }

        const int ret = decode_first(g, g.todo.size());
        if (ret == 0) {
            ctx.output_reorder();
            collect(ctx.output_ids, g.todo);
            return;
        }

        LLAMA_LOG_WARN("%s: the rest of a batch failed with %d\n", __func__, ret);
        if (ret == 2) {
            code = 2;
        }

        const bool back = can_undo(g);
        undo(g);
        if (ret == PKV_NON_FINITE) {
            if (bad_input(g) < 0 && back && is_whole(g) && remove_live_poison()) {
                r.faults.clear();
                decode(g);
            } else {
                blame(g, back);
            }
        }
    }

    // nothing of the group was kept from before the failure
    bool is_whole(const group & g) const {
        return std::all_of(g.from.begin(), g.from.end(), [&](const auto & f) {
            return std::any_of(g.todo.begin(), g.todo.end(), [&](int32_t i) {
                return batch.tokens[i].seq_ids.count(f.first) && batch.tokens[i].pos[0] == f.second;
            });
        });
    }

    // the first token whose embedding is not finite, or -1
    int32_t bad_input(const group & g) const {
        for (const int32_t i : g.todo) {
            const auto & t = batch.tokens[i];
            if (t.has_embd && !pkv_is_finite(batch.embd.data() + t.embd_off, batch.n_embd)) {
                return i;
            }
        }
        return -1;
    }

    // The first layer that saw it, and the token. back: the memory is as before the batch, so that parts of it can be tried.
    void blame(const group & g, bool back) {
        pkv_router_fault f = { g.from.begin()->first, g.from.begin()->second, -1 };

        const auto seen = r.faults;
        for (const auto & s : seen) {
            if (g.from.count(s.seq) && (f.layer < 0 || s.layer < f.layer)) {
                f = s;
            }
        }
        const int32_t i = find_culprit(g, back);
        if (i >= 0) {
            f.pos = batch.tokens[i].pos[0];
        }
        for (const auto & [s, p] : g.from) {
            f.seq = s;
            found.push_back(f);
        }
        r.faults.clear();
    }

    // The token that is NaN on its own, or -1. Without flash attention those before it are NaN as well: they attend over its key,
    // masked.
    int32_t find_culprit(const group & g, bool back) {
        const int32_t i = bad_input(g);
        if (i >= 0 || !back || !is_whole(g)) {
            return i;
        }

        size_t good = 0;
        size_t bad  = g.todo.size();
        while (bad - good > 1) {
            const size_t mid = (good + bad)/2;
            const int    ret = decode_first(g, mid);
            undo(g);
            if (ret != 0 && ret != PKV_NON_FINITE) {
                return -1;
            }
            (ret == 0 ? good : bad) = mid;
        }

        return g.todo[bad - 1];
    }

    void publish() {
        const size_t n_vocab = ctx.model.vocab.n_tokens();
        const size_t n_embd  = ctx.model.hparams.n_embd_out();

        ctx.output_swaps.clear();
        if (ctx.output_reserve(outputs.size()) < outputs.size()) {
            return;
        }

        int32_t row = 0;
        for (const auto & [i, o] : outputs) {
            if (ctx.logits.data && !o.logits.empty()) {
                memcpy(ctx.logits.data + row*n_vocab, o.logits.data(), n_vocab*sizeof(float));
            }
            if (ctx.embd.data && !o.embd.empty()) {
                memcpy(ctx.embd.data + row*n_embd, o.embd.data(), n_embd*sizeof(float));
            }
            ctx.output_ids[i] = row++;
        }
        ctx.n_outputs = row;
        ctx.embd_seq  = pooled;
    }

    int run() {
        collect_first();
        groups = pkv_router_groups(batch, r.cur.done, r.cur.bad);

        const bool entered = !r.cur.done.empty(); // else nothing of the batch is in the memory

        // as seen from the batch as a whole
        const auto first = r.faults;

        std::vector<group> damaged;
        for (auto & g : groups) {
            if (!g.bad) {
                continue;
            }
            const bool back = can_undo(g);
            undo(g);
            for (const auto & [s, p] : g.from) {
                pooled.erase(s);
            }
            if (back && entered) {
                damaged.push_back(g);
            } else {
                r.faults = first;
                blame(g, !entered); // the cause, or emptied because its state cannot go back
            }
        }

        groups.erase(std::remove_if(groups.begin(), groups.end(), [](const group & g) { return g.bad || g.todo.empty(); }),
                groups.end());

        const bool explained = !entered || std::any_of(damaged.begin(), damaged.end(), [&](const group & g) {
            return bad_input(g) >= 0;
        });
        if ((explained || !remove_live_poison()) && damaged.size() == 1) {
            // nobody else can have damaged it
            r.faults = first;
            blame(damaged[0], true);
            damaged.clear();
        }
        groups.insert(groups.end(), damaged.begin(), damaged.end());

        r.faults.clear();
        for (const auto & g : groups) {
            decode(g);
        }
        r.faults = found;

        publish();
        pkv_settle(ctx);

        return code;
    }
};

int pkv_router::recover(llama_context & ctx, const llama_batch_ext & batch) {
    pkv_router & r = *ctx.pkv_moe;
    if (r.recovering) {
        return PKV_NON_FINITE; // the first call knows what to do
    }

    r.recovering = true;
    int res;
    try {
        res = recovery(ctx, batch, r).run();
    } catch (...) {
        r.recovering = false;
        throw;
    }
    r.recovering = false;

    // one fault a sequence: the lowest layer, there the first token
    std::stable_sort(r.faults.begin(), r.faults.end(), [](const pkv_router_fault & a, const pkv_router_fault & b) {
        return a.seq != b.seq ? a.seq < b.seq : a.layer != b.layer ? a.layer < b.layer : a.pos < b.pos;
    });
    r.faults.erase(std::unique(r.faults.begin(), r.faults.end(), [](const pkv_router_fault & a, const pkv_router_fault & b) {
        return a.seq == b.seq;
    }), r.faults.end());

    if (!r.faults.empty()) {
        const auto & f = r.faults[0];
        if (f.layer < 0) {
            pkv_refuse("sequence %d is not finite at position %d (%zu sequences in all); from there on it was taken out, the rest "
                    "of the batch was decoded", f.seq, f.pos, r.faults.size());
        } else {
            pkv_refuse("sequence %d: the routing in layer %d is not finite at position %d (%zu sequences in all); what the batch "
                    "added to it was taken out, the rest of the batch was decoded", f.seq, f.layer, f.pos, r.faults.size());
        }
    }

    return res;
}
