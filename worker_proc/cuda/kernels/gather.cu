#include "worker_proc/cuda/kernels/gather.h"

#include "worker_proc/cuda/kernels/launchers.cuh"
#include "worker_proc/cuda/kernels/platform.cuh"

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

// By one thread; false: it gave up.
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

template <typename T>
__global__ void __launch_bounds__(kThreads) GatherColumnsKernel(GatherArgs args) {
  StartNext();
  AfterPrevious();
  FLOTILLA_SHARED(uint32_t, shared, 2);
  // Blocks without rows count too: all must mean the same slot.
  if (threadIdx.x == 0) {
    shared[0] = ++args.counters[BlockOf(args)];
    shared[1] = LoadAcquire(args.stopped);
  }
  if (blockIdx.x >= args.rows) return;
  __syncthreads();
  if (shared[1] != 0) return;
  const uint32_t operation = shared[0];
  const uint64_t slot = args.channel.slots_at + operation % kGatherSlots * args.channel.slot_bytes;
  const uint32_t own = args.bytes[args.rank];
  RowCopy copy = {blockIdx.x, gridDim.x, args.rows, own};
  copy.from = args.local;
  copy.to = args.arenas[args.rank] + slot;
  copy.from_stride = copy.to_stride = own;
  CopyRows<T>(copy);
  FenceSystem();
  __syncthreads();  // shared[1] has been read by all, too
  if (threadIdx.x == 0) {
    StoreRelease(&FlagsOf(args, args.rank)->begun[BlockOf(args)], operation);
    bool all = true;
    for (uint32_t r = 0; r < args.ranks && all; ++r) all = WaitFor(args, r, operation);
    shared[1] = all ? 1 : 0;
  }
  __syncthreads();
  if (shared[1] == 0 || args.out == nullptr) return;
  copy.to = args.out;
  copy.to_stride = 0;
  for (uint32_t r = 0; r < args.ranks; ++r) copy.to_stride += args.bytes[r];
  for (uint32_t r = 0; r < args.ranks; ++r) {
    copy.from = args.arenas[r] + slot;
    copy.from_stride = copy.bytes = args.bytes[r];
    CopyRows<T>(copy);
    copy.to += copy.bytes;
  }
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
bool InPacks(const Args& args) {
  bool all = true;
  for (uint32_t r = 0; r < args.ranks; ++r) all = all && args.bytes[r] % sizeof(uint4) == 0;
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

}  // namespace flotilla::cuda::FLOTILLA_PLATFORM
