// packed_gemm.h's blocks as elements: all of a matrix, or rows of a table.
#include "worker_proc/cuda/kernels/launchers.cuh"
#include "worker_proc/cuda/kernels/packed_blocks.cuh"
#include "worker_proc/cuda/kernels/packed_gemm.h"
#include "worker_proc/cuda/kernels/runs.cuh"

namespace flotilla::cuda::FLOTILLA_PLATFORM {
namespace {

constexpr uint32_t kThreads = 128;

// The group'th 16 values behind `blocks`, as T has them.
template <DType dtype, typename T>
__device__ __forceinline__ void ReadGroup(const uint8_t* blocks, size_t group,
                                          float (&values)[kGroup]) {
  using Group = PackedGroup<dtype, const uint8_t*>;
  constexpr uint32_t kGroups = Group::kValues / kGroup;
  const Group packed(blocks + group / kGroups * Group::kBytes,
                     static_cast<uint32_t>(group % kGroups));
  for (uint32_t j = 0; j < kGroup; j += 2) {
    float two[2];
    packed.Two(j, two);
    values[j] = ToFloat(FromFloat<T>(two[0]));
    values[j + 1] = ToFloat(FromFloat<T>(two[1]));
  }
}

template <DType dtype, typename T>
__global__ void __launch_bounds__(kThreads) ExpandKernel(ExpandArgs args) {
  StartNext();
  const size_t group = static_cast<size_t>(blockIdx.x) * kThreads + threadIdx.x;
  AfterPrevious();
  if (group >= args.values / kGroup) return;
  float values[kGroup];
  ReadGroup<dtype, T>(static_cast<const uint8_t*>(args.blocks), group, values);
  StoreRun(static_cast<T*>(args.to) + group * kGroup, values);
}

template <DType dtype, typename T>
__global__ void __launch_bounds__(kThreads) PackedEmbeddingKernel(PackedEmbeddingArgs packed) {
  const EmbeddingArgs& args = packed.embedding;
  StartNext();
  int32_t id = args.ids[blockIdx.x];
  AfterPrevious();
  if (id < 0) id = args.last_tokens[-2 - id];
  const uint32_t groups = args.cols / kGroup;
  const size_t row = id < 0 ? 0 : static_cast<size_t>(id);
  float* const to = args.out + static_cast<size_t>(blockIdx.x) * args.cols;
  for (uint32_t group = threadIdx.x; group < groups; group += kThreads) {
    float values[kGroup];
    ReadGroup<dtype, T>(static_cast<const uint8_t*>(args.table), row * groups + group, values);
    for (float& value : values) value *= args.scale;
    StoreRun(to + group * kGroup, values);
  }
}

}  // namespace

void Expand(const ExpandArgs& args, Stream stream) {
  const uint64_t blocks = (args.values / kGroup + kThreads - 1) / kThreads;
  ForPackedAs(args.dtype, args.type, [&](auto dtype, auto element) {
    Launch({.grid_x = static_cast<uint32_t>(blocks), .block = kThreads},
           ExpandKernel<dtype(), decltype(element)>, args, stream);
  });
}

void PackedEmbedding(const PackedEmbeddingArgs& args, Stream stream) {
  ForPackedAs(args.table_dtype, args.embedding.table_type, [&](auto dtype, auto element) {
    Launch({.grid_x = args.embedding.tokens, .block = kThreads},
           PackedEmbeddingKernel<dtype(), decltype(element)>, args, stream);
  });
}

}  // namespace flotilla::cuda::FLOTILLA_PLATFORM
