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

// By one thread; false: it gave up.
__device__ __forceinline__ bool WaitFor(const GatherArgs& args, uint32_t rank, uint32_t operation) {
  const uint32_t* const flag = &FlagsOf(args, rank)->begun[blockIdx.x];
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

// T: what moves at once; all rows and both strides are multiples of it.
template <typename T>
__device__ __forceinline__ void CopyRow(const std::byte* from, uint32_t bytes, std::byte* to) {
  for (uint32_t i = threadIdx.x; i < bytes / sizeof(T); i += kThreads) {
    reinterpret_cast<T*>(to)[i] = reinterpret_cast<const T*>(from)[i];
  }
}

template <typename T>
__global__ void __launch_bounds__(kThreads) GatherColumnsKernel(GatherArgs args) {
  StartNext();
  AfterPrevious();
  FLOTILLA_SHARED(uint32_t, shared, 2);
  // Blocks without rows count too: all must mean the same slot.
  if (threadIdx.x == 0) {
    shared[0] = ++args.counters[blockIdx.x];
    shared[1] = LoadAcquire(args.stopped);
  }
  if (blockIdx.x >= args.rows) return;
  __syncthreads();
  if (shared[1] != 0) return;
  const uint32_t operation = shared[0];
  const uint64_t slot = kGatherSlotsAt + operation % kGatherSlots * args.slot_bytes;
  const uint32_t own = args.bytes[args.rank];
  for (uint32_t row = blockIdx.x; row < args.rows; row += kGatherBlocks) {
    const uint64_t at = static_cast<uint64_t>(row) * own;
    CopyRow<T>(args.local + at, own, args.arenas[args.rank] + slot + at);
  }
  FenceSystem();
  __syncthreads();  // shared[1] has been read by all, too
  if (threadIdx.x == 0) {
    StoreRelease(&FlagsOf(args, args.rank)->begun[blockIdx.x], operation);
    bool all = true;
    for (uint32_t r = 0; r < args.ranks && all; ++r) all = WaitFor(args, r, operation);
    shared[1] = all ? 1 : 0;
  }
  __syncthreads();
  if (shared[1] == 0 || args.out == nullptr) return;
  uint32_t whole = 0;
  for (uint32_t r = 0; r < args.ranks; ++r) whole += args.bytes[r];
  for (uint32_t row = blockIdx.x; row < args.rows; row += kGatherBlocks) {
    uint64_t to = static_cast<uint64_t>(row) * whole;
    for (uint32_t r = 0; r < args.ranks; ++r) {
      const std::byte* const from = args.arenas[r] + slot;
      CopyRow<T>(from + static_cast<uint64_t>(row) * args.bytes[r], args.bytes[r], args.out + to);
      to += args.bytes[r];
    }
  }
}

// A block a row.
template <typename T>
__global__ void __launch_bounds__(kThreads) InterleaveColumnsKernel(InterleaveArgs args) {
  StartNext();
  AfterPrevious();
  size_t whole = 0;
  for (uint32_t r = 0; r < args.ranks; ++r) whole += args.bytes[r];
  const size_t row = blockIdx.x;
  std::byte* to = args.out + row * whole;
  const std::byte* from = args.from;
  for (uint32_t r = 0; r < args.ranks; ++r) {
    CopyRow<T>(from + row * args.bytes[r], args.bytes[r], to);
    from += static_cast<size_t>(args.rows) * args.bytes[r];
    to += args.bytes[r];
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
  const LaunchShape shape = {.grid_x = kGatherBlocks, .block = kThreads};
  Launch(shape, wide ? GatherColumnsKernel<uint4> : GatherColumnsKernel<uint16_t>, args, stream);
}

}  // namespace flotilla::cuda::FLOTILLA_PLATFORM
