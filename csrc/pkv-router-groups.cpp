#include "pkv-router-groups.h"

#include "llama-batch.h"

#include <algorithm>
#include <set>

std::vector<pkv_router_group> pkv_router_groups(
        const llama_batch_ext      & batch,
        const std::vector<int32_t> & done,
        const std::vector<uint8_t> & bad) {
    std::vector<pkv_router_group> res;

    std::map<llama_seq_id, size_t> of;
    for (const auto & t : batch.tokens) {
        // groups that this token joins become one
        size_t id = res.size();
        for (const llama_seq_id s : t.seq_ids) {
            if (of.count(s)) {
                id = std::min(id, of[s]);
            }
        }
        if (id == res.size()) {
            res.emplace_back();
        }
        for (const llama_seq_id s : t.seq_ids) {
            if (of.count(s) && of[s] != id) {
                auto & other = res[of[s]];
                res[id].from.insert(other.from.begin(), other.from.end());
                other.from.clear();
                for (const auto & f : res[id].from) {
                    of[f.first] = id;
                }
            }
            of[s] = id;
            const auto it = res[id].from.emplace(s, t.pos[0]).first;
            it->second = std::min(it->second, t.pos[0]);
        }
    }

    const auto group_of = [&](int32_t i) -> pkv_router_group & {
        return res[of[*batch.tokens[i].seq_ids.begin()]];
    };

    const std::set<int32_t> computed(done.begin(), done.end());
    for (int32_t i = 0; i < (int32_t) batch.tokens.size(); ++i) {
        group_of(i).bad |= (size_t) i < bad.size() && bad[i];
    }
    for (int32_t i = 0; i < (int32_t) batch.tokens.size(); ++i) {
        if (group_of(i).bad || !computed.count(i)) {
            group_of(i).todo.push_back(i);
        }
    }

    res.erase(std::remove_if(res.begin(), res.end(), [](const pkv_router_group & g) { return g.from.empty(); }), res.end());

    return res;
}
