// The emulation itself: barriers, warps, shared memory, and that it finds what is wrong in kernels.
#include "worker_proc/cuda/emulation/block.h"

#include <gtest/gtest.h>

#include <numeric>
#include <set>
#include <vector>

#include "worker_proc/cuda/emulation/launch_queue.h"
#include "worker_proc/cuda/kernels/platform.cuh"

namespace flotilla::cuda {
namespace {

struct Args {
  float* out = nullptr;
  uint32_t size = 0;
};

void RunKernel(void (*kernel)(Args), const Args& args, const LaunchShape& shape) {
  FLOTILLA_PLATFORM::Launch(shape, kernel, args, nullptr);
}

// Each thread passes a value to its neighbour by shared memory.
template <bool kWithBarrier>
void NeighbourKernel(Args args) {
  FLOTILLA_SHARED(float, values, 256);
  values[threadIdx.x] = static_cast<float>(threadIdx.x);
  if (kWithBarrier) __syncthreads();
  args.out[blockIdx.x * blockDim.x + threadIdx.x] = values[(threadIdx.x + 1) % blockDim.x];
}

TEST(BlockTest, ABarrierMakesWritesSeen) {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    emulation::SetSeed(seed);
    std::vector<float> out(3 * 100);
    RunKernel(NeighbourKernel<true>, {out.data()}, {.grid_x = 3, .block = 100});
    for (size_t i = 0; i < out.size(); ++i)
      EXPECT_EQ(out[i], static_cast<float>((i % 100 + 1) % 100));
  }
}

TEST(BlockTest, AMissingBarrierShows) {
  emulation::SetSeed(1);
  std::vector<float> out(100);
  RunKernel(NeighbourKernel<false>, {out.data()}, {.block = 100});
  EXPECT_TRUE(std::any_of(out.begin(), out.end(), [](float x) { return std::isnan(x); }));
}

void OrderKernel(Args args) {
  const auto place = static_cast<uint32_t>(atomicAdd(args.out, 1.0f));
  args.out[1 + place] = static_cast<float>(threadIdx.x);
}

TEST(BlockTest, TheSeedAloneDecidesTheOrder) {
  std::set<std::vector<float>> orders;
  for (const uint64_t seed : {1, 2, 3, 1, 2, 3}) {
    emulation::SetSeed(seed);
    EXPECT_EQ(emulation::Seed(), seed);
    std::vector<float> out(65);
    RunKernel(OrderKernel, {out.data()}, {.block = 64});
    EXPECT_EQ(out[0], 64);
    orders.insert(out);
    std::sort(out.begin() + 1, out.end());
    for (size_t i = 0; i < 64; ++i) EXPECT_EQ(out[1 + i], static_cast<float>(i));
  }
  EXPECT_EQ(orders.size(), 3u);
}

void WarpKernel(Args args) {
  const auto value = static_cast<float>(threadIdx.x);
  const float sum = WarpSum(value);
  const float max = WarpMax(-value);
  const uint32_t odd = __ballot_sync(kAllLanes, threadIdx.x % 2 == 1);
  float half = 0;
  if (threadIdx.x % 32 < 16) half = __shfl_sync(0x0000ffffu, value, 3u);  // half a warp
  float* const out = args.out + threadIdx.x * 4;
  out[0] = sum;
  out[1] = max;
  out[2] = odd == 0xaaaaaaaau ? 1 : 0;
  out[3] = half;
}

TEST(BlockTest, LanesExchangeValues) {
  std::vector<float> out(64 * 4);
  RunKernel(WarpKernel, {out.data()}, {.block = 64});
  for (uint32_t i = 0; i < 64; ++i) {
    const uint32_t first = i / 32 * 32;
    EXPECT_EQ(out[i * 4], static_cast<float>(first * 32 + 31 * 16));
    EXPECT_EQ(out[i * 4 + 1], -static_cast<float>(first));
    EXPECT_EQ(out[i * 4 + 2], 1);
    EXPECT_EQ(out[i * 4 + 3], i % 32 < 16 ? static_cast<float>(first + 3) : 0.0f);
  }
}

void BlockSumKernel(Args args) {
  FLOTILLA_SHARED(float, warps, 4);
  const float sum = BlockSum(static_cast<float>(threadIdx.x), warps);
  const float twice = BlockSum(sum, warps);
  args.out[threadIdx.x] = twice;
}

TEST(BlockTest, ABlockSums) {
  std::vector<float> out(128);
  RunKernel(BlockSumKernel, {out.data()}, {.block = 128});
  for (const float sum : out) EXPECT_EQ(sum, 128 * 128.0f * 127 / 2);
}

void EarlyReturnKernel(Args args) {
  if (threadIdx.x >= args.size) return;
  __syncthreads();
  args.out[threadIdx.x] = 1;
}

TEST(BlockTest, ThreadsThatHaveReturnedAreNotWaitedFor) {
  for (const uint32_t size : {0u, 1u, 40u, 64u}) {
    std::vector<float> out(64);
    RunKernel(EarlyReturnKernel, {out.data(), size}, {.block = 64});
    EXPECT_EQ(std::accumulate(out.begin(), out.end(), 0.0f), static_cast<float>(size));
  }
}

void DynamicKernel(Args args) {
  DynamicShared shared;
  const SharedSpan<uint16_t> first = shared.Take<uint16_t>(3);
  const SharedSpan<float> second = shared.Take<float>(args.size);
  if (threadIdx.x == 0) first[2] = 7;
  second[threadIdx.x % args.size] = 2;
  __syncthreads();
  args.out[threadIdx.x] = static_cast<float>(first[2]) + second[args.size - 1];
}

TEST(BlockTest, DynamicSharedMemoryIsCutIntoArrays) {
  std::vector<float> out(32);
  RunKernel(DynamicKernel, {out.data(), 8}, {.block = 32, .shared_bytes = 16 + 32});
  for (const float x : out) EXPECT_EQ(x, 9);
}

void IndexKernel(Args args) {
  FLOTILLA_SHARED(float, values, 32);
  args.out[0] = values[args.size];
}
void OneSidedBarrierKernel(Args args) {
  if (threadIdx.x % 2 == 0) {
    __syncthreads();
  } else {
    __syncwarp();
  }
  args.out[0] = 1;
}
void UnequalMasksKernel(Args args) {
  args.out[0] = __shfl_sync(threadIdx.x == 0 ? 0x3u : 0xfu, 1.0f, 0u);
}
void LaneOutsideMaskKernel(Args args) { args.out[0] = __shfl_sync(0x3u, 1.0f, 2u); }
void OddAddressKernel(Args args) { args.out[0] = Load16(args.out + 1).v[0]; }
void MuchSharedKernel(Args args) {
  FLOTILLA_SHARED(double, values, emulation::kMaxSharedBytes / 8 + 1);
  args.out[0] = static_cast<float>(values[0]);
}

void TwoOperationsKernel(Args args) {
  if (threadIdx.x < 16) {
    __syncwarp();
  } else {
    args.out[0] = __shfl_sync(kAllLanes, 1.0f, 0);
  }
}

// ---- Kernels that begin early.

constexpr LaunchShape kFourBlocks = {.grid_x = 4, .block = 64};

void AddOneKernel(Args args) {
  AfterPrevious();
  args.out[blockIdx.x * 64 + threadIdx.x] += 1;
}
// Adds, behind, what it finds of the kernel before; before it waits for it, or after.
template <bool kTooEarly>
void AddBeforeKernel(Args args) {
  const uint32_t i = blockIdx.x * 64 + threadIdx.x;
  float before = 0;
  if (kTooEarly) before = args.out[i];
  AfterPrevious();
  if (!kTooEarly) before = args.out[i];
  args.out[args.size + i] += before;
}
void NoWaitKernel(Args args) { args.out[blockIdx.x * 64 + threadIdx.x] += 1; }

// Three rounds of both kernels.
std::vector<float> RunEarly(void (*second)(Args)) {
  std::vector<float> out(512);
  emulation::LaunchQueue queue;
  for (int round = 0; round < 3; ++round) {
    FLOTILLA_PLATFORM::Launch(kFourBlocks, AddOneKernel, Args{out.data(), 256}, &queue);
    FLOTILLA_PLATFORM::Launch(kFourBlocks, second, Args{out.data(), 256}, &queue);
  }
  queue.Drain();
  return out;
}

TEST(LaunchQueueTest, WhoWaitsSeesTheKernelBeforeAndWhoDoesNotIsFound) {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    emulation::SetSeed(seed);
    std::vector<float> expected(256, 3);
    expected.resize(512, 1 + 2 + 3);
    EXPECT_EQ(RunEarly(AddBeforeKernel<false>), expected) << seed;
    EXPECT_NE(RunEarly(AddBeforeKernel<true>), expected) << seed;
  }
}

// Some of a block may leave without having waited, not all of it.
void HalfWaitsKernel(Args args) {
  if (threadIdx.x % 2 == 0) return;
  AddOneKernel(args);
}
TEST(LaunchQueueTest, AThreadMayLeaveWithoutHavingWaited) {
  std::vector<float> out(256);
  {
    emulation::LaunchQueue queue;
    FLOTILLA_PLATFORM::Launch(kFourBlocks, HalfWaitsKernel, Args{out.data()}, &queue);
  }
  for (size_t i = 0; i < out.size(); ++i) EXPECT_EQ(out[i], static_cast<float>(i % 2));
}

// Blocks without work need not wait, others of the same kernel must.
template <bool kWorkersWait>
void IdleBlocksKernel(Args args) {
  if (blockIdx.x % 2 == 0) return TouchNothing();
  if (kWorkersWait) AfterPrevious();
  args.out[args.size + blockIdx.x * 64 + threadIdx.x] += 1;
}
TEST(LaunchQueueTest, ABlockWithoutWorkNeedNotWait) {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    emulation::SetSeed(seed);
    std::vector<float> expected(256, 3);
    for (size_t i = 0; i < 256; ++i) expected.push_back(i / 64 % 2 == 0 ? 0 : 3);
    EXPECT_EQ(RunEarly(IdleBlocksKernel<true>), expected) << seed;
  }
  EXPECT_DEATH(RunEarly(IdleBlocksKernel<false>), "does not wait for the kernel before");
}

// Another device is waited for by some threads of a block: the host goes on, what comes behind
// waits, in its order.
uint32_t g_other_device = 0;
void WaitForOtherKernel(Args args) {
  AfterPrevious();
  while (threadIdx.x % 2 == 0 && LoadAcquire(&g_other_device) == 0) Relax();
  __syncthreads();
  args.out[blockIdx.x * 64 + threadIdx.x] += 1;
}
TEST(LaunchQueueTest, WhatComesBehindAKernelThatWaitsForAnotherDeviceIsKept) {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    emulation::SetSeed(seed);
    StoreRelease(&g_other_device, 0);
    std::vector<float> out(256), seen;
    const Args args{out.data()};
    emulation::LaunchQueue queue;
    FLOTILLA_PLATFORM::Launch(kFourBlocks, AddOneKernel, args, &queue);
    FLOTILLA_PLATFORM::Launch(kFourBlocks, WaitForOtherKernel, args, &queue);
    FLOTILLA_PLATFORM::Launch(kFourBlocks, AddOneKernel, args, &queue);
    queue.Run([&] { seen = out; });
    FLOTILLA_PLATFORM::Launch(kFourBlocks, WaitForOtherKernel, args, &queue);
    for (int look = 0; look < 3; ++look) EXPECT_FALSE(queue.TryDrain());
    EXPECT_EQ(out, std::vector<float>(256, 1));
    EXPECT_TRUE(seen.empty());
    StoreRelease(&g_other_device, 1);
    queue.Drain();
    EXPECT_EQ(seen, std::vector<float>(256, 3)) << seed;
    EXPECT_EQ(out, std::vector<float>(256, 4)) << seed;
  }
}

TEST(LaunchQueueDeathTest, ABlockThatNeverWaitsEndsTheProcess) {
  EXPECT_DEATH(RunEarly(NoWaitKernel), "does not wait for the kernel before");
}

TEST(BlockDeathTest, WhatAGpuWouldNotForgiveEndsTheProcess) {
  alignas(16) float out[8] = {};
  const auto run = [&](void (*kernel)(Args), const Args& args, const LaunchShape& shape) {
    emulation::SetSeed(77);
    RunKernel(kernel, args, shape);
  };
  EXPECT_DEATH(run(IndexKernel, {out, 32}, {.block = 1}), "beyond a shared array.*SEED=77");
  EXPECT_DEATH(run(OneSidedBarrierKernel, {out}, {.block = 32}), "wait for ever");
  EXPECT_DEATH(run(UnequalMasksKernel, {out}, {.block = 4}), "masks|wait for ever");
  EXPECT_DEATH(run(TwoOperationsKernel, {out}, {.block = 32}), "two operations");
  EXPECT_DEATH(run(IndexKernel, {out, 1}, {.grid_y = 65'536, .block = 1}), "along y");
  EXPECT_DEATH(run(IndexKernel, {out, 1}, {.grid_x = 0, .block = 1}), "along x");
  EXPECT_DEATH(run(LaneOutsideMaskKernel, {out}, {.block = 2}), "not in the mask");
  EXPECT_DEATH(run(OddAddressKernel, {out}, {.block = 1}), "odd address");
  EXPECT_DEATH(run(DynamicKernel, {out, 8}, {.block = 1, .shared_bytes = 47}), "dynamic shared");
  EXPECT_DEATH(run(MuchSharedKernel, {out}, {.block = 1}), "bytes of shared memory");
  EXPECT_DEATH(run(NeighbourKernel<true>, {out}, {.block = 1025}), "threads of a block");
}

}  // namespace
}  // namespace flotilla::cuda
