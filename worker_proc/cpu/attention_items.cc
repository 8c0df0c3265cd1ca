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

class ItemMaker {
 public:
  ItemMaker(const AttentionWork& work, AttentionItems* out)
      : work_(work), out_(*out), most_(work.window == 0 ? UINT64_MAX / 2 : work.window) {
    out_.items.clear();
    out_.merges.clear();
  }

  void Run() {
    uint64_t total = 0;
    for (uint32_t s = 0; s < work_.num_seqs; ++s) {
      total += Cost(FirstLen(s), 0, QueryLen(s), most_);
    }
    target_ = total * work_.num_kv_heads / work_.num_pieces + 1;
    for (uint32_t s = 0; s < work_.num_seqs; ++s) CutSequence(s);
    // Heads of a sequence stay together: their parts of a page lie side by side.
    const auto order = [&](const AttentionItem& a, const AttentionItem& b) {
      const uint64_t a_cost = ItemCost(a), b_cost = ItemCost(b);
      if (a_cost != b_cost) return a_cost > b_cost;
      if (a.seq != b.seq) return a.seq < b.seq;
      if (a.token_begin != b.token_begin) return a.token_begin < b.token_begin;
      return a.split != b.split ? a.split < b.split : a.kv_head < b.kv_head;
    };
    std::sort(out_.items.begin(), out_.items.end(), order);
  }

 private:
  uint32_t QueryLen(uint32_t s) const { return work_.cu_q_lens[s + 1] - work_.cu_q_lens[s]; }
  uint32_t FirstLen(uint32_t s) const { return work_.kv_lens[s] - QueryLen(s) + 1; }

  uint64_t ItemCost(const AttentionItem& item) const {
    const uint64_t first_len = FirstLen(item.seq);
    const uint64_t all = Cost(first_len, item.token_begin, item.token_end, most_);
    if (item.split == kAllSplits) return all;
    // Of a few neighbours the last one's keys stand for each one's.
    const uint64_t len = first_len + item.token_end - 1;
    const uint64_t begin = std::max<uint64_t>(
        uint64_t{item.split} * kSplitKeys, FirstKey(static_cast<uint32_t>(len) - 1, work_.window));
    const uint64_t end = std::min<uint64_t>((uint64_t{item.split} + 1) * kSplitKeys, len);
    return (end > begin ? end - begin : 0) * (item.token_end - item.token_begin);
  }

  void CutSequence(uint32_t s) {
    const uint32_t q_len = QueryLen(s), tile = TileTokens(work_.group);
    for (uint32_t begin = 0; begin < q_len;) {
      uint32_t end = std::min(q_len, begin + tile);
      if (Cost(FirstLen(s), begin, end, most_) <= target_ || !CutKeys(s, begin, end)) {
        while (end < q_len && end - begin < MaxItemTokens(work_.group) &&
               Cost(FirstLen(s), begin, end, most_) < target_) {
          end = std::min(q_len, end + tile);
        }
        for (uint32_t h = 0; h < work_.num_kv_heads; ++h) out_.items.push_back({s, h, begin, end});
      }
      begin = end;
    }
  }

  // False if there is but one split, or no memory for them.
  bool CutKeys(uint32_t s, uint32_t begin, uint32_t end) {
    const uint32_t first = FirstKey(FirstLen(s) - 1 + begin, work_.window) / kSplitKeys;
    const uint32_t last = (FirstLen(s) + end - 2) / kSplitKeys;
    const uint32_t parts = last - first + 1, rows = (end - begin) * work_.group;
    const uint64_t needed = uint64_t{parts} * rows * work_.num_kv_heads;
    if (parts == 1 || part_rows_ + needed > work_.max_part_rows) return false;
    for (uint32_t h = 0; h < work_.num_kv_heads; ++h) {
      out_.merges.push_back({{s, h, begin, end, kAllSplits, part_rows_}, parts});
      for (uint32_t split = first; split <= last; ++split, part_rows_ += rows) {
        out_.items.push_back({s, h, begin, end, split, part_rows_});
      }
    }
    return true;
  }

  const AttentionWork& work_;
  AttentionItems& out_;
  const uint64_t most_;
  uint64_t target_ = 0;
  uint32_t part_rows_ = 0;  // handed out
};

}  // namespace

uint32_t MaxItemTokens(uint32_t group) {
  const uint32_t tile = TileTokens(group);
  return std::max(1u, std::max(tile, kMaxItemRows / group / tile * tile));
}

void MakeAttentionItems(const AttentionWork& work, AttentionItems* out) {
  ItemMaker(work, out).Run();
}

// Only a sequence's last item has fewer tokens than a tile; a split has a row at least.
void StepAttentionItems::MakeRoom(uint32_t num_tokens, uint32_t num_seqs, uint32_t max_part_rows) {
  for (Kind& kind : kinds_) {
    const size_t most = num_tokens / TileTokens(kind.group) + num_seqs;
    flotilla::MakeRoom(most * kind.num_kv_heads + max_part_rows, &kind.items.items);
    flotilla::MakeRoom(max_part_rows, &kind.items.merges);
  }
}

const AttentionItems& StepAttentionItems::For(const AttentionWork& work) {
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
