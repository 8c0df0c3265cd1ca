// Ragged paged attention (requirement 003): prefill, chunks and decodes in any mix. By the tensor
// cores where the cache's shape and type allow it (HasMmaKernel), else by the plain kernel.
//
// A sequence's query tokens are the last of its keys; a query sees the keys up to itself, or the
// last `window` of these.
//
// Work: an item is some query rows of one sequence and all query heads of one kv head, row = token
// * group + head, over keys of some splits. Splits begin at fixed positions, multiples of
// kSplitKeys. Within one the keys are walked in tiles from fixed positions too, with an online
// softmax; splits are merged in order. Items that share the keys of their rows keep each split's
// result as a part, and the one that is done last merges them: so shared or not, rows have the same
// bits, and a row's result depends on that row only.
//
// A step of one token may take it as it is projected (rotates, where CanRotate says so): then
// rope_kv.h's kernel is not run, each block norms and rotates the queries that it has, and those
// that have the token's own key do the same to that, write it to the cache and take it from there
// without reading it again. The same bits.
//
// Shapes: q [tokens, heads * qk_dim], rows q_stride apart, float; out [tokens, heads * v_dim] of
// any type; caches as in rope_kv.h, v_dim at most kMaxHeadDim. Parts: for each part row p and kv
// head h element p * num_kv_heads + h of part_max, part_sum and (of v_dim floats) part_out.
// Threads: the stream's. Errors: none. Source: "FlashAttention-2", arXiv 2307.08691 (online
// softmax); ours.
#pragma once

#include "worker_proc/cuda/kernels/rope_kv.h"

namespace flotilla::cuda {

inline constexpr uint32_t kItemRows = 8;         // of the plain kernel
inline constexpr uint32_t kNarrowItemRows = 16;  // of the tensor cores' for decodes
inline constexpr uint32_t kWideItemRows = 64;    // … and for prompts
inline constexpr uint32_t kSplitKeys = 128;      // whole tiles of all
inline constexpr uint32_t kMaxHeadDim = 256;
inline constexpr uint32_t kNoPart = UINT32_MAX;

// Decided by the cache alone: its rows must not come from two kernels.
inline constexpr bool HasMmaKernel(const KvPages& kv) {
  return kv.type != Element::kFloat32 && kv.qk_dim == kv.v_dim &&
         (kv.v_dim == 64 || kv.v_dim == 128 || kv.v_dim == 256);
}

inline constexpr bool CanRotate(const RopeKvArgs& rope, Element out_type) {
  return rope.tokens == 1 && rope.writes_kv && HasMmaKernel(rope.kv) &&
         rope.rope_dim == rope.kv.qk_dim && !rope.interleaved && out_type == rope.kv.type &&
         rope.num_heads <= rope.kv.num_kv_heads * kNarrowItemRows;
}

struct AttentionItem {
  uint32_t first_page = 0;   // where the sequence's page table begins in page_indices
  uint32_t first_token = 0;  // of the sequence's queries in the batch
  uint32_t keys_before = 0;  // the first of them
  uint32_t row_begin = 0;    // of the sequence's rows
  uint32_t row_end = 0;      // row_begin: nothing to do
  uint32_t split_begin = 0;
  uint32_t split_end = 0;
  // Where the splits' results are kept: split_begin + i's rows are
  // part_row + i * (row_end - row_begin) … kNoPart: no other item has these rows.
  uint32_t part_row = kNoPart;
  // Of all items of these rows:
  uint32_t share = 0;           // which of the counters is theirs
  uint32_t share_items = 0;     // how many they are
  uint32_t share_part_row = 0;  // their first part's
  uint32_t share_parts = 0;
};

struct AttentionArgs {
  KvPages kv;
  uint32_t num_heads = 0;  // a multiple of kv.num_kv_heads
  float scale = 0;
  float softcap = 0;    // 0: none
  uint32_t window = 0;  // 0: all
  const float* q = nullptr;
  uint32_t q_stride = 0;
  const uint32_t* page_indices = nullptr;
  const AttentionItem* items = nullptr;
  uint32_t num_items = 0;
  // Of the tensor cores' kernels: whether there are items of more rows than kNarrowItemRows,
  // others.
  bool wide_items = true;
  bool narrow_items = true;
  float* part_out = nullptr;
  float* part_max = nullptr;
  float* part_sum = nullptr;
  uint32_t* counters = nullptr;  // [shares, kv heads], zeros; zeros again afterwards
  void* out = nullptr;
  Element out_type = Element::kFloat32;
  bool rotates = false;
  RopeKvArgs rope = {};  // if it does: with the same qkv and cache
};

}  // namespace flotilla::cuda
