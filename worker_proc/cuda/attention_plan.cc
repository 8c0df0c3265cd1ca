#include "worker_proc/cuda/attention_plan.h"

#include <algorithm>

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
  return {s, row_begin, row_end, first_key / kSplitKeys, CeilDiv(keys_of(row_end - 1), kSplitKeys)};
}

// `item` as items of one split each, and what merges them.
void SplitItem(const AttentionItem& item, uint32_t part_row, AttentionPlan* plan) {
  AttentionMerge merge = {item, item.split_end - item.split_begin};
  merge.item.part_row = part_row;
  plan->merges.push_back(merge);
  for (uint32_t split = item.split_begin; split < item.split_end; ++split) {
    plan->items.push_back({item.seq, item.row_begin, item.row_end, split, split + 1, part_row});
    part_row += item.row_end - item.row_begin;
  }
}

uint32_t NumWholeItems(const AttentionPlanInput& in) {
  uint32_t items = 0;
  for (uint32_t s = 0; s < in.num_seqs; ++s) {
    items += CeilDiv((in.cu_q_lens[s + 1] - in.cu_q_lens[s]) * in.group, kItemRows);
  }
  return items;
}

// How many tiles rows of `tokens` tokens of `seqs` sequences have at most: each may begin anew.
uint32_t MaxTiles(uint32_t tokens, uint32_t seqs, uint32_t group) {
  return CeilDiv(tokens * group, kItemRows) + seqs;
}

}  // namespace

void MakeAttentionPlan(const AttentionPlanInput& in, AttentionPlan* plan) {
  plan->items.clear();
  plan->merges.clear();
  const uint32_t whole_items = NumWholeItems(in);
  const bool may_split = whole_items * in.num_kv_heads < in.parallel_blocks;
  // How many items may be more than there are tiles.
  uint32_t spare_items = in.num_items == 0 ? UINT32_MAX : in.num_items - whole_items;
  uint32_t part_rows = 0;
  for (uint32_t s = 0; s < in.num_seqs; ++s) {
    const uint32_t rows = (in.cu_q_lens[s + 1] - in.cu_q_lens[s]) * in.group;
    for (uint32_t begin = 0; begin < rows; begin += kItemRows) {
      const AttentionItem item = WholeItem(in, s, begin, std::min(rows, begin + kItemRows));
      const uint32_t splits = item.split_end - item.split_begin;
      const uint32_t needed = splits * (item.row_end - item.row_begin);
      if (may_split && splits > 1 && needed <= in.max_part_rows - part_rows &&
          splits - 1 <= spare_items) {
        SplitItem(item, part_rows, plan);
        part_rows += needed;
        spare_items -= splits - 1;
      } else {
        plan->items.push_back(item);
      }
    }
  }
  if (in.num_items == 0) return;
  CHECK(plan->items.size() <= in.num_items && plan->merges.size() <= in.num_merges);
  plan->items.resize(in.num_items);
  plan->merges.resize(in.num_merges);
}

FixedAttention FixedAttentionOf(uint32_t tokens, uint32_t seqs, const AttentionPlanInput& input) {
  const uint32_t tiles = MaxTiles(tokens, seqs, input.group);
  return {tiles + CeilDiv(2 * input.parallel_blocks, input.num_kv_heads), tiles};
}

// A part row is of one item at least.
uint32_t MaxAttentionItems(const AttentionBounds& bounds) {
  return MaxTiles(bounds.max_tokens, bounds.max_seqs, bounds.group) + bounds.max_part_rows;
}
uint32_t MaxAttentionMerges(const AttentionBounds& bounds) {
  return std::min(MaxTiles(bounds.max_tokens, bounds.max_seqs, bounds.group), bounds.max_part_rows);
}

}  // namespace flotilla::cuda
