#include "worker_proc/cuda/kernels/gather.h"

#include "worker_proc/cuda/kernels/launchers.cuh"
#include "worker_proc/cuda/kernels/norm_row.cuh"

namespace flotilla::cuda::FLOTILLA_PLATFORM {
namespace {

constexpr uint32_t kThreads = 256;
constexpr uint32_t kLooksAnAbort = 64;

__device__ __forceinline__ GatherFlags* FlagsOf(const GatherArgs& args, uint32_t rank) {
  return reinterpret_cast<GatherFlags*>(args.arenas[rank]);
}

// Among the blocks of both channels.
__device__ __forceinline__ uint32_t BlockOf(const GatherArgs& args) {
  return args.channel.first_block + blockIdx.x;
}

// By a thread; false: it gave up.
__device__ __forceinline__ bool WaitFor(const GatherArgs& args, uint32_t rank, uint32_t operation) {
  const uint32_t* const flag = &FlagsOf(args, rank)->begun[BlockOf(args)];
  const uint64_t begin = NanoTime();
  // Counters may wrap around.
  for (uint32_t look = 1; static_cast<int32_t>(LoadAcquire(flag) - operation) < 0; ++look) {
    if (LoadAcquire(args.stopped) != 0) return false;
    // The host's memory is far away.
    const bool aborted = look % kLooksAnAbort == 0 && LoadAcquire(args.abort) != 0;
    if (aborted || NanoTime() - begin > args.timeout_ns) {
      StoreRelease(args.stopped, 1);
      StoreRelease(args.failed, 1);
      return false;
    }
    Relax();
  }
  return true;
}

// Rows first, first + step … of `rows`, `bytes` of each.
struct RowCopy {
  uint32_t first = 0;
  uint32_t step = 1;
  uint32_t rows = 0;
  uint32_t bytes = 0;
  const std::byte* from = nullptr;
  uint64_t from_stride = 0;
  std::byte* to = nullptr;
  uint64_t to_stride = 0;
};
// By the whole block. T: what a thread moves at once, kAtOnce of them on their way; bytes and
// strides are multiples of it.
template <typename T>
__device__ __forceinline__ void CopyRows(const RowCopy& copy) {
  constexpr uint32_t kAtOnce = 4;
  if (copy.first >= copy.rows) return;
  const uint32_t a_row = copy.bytes / sizeof(T);
  const uint32_t all = ((copy.rows - copy.first - 1) / copy.step + 1) * a_row;
  const auto row_of = [&](uint32_t i) {
    return static_cast<uint64_t>(copy.first + i / a_row * copy.step);
  };
  for (uint32_t begin = threadIdx.x; begin < all; begin += kAtOnce * kThreads) {
    T values[kAtOnce];
    FLOTILLA_UNROLL
    for (uint32_t j = 0; j < kAtOnce; ++j) {
      const uint32_t i = begin + j * kThreads;
      if (i >= all) continue;
      values[j] = reinterpret_cast<const T*>(copy.from + row_of(i) * copy.from_stride)[i % a_row];
    }
    FLOTILLA_UNROLL
    for (uint32_t j = 0; j < kAtOnce; ++j) {
      const uint32_t i = begin + j * kThreads;
      if (i >= all) continue;
      reinterpret_cast<T*>(copy.to + row_of(i) * copy.to_stride)[i % a_row] = values[j];
    }
  }
}

// By the whole block: its rows of all ranks are in their arenas, `*slot` behind each's beginning.
// False: it has none, or this rank has given up.
template <typename T>
__device__ __forceinline__ bool Exchange(const GatherArgs& args, uint64_t* slot) {
  FLOTILLA_SHARED(uint32_t, shared, 2);
  // Blocks without rows count too: all must mean the same slot.
  if (threadIdx.x == 0) {
    shared[0] = ++args.counters[BlockOf(args)];
    shared[1] = LoadAcquire(args.stopped);
  }
  if (blockIdx.x >= args.rows) return false;
  __syncthreads();
  if (shared[1] != 0) return false;
  const uint32_t operation = shared[0];
  *slot = args.channel.slots_at + operation % kGatherSlots * args.channel.slot_bytes;
  const uint32_t own = args.bytes[args.rank];
  RowCopy copy = {blockIdx.x, gridDim.x, args.rows, own};
  copy.from = args.local;
  copy.to = args.arenas[args.rank] + *slot;
  copy.from_stride = copy.to_stride = own;
  CopyRows<T>(copy);
  FenceSystem();
  __syncthreads();  // shared[1], 0, has been read by all, too
  if (threadIdx.x == 0) {
    StoreRelease(&FlagsOf(args, args.rank)->begun[BlockOf(args)], operation);
  }
  // A thread a rank: looks at several GPUs are on their way at once.
  static_assert(kMaxGatherRanks <= kThreads);
  if (threadIdx.x < args.ranks && !WaitFor(args, threadIdx.x, operation)) shared[1] = 1;
  __syncthreads();
  return shared[1] == 0;
}

template <typename T>
__global__ void __launch_bounds__(kThreads) GatherColumnsKernel(GatherArgs args) {
  StartNext();
  AfterPrevious();
  uint64_t slot = 0;
  if (!Exchange<T>(args, &slot) || args.out == nullptr) return;
  RowCopy copy = {blockIdx.x, gridDim.x, args.rows};
  copy.to = args.out;
  for (uint32_t r = 0; r < args.ranks; ++r) copy.to_stride += args.bytes[r];
  for (uint32_t r = 0; r < args.ranks; ++r) {
    copy.from = args.arenas[r] + slot;
    copy.from_stride = copy.bytes = args.bytes[r];
    CopyRows<T>(copy);
    copy.to += copy.bytes;
  }
}

// A block a row, which it reads from the ranks' arenas. n: as NormRow's; no run has columns of two
// ranks.
template <typename T, typename Out, uint32_t n>
__global__ void __launch_bounds__(kThreads) GatherAddNormKernel(GatherAddNormArgs args) {
  static_assert(kThreads == kNormThreads && kNormRunBytes == kRun * sizeof(float));
  StartNext();
  FLOTILLA_SHARED(float, warps, kNormThreads / kWarp);
  const GatherArgs& gather = args.gather;
  NormRow<Out, n> norm(args.norm);
  AfterPrevious();
  uint64_t slot = 0;
  if (!Exchange<T>(gather, &slot)) return;
  const size_t row = blockIdx.x;
  float* const residual = args.norm.residual + row * args.norm.cols;
  const auto load = [&](uint32_t c, float(&values)[n]) {
    uint32_t r = 0;
    uint32_t column = c;  // of rank r
    for (; column >= gather.bytes[r] / sizeof(float); ++r) {
      column -= gather.bytes[r] / static_cast<uint32_t>(sizeof(float));
    }
    const std::byte* const from = gather.arenas[r] + slot + row * gather.bytes[r];
    LoadRun(reinterpret_cast<const float*>(from) + column, values);
    float before[n];
    LoadRun(residual + c, before);
    for (uint32_t i = 0; i < n; ++i) values[i] += before[i];
    StoreRun(residual + c, values);
  };
  const auto again = [&](uint32_t c, float(&values)[n]) { LoadRun(residual + c, values); };
  norm.Run(load, again, warps, static_cast<Out*>(args.norm.out) + row * args.norm.cols);
}

// A block a row.
template <typename T>
__global__ void __launch_bounds__(kThreads) InterleaveColumnsKernel(InterleaveArgs args) {
  StartNext();
  AfterPrevious();
  RowCopy copy = {blockIdx.x, gridDim.x, args.rows};
  copy.from = args.from;
  copy.to = args.out;
  for (uint32_t r = 0; r < args.ranks; ++r) copy.to_stride += args.bytes[r];
  for (uint32_t r = 0; r < args.ranks; ++r) {
    copy.from_stride = copy.bytes = args.bytes[r];
    CopyRows<T>(copy);
    copy.from += static_cast<size_t>(args.rows) * copy.bytes;
    copy.to += copy.bytes;
  }
}

template <typename Args>
bool InPacks(const Args& args, uint32_t bytes = sizeof(uint4)) {
  bool all = true;
  for (uint32_t r = 0; r < args.ranks; ++r) all = all && args.bytes[r] % bytes == 0;
  return all;
}

}  // namespace

void InterleaveColumns(const InterleaveArgs& args, Stream stream) {
  if (args.rows == 0) return;
  const LaunchShape shape = {.grid_x = args.rows, .block = kThreads};
  Launch(shape, InPacks(args) ? InterleaveColumnsKernel<uint4> : InterleaveColumnsKernel<uint16_t>,
         args, stream);
}

void GatherColumns(const GatherArgs& args, Stream stream) {
  if (args.rows == 0) return;
  const bool wide = InPacks(args);
  const LaunchShape shape = {.grid_x = args.channel.blocks, .block = kThreads};
  Launch(shape, wide ? GatherColumnsKernel<uint4> : GatherColumnsKernel<uint16_t>, args, stream);
}

void GatherAddNorm(const GatherAddNormArgs& args, Stream stream) {
  if (args.gather.rows == 0) return;
  const LaunchShape shape = {.grid_x = args.gather.channel.blocks, .block = kThreads};
  ForElement(args.norm.out_type, [&](auto out) {
    using Out = decltype(out);
    Launch(shape,
           InPacks(args.gather, kNormRunBytes) ? GatherAddNormKernel<uint4, Out, kRun>
                                               : GatherAddNormKernel<uint16_t, Out, 1>,
           args, stream);
  });
}

}  // namespace flotilla::cuda::FLOTILLA_PLATFORM
