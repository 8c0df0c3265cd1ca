// The second half of paged_attention.h: the parts of rows whose keys were shared by several blocks
// become their output.
#include "worker_proc/cuda/kernels/attention_rows.cuh"
#include "worker_proc/cuda/kernels/launchers.cuh"
#include "worker_proc/cuda/kernels/platform.cuh"

namespace flotilla::cuda::FLOTILLA_PLATFORM {
namespace {

constexpr uint32_t kThreads = 4 * kWarp;

template <uint32_t kDims>
__device__ __forceinline__ AttentionRow<kDims> ReadPart(const AttentionArgs& args, size_t part) {
  AttentionRow<kDims> row;
  row.max = args.part_max[part];
  row.sum = args.part_sum[part];
  for (uint32_t i = 0; i < kDims; ++i) {
    const uint32_t d = i * kWarp + threadIdx.x % kWarp;
    if (d < args.kv.v_dim) row.out[i] = args.part_out[part * args.kv.v_dim + d];
  }
  return row;
}

// Block (x, y): the rows of merge x, kv head y; a warp a row.
template <typename Out, uint32_t kDims>
__global__ void __launch_bounds__(kThreads) MergePartsKernel(AttentionArgs args) {
  StartNext();
  AfterPrevious();
  const AttentionMerge merge = args.merges[blockIdx.x];
  const uint32_t rows = merge.item.row_end - merge.item.row_begin;
  for (uint32_t r = threadIdx.x / kWarp; r < rows; r += kThreads / kWarp) {
    AttentionRow<kDims> total;
    for (uint32_t i = 0; i < merge.num_parts; ++i) {
      const uint32_t part_row = merge.item.part_row + i * rows + r;
      Merge(ReadPart<kDims>(args, PartOf(args, part_row, blockIdx.y)), &total);
    }
    WriteOut<Out>(args, PlaceOf(args, merge.item, merge.item.row_begin + r, blockIdx.y), total);
  }
}

}  // namespace

void MergeParts(const AttentionArgs& args, Stream stream) {
  if (args.num_merges == 0) return;
  ForElement(args.out_type, [&](auto out) {
    ForDims(args.kv.v_dim, [&](auto dims) {
      Launch({.grid_x = args.num_merges, .grid_y = args.kv.num_kv_heads, .block = kThreads},
             MergePartsKernel<decltype(out), decltype(dims)::value>, args, stream);
    });
  });
}

}  // namespace flotilla::cuda::FLOTILLA_PLATFORM
