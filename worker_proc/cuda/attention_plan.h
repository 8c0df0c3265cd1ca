// How a step's attention is shared by thread blocks: which rows and which splits of their keys an
// item has. What is computed does not depend on it (kernels/paged_attention.h), only how evenly the
// GPU is used: while there are few blocks beside what it runs at once, items of long rows get a
// share of their splits each, as far as there is room for parts. Long ones come first.
//
// Units: tokens, rows (token * group + head). Threads: any (pure). Errors: none. Source: ours.
#pragma once

#include <cstdint>
#include <vector>

#include "worker_proc/cuda/kernels/paged_attention.h"

namespace flotilla::cuda {

struct AttentionPlanInput {
  uint32_t num_seqs = 0;
  const uint32_t* cu_q_lens = nullptr;  // [num_seqs + 1]
  const uint32_t* kv_lens = nullptr;    // [num_seqs]
  uint32_t pages_per_seq = 0;           // as ForwardBatch's
  uint32_t num_kv_heads = 1;            // blocks an item
  uint32_t group = 1;                   // query heads a kv head
  uint32_t window = 0;                  // 0: all keys
  uint32_t parallel_blocks = 1;
  uint32_t max_part_rows = 0;
  // For a launch of fixed size: so many items there are exactly, the rest of them of no rows, and
  // keys are shared as far as that allows. 0: as many as it takes.
  uint32_t num_items = 0;
  uint32_t item_rows = kItemRows;  // at most
};

struct AttentionPlan {
  std::vector<AttentionItem> items;
  uint32_t num_shares = 0;                        // counters in use
  bool wide_items = false, narrow_items = false;  // as AttentionArgs has them
  std::vector<uint32_t> order, counts, splits;    // scratch
};

// The memory of *plan is used again.
void MakeAttentionPlan(const AttentionPlanInput& input, AttentionPlan* plan);

// Items of launches of fixed size for steps of up to so many tokens and sequences: one for every
// tile of rows, and some besides for where keys are shared.
uint32_t FixedItems(uint32_t tokens, uint32_t seqs, const AttentionPlanInput& input);

// Most items, and shares, that a step within these bounds has.
struct AttentionBounds {
  uint32_t max_tokens = 0;
  uint32_t max_seqs = 0;
  uint32_t group = 1;
  uint32_t max_part_rows = 0;
  uint32_t item_rows = kItemRows;
};
uint32_t MaxAttentionItems(const AttentionBounds& bounds);
uint32_t MaxAttentionShares(const AttentionBounds& bounds);

}  // namespace flotilla::cuda
