#include "worker_proc/cuda/attention_plan.h"

#include <algorithm>

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

}  // namespace

void MakeAttentionPlan(const AttentionPlanInput& in, AttentionPlan* plan) {
  plan->items.clear();
  plan->merges.clear();
  const bool may_split = NumWholeItems(in) * in.num_kv_heads < in.parallel_blocks;
  uint32_t part_rows = 0;
  for (uint32_t s = 0; s < in.num_seqs; ++s) {
    const uint32_t rows = (in.cu_q_lens[s + 1] - in.cu_q_lens[s]) * in.group;
    for (uint32_t begin = 0; begin < rows; begin += kItemRows) {
      const AttentionItem item = WholeItem(in, s, begin, std::min(rows, begin + kItemRows));
      const uint32_t splits = item.split_end - item.split_begin;
      const uint32_t needed = splits * (item.row_end - item.row_begin);
      if (may_split && splits > 1 && needed <= in.max_part_rows - part_rows) {
        SplitItem(item, part_rows, plan);
        part_rows += needed;
      } else {
        plan->items.push_back(item);
      }
    }
  }
}

// Sequences may each begin an item anew; a part row is of one item at least.
uint32_t MaxAttentionItems(const AttentionBounds& bounds) {
  return CeilDiv(bounds.max_tokens * bounds.group, kItemRows) + bounds.max_seqs +
         bounds.max_part_rows;
}
uint32_t MaxAttentionMerges(const AttentionBounds& bounds) {
  return std::min(CeilDiv(bounds.max_tokens * bounds.group, kItemRows) + bounds.max_seqs,
                  bounds.max_part_rows);
}

}  // namespace flotilla::cuda
