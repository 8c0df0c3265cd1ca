#include "worker_proc/cpu/attention_items.h"

#include <algorithm>
#include <numeric>

#include "worker_proc/runner/scratch.h"

namespace flotilla::cpu {
namespace {

constexpr uint32_t kMaxItemRows = 48;

// Tokens whose rows fill whole tiles of kAttentionRows.
uint32_t TileTokens(uint32_t group) { return kAttentionRows / std::gcd(kAttentionRows, group); }

// Keys that the query tokens [begin, end) see in all, the first of the sequence seeing first_len
// and none more than `most`.
uint64_t Cost(uint64_t first_len, uint64_t begin, uint64_t end, uint64_t most) {
  // From the token `full` on all see `most`.
  const uint64_t full = std::clamp(most > first_len ? most - first_len : 0, begin, end);
  return (full - begin) * (2 * first_len + begin + full - 1) / 2 + (end - full) * most;
}

}  // namespace

uint32_t MaxItemTokens(uint32_t group) {
  const uint32_t tile = TileTokens(group);
  return std::max(1u, std::max(tile, kMaxItemRows / group / tile * tile));
}

void MakeAttentionItems(const AttentionWork& work, std::vector<AttentionItem>* items) {
  items->clear();
  const auto first_len = [&](uint32_t s) {
    return uint64_t{work.kv_lens[s]} - (work.cu_q_lens[s + 1] - work.cu_q_lens[s]) + 1;
  };
  const uint64_t most = work.window == 0 ? UINT64_MAX / 2 : work.window;
  uint64_t total = 0;
  for (uint32_t s = 0; s < work.num_seqs; ++s) {
    total += Cost(first_len(s), 0, work.cu_q_lens[s + 1] - work.cu_q_lens[s], most);
  }
  const uint64_t target = total * work.num_kv_heads / work.num_pieces + 1;
  const uint32_t tile = TileTokens(work.group);
  for (uint32_t s = 0; s < work.num_seqs; ++s) {
    const uint32_t q_len = work.cu_q_lens[s + 1] - work.cu_q_lens[s];
    for (uint32_t begin = 0; begin < q_len;) {
      uint32_t end = std::min(q_len, begin + tile);
      while (end < q_len && end - begin < MaxItemTokens(work.group) &&
             Cost(first_len(s), begin, end, most) < target) {
        end = std::min(q_len, end + tile);
      }
      for (uint32_t h = 0; h < work.num_kv_heads; ++h) items->push_back({s, h, begin, end});
      begin = end;
    }
  }
  const auto cost = [&](const AttentionItem& item) {
    return Cost(first_len(item.seq), item.token_begin, item.token_end, most);
  };
  std::sort(items->begin(), items->end(),
            [&](const AttentionItem& a, const AttentionItem& b) { return cost(a) > cost(b); });
}

// Only a sequence's last item has fewer tokens than a tile.
void StepAttentionItems::MakeRoom(uint32_t num_tokens, uint32_t num_seqs) {
  for (Kind& kind : kinds_) {
    const size_t most = num_tokens / TileTokens(kind.group) + num_seqs;
    flotilla::MakeRoom(most * kind.num_kv_heads, &kind.items);
  }
}

const std::vector<AttentionItem>& StepAttentionItems::For(const AttentionWork& work) {
  for (size_t i = 0; i < used_; ++i) {
    const Kind& kind = kinds_[i];
    if (kind.num_kv_heads == work.num_kv_heads && kind.group == work.group &&
        kind.window == work.window) {
      return kind.items;
    }
  }
  if (used_ == kinds_.size()) kinds_.emplace_back();
  Kind& kind = kinds_[used_++];
  kind.num_kv_heads = work.num_kv_heads;
  kind.group = work.group;
  kind.window = work.window;
  MakeAttentionItems(work, &kind.items);
  return kind.items;
}

}  // namespace flotilla::cpu
