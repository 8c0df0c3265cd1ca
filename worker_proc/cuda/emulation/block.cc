#include "worker_proc/cuda/emulation/block.h"

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <utility>

#include "worker_proc/cuda/emulation/block_runner.h"
#include "worker_proc/cuda/emulation/launch_queue.h"

namespace flotilla::cuda::emulation {
namespace {

// Of threads that have none of their own yet.
std::atomic<uint64_t>& ProcessSeed() {
  static std::atomic<uint64_t> seed = [] {
    const char* const text = std::getenv("FLOTILLA_EMULATION_SEED");
    return text != nullptr ? std::strtoull(text, nullptr, 10) : std::random_device()();
  }();
  return seed;
}

// What a thread draws by: splitmix64 (Steele, Lea, Flood), since a draw comes with each switch.
struct Random {
  uint64_t seed = ProcessSeed().load();
  uint64_t state = seed;

  uint32_t Next() {
    uint64_t z = state += 0x9e3779b97f4a7c15;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
    z = (z ^ z >> 27) * 0x94d049bb133111eb;
    return static_cast<uint32_t>(z >> 32);
  }
};
thread_local Random t_random;
thread_local std::vector<std::function<void()>>* t_capture = nullptr;

void RunKernel(const LaunchShape& shape, const std::function<void()>& thread, LaunchQueue* queue) {
  if (queue != nullptr) return queue->Launch(shape, thread);
  thread_local BlockRunner runner;
  runner.Run(shape, thread);
}

}  // namespace

uint32_t Draw(uint32_t below) {
  return static_cast<uint32_t>(uint64_t{t_random.Next()} * below >> 32);
}

void Launch(const LaunchShape& shape, const std::function<void()>& thread, LaunchQueue* queue) {
  if (t_capture == nullptr) return RunKernel(shape, thread, queue);
  t_capture->push_back([shape, thread, queue] { RunKernel(shape, thread, queue); });
}

void CaptureInto(std::vector<std::function<void()>>* nodes) { t_capture = nodes; }
bool Captures() { return t_capture != nullptr; }

void Enqueue(std::function<void()> work) {
  if (t_capture == nullptr) return work();
  t_capture->push_back(std::move(work));
}

void SetSeed(uint64_t seed) {
  ProcessSeed().store(seed);
  t_random = {.seed = seed, .state = seed};
}
uint64_t Seed() { return t_random.seed; }

void BlockBarrier() { t_runner->BlockBarrier(); }

void AfterPrevious() { t_runner->AfterPrevious(); }
void TouchNothing() { t_runner->TouchNothing(); }

uint64_t NanoTime() {
  return static_cast<uint64_t>(std::chrono::steady_clock::now().time_since_epoch().count());
}
void Relax() { t_runner->Relax(); }

void WarpBarrier(uint32_t mask) {
  t_runner->Meet(mask, {}, [](Warp*, uint32_t) {});
}

uint64_t Exchange(uint32_t mask, uint64_t value, uint32_t from) {
  const auto give = [](Warp* warp, uint32_t lanes) {
    for (uint32_t i = 0; i < kWarpSize; ++i) {
      if ((lanes >> i & 1u) == 0) continue;
      const uint32_t source = warp->lanes[i].from;
      if (source >= kWarpSize || (lanes >> source & 1u) == 0) {
        Fail("a lane takes the value of one that is not in the mask", source, lanes);
      }
      warp->lanes[i].result = warp->lanes[source].value;
    }
  };
  return t_runner->Meet(mask, {.value = value, .from = from}, give);
}

uint32_t Ballot(uint32_t mask, bool value) {
  const auto vote = [](Warp* warp, uint32_t lanes) {
    uint32_t votes = 0;
    for (uint32_t i = 0; i < kWarpSize; ++i) {
      if ((lanes >> i & 1u) != 0 && warp->lanes[i].value != 0) votes |= 1u << i;
    }
    for (uint32_t i = 0; i < kWarpSize; ++i) {
      if ((lanes >> i & 1u) != 0) warp->lanes[i].result = votes;
    }
  };
  return static_cast<uint32_t>(t_runner->Meet(mask, {.value = value ? 1u : 0u}, vote));
}

void Together(void* mine, void (*work)(void* const* lanes)) {
  const auto all = [](Warp* warp, uint32_t /*mask*/) {
    void* lanes[kWarpSize];
    for (uint32_t i = 0; i < kWarpSize; ++i) {
      lanes[i] = reinterpret_cast<void*>(warp->lanes[i].value);
      if (warp->lanes[i].work != warp->lanes[0].work)
        Fail("lanes of a warp do not work alike", i, 0);
    }
    warp->lanes[0].work(lanes);
  };
  t_runner->Meet(~0u, {.value = reinterpret_cast<uintptr_t>(mine), .work = work}, all);
}

std::byte* SharedMemory(const void* key, size_t bytes) {
  return t_runner->SharedMemory(key, bytes);
}

std::byte* DynamicSharedMemory(size_t offset, size_t bytes) {
  return t_runner->Dynamic(offset, bytes);
}

void Fail(const char* what, uint64_t a, uint64_t b) {
  std::fprintf(stderr,
               "emulated kernel failed: %s (%llu, %llu); block %u,%u thread %u; "
               "FLOTILLA_EMULATION_SEED=%llu\n",
               what, static_cast<unsigned long long>(a), static_cast<unsigned long long>(b),
               blockIdx.x, blockIdx.y, threadIdx.x, static_cast<unsigned long long>(Seed()));
  std::fflush(stderr);
  std::abort();
}

}  // namespace flotilla::cuda::emulation
