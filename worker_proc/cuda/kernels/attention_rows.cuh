// The softmax of one query row while its keys are walked, as a warp holds it, how two such states
// of different keys become one, and how items that share rows merge what they have.
//
// Lane l holds the output's dimensions l, l + 32, …; max and sum are on every lane. A row that has
// seen no key has the maximum -inf and the sum 0. Threads: a warp. Errors: none.
#pragma once

#include <type_traits>

#include "worker_proc/cuda/kernels/paged_attention.h"
#include "worker_proc/cuda/kernels/platform.cuh"

namespace flotilla::cuda {

template <uint32_t kDims>  // of a lane
struct AttentionRow {
  float max = -INFINITY;
  float sum = 0;
  float out[kDims] = {};  // not divided by the sum yet
};

// `other`: keys behind those of `row`.
template <uint32_t kDims>
__device__ __forceinline__ void Merge(const AttentionRow<kDims>& other, AttentionRow<kDims>* row) {
  if (other.max == -INFINITY) return;
  const float max = fmaxf(row->max, other.max);
  const float before = FastExp(row->max - max);
  const float after = FastExp(other.max - max);
  row->max = max;
  row->sum = fmaf(other.sum, after, row->sum * before);
  for (uint32_t i = 0; i < kDims; ++i) {
    row->out[i] = fmaf(other.out[i], after, row->out[i] * before);
  }
}

// What a block has. Blocks of one item follow each other, so long items begin first.
__device__ __forceinline__ uint32_t ItemOf(const AttentionArgs& args) {
  return blockIdx.x / args.kv.num_kv_heads;
}
__device__ __forceinline__ uint32_t KvHeadOf(const AttentionArgs& args) {
  return blockIdx.x % args.kv.num_kv_heads;
}

// Where a row of a sequence lies in the batch.
struct RowPlace {
  uint32_t token;  // of the batch
  uint32_t head;   // query head
};
__device__ __forceinline__ RowPlace PlaceOf(const AttentionArgs& args, const AttentionItem& item,
                                            uint32_t row, uint32_t kv_head) {
  const uint32_t group = args.num_heads / args.kv.num_kv_heads;
  return {item.first_token + row / group, kv_head * group + row % group};
}

// The keys [begin, end) that a row or an item sees.
struct KeyRange {
  uint32_t begin;
  uint32_t end;
};

__device__ __forceinline__ KeyRange KeysOfRow(const AttentionArgs& args, const AttentionItem& item,
                                              uint32_t row) {
  const uint32_t token = row / (args.num_heads / args.kv.num_kv_heads);
  const uint32_t end = item.keys_before + token + 1;
  return {args.window == 0 || end <= args.window ? 0 : end - args.window, end};
}

// Of its splits. Rows see more and more keys, so the first and the last say what it needs.
__device__ __forceinline__ KeyRange KeysOfItem(const AttentionArgs& args,
                                               const AttentionItem& item) {
  const uint32_t begin = item.split_begin * kSplitKeys;
  const uint32_t end = item.split_end * kSplitKeys;
  const uint32_t first = KeysOfRow(args, item, item.row_begin).begin;
  const uint32_t last = KeysOfRow(args, item, item.row_end - 1).end;
  return {begin > first ? begin : first, end < last ? end : last};
}

template <typename Out, uint32_t kDims>
__device__ __forceinline__ void WriteOut(const AttentionArgs& args, const RowPlace& place,
                                         const AttentionRow<kDims>& row) {
  Out* const out = static_cast<Out*>(args.out) +
                   (static_cast<size_t>(place.token) * args.num_heads + place.head) * args.kv.v_dim;
  for (uint32_t i = 0; i < kDims; ++i) {
    const uint32_t d = i * kWarp + threadIdx.x % kWarp;
    if (d < args.kv.v_dim) out[d] = FromFloat<Out>(row.out[i] / row.sum);
  }
}

__device__ __forceinline__ size_t PartOf(const AttentionArgs& args, uint32_t part_row,
                                         uint32_t kv_head) {
  return static_cast<size_t>(part_row) * args.kv.num_kv_heads + kv_head;
}

template <uint32_t kDims>
__device__ __forceinline__ AttentionRow<kDims> ReadPart(const AttentionArgs& args, size_t part) {
  AttentionRow<kDims> row;
  row.max = LoadFresh(args.part_max + part);
  row.sum = LoadFresh(args.part_sum + part);
  for (uint32_t i = 0; i < kDims; ++i) {
    const uint32_t d = i * kWarp + threadIdx.x % kWarp;
    if (d < args.kv.v_dim) row.out[i] = LoadFresh(args.part_out + part * args.kv.v_dim + d);
  }
  return row;
}

// By the whole block, which has written its item's parts: if all other items of these rows have
// theirs too, they become the rows' output, a warp a row. is_last: of one element.
template <typename Out, uint32_t kDims>
__device__ __forceinline__ void FinishShare(const AttentionArgs& args, const AttentionItem& item,
                                            SharedSpan<uint32_t> is_last) {
  FenceDevice();
  __syncthreads();
  if (threadIdx.x == 0) {
    uint32_t* const counter = args.counters + item.share * args.kv.num_kv_heads + KvHeadOf(args);
    const bool last = atomicAdd(counter, 1u) + 1 == item.share_items;
    if (last) *counter = 0;
    is_last[0] = last ? 1 : 0;
  }
  __syncthreads();
  if (is_last[0] == 0) return;
  FenceDevice();
  const uint32_t rows = item.row_end - item.row_begin;
  for (uint32_t r = threadIdx.x / kWarp; r < rows; r += blockDim.x / kWarp) {
    AttentionRow<kDims> total;
    const auto read = [&](uint32_t i) {
      return ReadPart<kDims>(args,
                             PartOf(args, item.share_part_row + i * rows + r, KvHeadOf(args)));
    };
    constexpr uint32_t kAtOnce = 4;  // are on their way
    uint32_t i = 0;
    for (; i + kAtOnce <= item.share_parts; i += kAtOnce) {
      AttentionRow<kDims> parts[kAtOnce];
      for (uint32_t j = 0; j < kAtOnce; ++j) parts[j] = read(i + j);
      for (const AttentionRow<kDims>& part : parts) Merge(part, &total);
    }
    for (; i < item.share_parts; ++i) Merge(read(i), &total);
    WriteOut<Out>(args, PlaceOf(args, item, item.row_begin + r, KvHeadOf(args)), total);
  }
}

template <typename F>
void ForDims(uint32_t v_dim, const F& f) {
  if (v_dim <= kWarp) return f(std::integral_constant<uint32_t, 1>());
  if (v_dim <= 2 * kWarp) return f(std::integral_constant<uint32_t, 2>());
  if (v_dim <= 4 * kWarp) return f(std::integral_constant<uint32_t, 4>());
  f(std::integral_constant<uint32_t, kMaxHeadDim / kWarp>());
}

}  // namespace flotilla::cuda
