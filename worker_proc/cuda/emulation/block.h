// Runs a kernel's thread blocks on the CPU: each thread on a fiber, a block after another, on the
// caller's thread. What a GPU leaves open is drawn at random: which of the threads that can go on
// does so next. So a kernel that lacks a barrier computes something else now and then, and the seed
// that shows it can be given again.
//
// A launch ends the process, saying seed, block and thread, if a barrier can't be met any more
// (some threads wait at another one, or have returned), if the lanes of a warp name different
// masks, if shared memory is used out of bounds or is more than a GPU has. Shared memory holds NaNs
// when a block begins.
//
// Units: threads, bytes. Threads: any; a launch runs on the caller's. Ownership: fibers' stacks are
// kept for the thread's next launch. Errors: CHECK. Source: CUDA C++ Programming Guide, execution
// model; ours.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

namespace flotilla::cuda::emulation {

inline constexpr uint32_t kWarpSize = 32;
inline constexpr uint32_t kMaxBlockThreads = 1024;
// What a block may have on all our architectures (sm_80 has the least: 163 KiB).
inline constexpr uint32_t kMaxSharedBytes = 163 << 10;

struct Index {
  uint32_t x = 0, y = 0, z = 0;
  bool operator==(const Index&) const = default;
};

struct LaunchShape {
  Index grid = {1, 1, 1};
  uint32_t block = 1;         // threads; blocks have one dimension
  uint32_t shared_bytes = 0;  // dynamic
};

class LaunchQueue;

// Calls `thread` once for each thread of each block, on the queue, or at once if there is none. It
// may be kept for later (CaptureInto).
void Launch(const LaunchShape& shape, const std::function<void()>& thread,
            LaunchQueue* queue = nullptr);

// From now on what this thread launches or enqueues is added to *nodes instead of being run; null:
// no more.
void CaptureInto(std::vector<std::function<void()>>* nodes);
bool Captures();
// Work beside kernels: runs now, or is captured.
void Enqueue(std::function<void()> work);

// Of the next launches of this thread, and of threads that launch for the first time from now on.
// The default is drawn once a process, or comes from FLOTILLA_EMULATION_SEED.
void SetSeed(uint64_t seed);
uint64_t Seed();

// ---- Within a kernel.
void AfterPrevious();
void TouchNothing();
void BlockBarrier();
void WarpBarrier(uint32_t mask);
// Every lane of `mask` gives a value of up to 8 bytes and takes that of lane `from`, which must be
// in the mask.
uint64_t Exchange(uint32_t mask, uint64_t value, uint32_t from);
// Bit i: lane i of `mask` gave true.
uint32_t Ballot(uint32_t mask, bool value);
// All lanes of the warp come, each with `mine`; `work` sees them all, once, before any goes on.
void Together(void* mine, void (*work)(void* const* lanes));
// Memory that the block's threads share; `key` names it, the first to ask makes it.
std::byte* SharedMemory(const void* key, size_t bytes);
// `bytes` of the launch's dynamic shared memory from `offset` on.
std::byte* DynamicSharedMemory(size_t offset, size_t bytes);
// Of a clock that all of them share, and a moment for others.
uint64_t NanoTime();
void Relax();
[[noreturn]] void Fail(const char* what, uint64_t a, uint64_t b);

}  // namespace flotilla::cuda::emulation
