#include "worker_proc/cuda/attention_plan.h"

#include <algorithm>
#include <utility>

#include "common/base/check.h"

namespace flotilla::cuda {
namespace {

// The item of rows [row_begin, row_end) of sequence s, over all their keys.
AttentionItem WholeItem(const AttentionPlanInput& in, uint32_t s, uint32_t row_begin,
                        uint32_t row_end) {
  const uint32_t q_len = in.cu_q_lens[s + 1] - in.cu_q_lens[s];
  const auto keys_of = [&](uint32_t row) { return in.kv_lens[s] - q_len + row / in.group + 1; };
  const uint32_t first_end = keys_of(row_begin);
  const uint32_t first_key = in.window == 0 || first_end <= in.window ? 0 : first_end - in.window;
  return {.first_page = s * in.pages_per_seq,
          .first_token = in.cu_q_lens[s],
          .keys_before = in.kv_lens[s] - q_len,
          .row_begin = row_begin,
          .row_end = row_end,
          .split_begin = first_key / kSplitKeys,
          .split_end = CeilDiv(keys_of(row_end - 1), kSplitKeys)};
}

// `item` as items of up to so many splits each.
void ShareItem(const AttentionItem& item, uint32_t splits_an_item, uint32_t part_row,
               AttentionPlan* plan) {
  AttentionItem part = item;
  part.share = plan->num_shares++;
  part.share_parts = item.split_end - item.split_begin;
  part.share_items = CeilDiv(part.share_parts, splits_an_item);
  part.share_part_row = part.part_row = part_row;
  for (uint32_t split = item.split_begin; split < item.split_end; split += splits_an_item) {
    part.split_begin = split;
    part.split_end = std::min(split + splits_an_item, item.split_end);
    plan->items.push_back(part);
    part.part_row += (part.split_end - split) * (item.row_end - item.row_begin);
  }
}

// plan->order becomes the sequences, those of the most splits first: what begins last must not take
// longest. By counting.
void OrderSeqs(const AttentionPlanInput& in, AttentionPlan* plan) {
  const auto splits_of = [&](uint32_t s) { return CeilDiv(in.kv_lens[s], kSplitKeys); };
  plan->counts.assign(1, 0);  // of more splits than the index
  for (uint32_t s = 0; s < in.num_seqs; ++s) {
    if (splits_of(s) >= plan->counts.size()) plan->counts.resize(splits_of(s) + 1);
    ++plan->counts[splits_of(s)];
  }
  uint32_t before = 0;
  for (size_t splits = plan->counts.size(); splits-- > 0;) {
    before += std::exchange(plan->counts[splits], before);
  }
  plan->order.resize(in.num_seqs);
  for (uint32_t s = 0; s < in.num_seqs; ++s) plan->order[plan->counts[splits_of(s)]++] = s;
}

// Calls visit(item) for each tile of rows: those that see the most keys of a sequence first.
template <typename Visit>
void ForEachWholeItem(const AttentionPlanInput& in, const std::vector<uint32_t>& order,
                      const Visit& visit) {
  for (const uint32_t s : order) {
    const uint32_t rows = (in.cu_q_lens[s + 1] - in.cu_q_lens[s]) * in.group;
    for (uint32_t tile = CeilDiv(rows, in.item_rows); tile-- > 0;) {
      const uint32_t begin = tile * in.item_rows;
      visit(WholeItem(in, s, begin, std::min(rows, begin + in.item_rows)));
    }
  }
}

// How many tiles rows of `tokens` tokens of `seqs` sequences have at most: each sequence may begin
// anew, and no token has more of them than if it were alone.
uint32_t MaxTiles(uint32_t tokens, uint32_t seqs, uint32_t group, uint32_t item_rows) {
  return std::min(CeilDiv(tokens * group, item_rows) + seqs, tokens * CeilDiv(group, item_rows));
}

// With fewer tiles keys are shared: blocks differ in length, and their last round is the shorter
// the more rounds there are.
uint32_t MostToShare(const AttentionPlanInput& in) {
  const uint32_t rounds = in.item_rows > kNarrowItemRows ? 2 : 4;  // parts of many rows cost more
  return CeilDiv(rounds * in.parallel_blocks, in.num_kv_heads);
}

// Of a launch of fixed size, room for so many items that share keys, if there is any for their
// parts. With fewer sequences than such a launch is for, the others' tiles are room too.
uint32_t RoomToShare(const AttentionPlanInput& in, uint32_t seqs) {
  if (in.max_part_rows == 0 || seqs >= MostToShare(in)) return 0;
  const uint32_t one_round = CeilDiv(in.parallel_blocks, in.num_kv_heads);
  return std::clamp(4 * seqs, one_round, 4 * one_round);
}

// How many splits items get where keys are shared: rounds of blocks that all take as long as their
// splits, and a while to begin, should take as little time as they can.
uint32_t SplitsAnItem(const AttentionPlanInput& in, const std::vector<uint32_t>& splits) {
  constexpr uint32_t kOf[] = {1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128};
  constexpr uint32_t kSplitTime = 2;
  constexpr uint32_t kBeginTime = 1;
  uint32_t best = 1;
  uint64_t best_time = UINT64_MAX;
  for (const uint32_t n : kOf) {
    uint64_t blocks = 0;
    for (const uint32_t s : splits) blocks += CeilDiv(s, n) * in.num_kv_heads;
    const uint64_t rounds = (blocks + in.parallel_blocks - 1) / in.parallel_blocks;
    const uint64_t time = rounds * (n * kSplitTime + kBeginTime);
    if (time >= best_time) continue;
    best_time = time;
    best = n;
  }
  return best;
}

}  // namespace

void MakeAttentionPlan(const AttentionPlanInput& in, AttentionPlan* plan) {
  plan->items.clear();
  plan->num_shares = 0;
  plan->wide_items = plan->narrow_items = false;
  OrderSeqs(in, plan);
  plan->splits.clear();
  ForEachWholeItem(in, plan->order, [&](const AttentionItem& item) {
    const bool wide = item.row_end - item.row_begin > kNarrowItemRows;
    (wide ? plan->wide_items : plan->narrow_items) = true;
    plan->splits.push_back(item.split_end - item.split_begin);
  });
  const auto whole_items = static_cast<uint32_t>(plan->splits.size());
  const bool may_share = whole_items < MostToShare(in);
  const uint32_t splits_an_item = may_share ? SplitsAnItem(in, plan->splits) : 1;
  // How many items may be more than there are tiles.
  uint32_t spare_items = in.num_items == 0 ? UINT32_MAX : in.num_items - whole_items;
  uint32_t part_rows = 0;
  ForEachWholeItem(in, plan->order, [&](const AttentionItem& item) {
    const uint32_t splits = item.split_end - item.split_begin;
    const uint32_t parts = splits * (item.row_end - item.row_begin);
    const uint32_t more_items = CeilDiv(splits, splits_an_item) - 1;
    if (may_share && more_items > 0 && parts <= in.max_part_rows - part_rows &&
        more_items <= spare_items) {
      ShareItem(item, splits_an_item, part_rows, plan);
      part_rows += parts;
      spare_items -= more_items;
    } else {
      plan->items.push_back(item);
    }
  });
  if (in.num_items == 0) return;
  plan->narrow_items = true;  // of steps to come
  CHECK(plan->items.size() <= in.num_items);
  plan->items.resize(in.num_items);
}

uint32_t FixedItems(uint32_t tokens, uint32_t seqs, const AttentionPlanInput& input) {
  return MaxTiles(tokens, seqs, input.group, input.item_rows) + RoomToShare(input, seqs);
}

// A part row is of one item at least.
uint32_t MaxAttentionItems(const AttentionBounds& bounds) {
  return MaxTiles(bounds.max_tokens, bounds.max_seqs, bounds.group, bounds.item_rows) +
         bounds.max_part_rows;
}
uint32_t MaxAttentionShares(const AttentionBounds& bounds) {
  return std::min(MaxTiles(bounds.max_tokens, bounds.max_seqs, bounds.group, bounds.item_rows),
                  bounds.max_part_rows);
}

}  // namespace flotilla::cuda
