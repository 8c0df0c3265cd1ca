#include "worker_proc/cuda/emulation/block.h"

#include <atomic>
#include <boost/context/fiber.hpp>
#include <boost/context/protected_fixedsize_stack.hpp>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "worker_proc/cuda/emulation/device_language.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

namespace flotilla::cuda::emulation {
namespace {

namespace ctx = boost::context;

constexpr size_t kStackBytes = 128 << 10;

// AddressSanitizer must know on which stack we are, and that its frames are gone with the stack.
#if defined(__SANITIZE_ADDRESS__)
void StartSwitch(void** fake_stack, const void* bottom, size_t size) {
  __sanitizer_start_switch_fiber(fake_stack, bottom, size);
}
void FinishSwitch(void* fake_stack, const void** bottom, size_t* size) {
  __sanitizer_finish_switch_fiber(fake_stack, bottom, size);
}
void ForgetFrames(const ctx::stack_context& stack) {
  __asan_unpoison_memory_region(static_cast<std::byte*>(stack.sp) - stack.size, stack.size);
}
#else
void StartSwitch(void** /*fake_stack*/, const void* /*bottom*/, size_t /*size*/) {}
void FinishSwitch(void* /*fake_stack*/, const void** /*bottom*/, size_t* /*size*/) {}
void ForgetFrames(const ctx::stack_context& /*stack*/) {}
#endif

struct Fiber {
  ctx::stack_context stack;
  ctx::fiber inside;   // what resuming this fiber continues
  ctx::fiber outside;  // what it returns to
  void* fake_stack = nullptr;
};

// Where a lane waits for others of its warp.
struct Lane {
  uint32_t mask = 0;
  uint64_t value = 0;
  uint32_t from = 0;
  uint64_t result = 0;
  void (*work)(void* const* lanes) = nullptr;  // of Together
  void (*operation)(struct Warp*, uint32_t) = nullptr;
};
struct Warp {
  Lane lanes[kWarpSize];
  uint32_t waiting = 0;  // a bit a lane
};

struct NoStack {
  void deallocate(ctx::stack_context& /*stack*/) const {}
};

// Of threads that have none of their own yet.
std::atomic<uint64_t>& ProcessSeed() {
  static std::atomic<uint64_t> seed = [] {
    const char* const text = std::getenv("FLOTILLA_EMULATION_SEED");
    return text != nullptr ? std::strtoull(text, nullptr, 10) : std::random_device()();
  }();
  return seed;
}

class BlockRunner {
 public:
  BlockRunner() { SetSeed(ProcessSeed().load()); }
  ~BlockRunner() {
    for (Fiber& fiber : fibers_) {
      ForgetFrames(fiber.stack);
      stacks_.deallocate(fiber.stack);
    }
  }
  BlockRunner(const BlockRunner&) = delete;
  BlockRunner& operator=(const BlockRunner&) = delete;

  void SetSeed(uint64_t seed) {
    seed_ = seed;
    random_.seed(seed);
  }
  uint64_t seed() const { return seed_; }

  void Run(const LaunchShape& shape, const std::function<void()>& thread) {
    if (shape.block == 0 || shape.block > kMaxBlockThreads)
      Fail("threads of a block", shape.block, 0);
    constexpr uint32_t kMaxGridYz = 65'535;
    for (const uint32_t blocks : {shape.grid.y, shape.grid.z}) {
      if (blocks == 0 || blocks > kMaxGridYz) Fail("blocks along y or z", blocks, kMaxGridYz);
    }
    if (shape.grid.x == 0 || shape.grid.x > INT32_MAX) Fail("blocks along x", shape.grid.x, 0);
    shape_ = shape;
    thread_ = &thread;
    while (fibers_.size() < shape.block) {
      fibers_.emplace_back();
      fibers_.back().stack = stacks_.allocate();
    }
    gridDim = shape.grid;
    blockDim = {shape.block, 1, 1};
    for (uint32_t z = 0; z < shape.grid.z; ++z) {
      for (uint32_t y = 0; y < shape.grid.y; ++y) {
        for (uint32_t x = 0; x < shape.grid.x; ++x) RunBlock({x, y, z});
      }
    }
    thread_ = nullptr;
  }

  bool running() const { return thread_ != nullptr; }
  uint32_t current() const { return current_; }

  void BlockBarrier() {
    ++at_barrier_;
    if (at_barrier_ == live_) {
      ReleaseBarrier();
    } else {
      barrier_.push_back(current_);
      Yield();
    }
  }

  // Returns what `finish` has put into the lane's result, once all lanes of `mask` are here.
  uint64_t Meet(uint32_t mask, const Lane& lane, void (*finish)(Warp*, uint32_t)) {
    Warp& warp = warps_[current_ / kWarpSize];
    const uint32_t self = current_ % kWarpSize;
    if ((mask >> self & 1u) == 0) Fail("a warp's mask lacks the lane that gives it", mask, self);
    warp.lanes[self] = lane;
    warp.lanes[self].mask = mask;
    warp.lanes[self].operation = finish;
    warp.waiting |= 1u << self;
    if ((warp.waiting & mask) != mask) {
      Yield();
      return warp.lanes[self].result;
    }
    finish(&warp, mask);
    warp.waiting &= ~mask;
    for (uint32_t i = 0; i < kWarpSize; ++i) {
      if ((mask >> i & 1u) == 0) continue;
      if (warp.lanes[i].mask != mask)
        Fail("lanes of a warp give the masks", warp.lanes[i].mask, mask);
      if (warp.lanes[i].operation != finish)
        Fail("lanes of a warp meet in two operations", i, mask);
      if (i != self) ready_.push_back(current_ / kWarpSize * kWarpSize + i);
    }
    return warp.lanes[self].result;
  }

  std::byte* SharedMemory(const void* key, size_t bytes) {
    std::vector<std::byte>& memory = shared_[key];
    if (memory.empty()) {
      shared_bytes_ += bytes;
      CheckSharedBytes();
      memory.assign(bytes, std::byte{0xff});
    }
    if (memory.size() != bytes) Fail("a shared array has two sizes", memory.size(), bytes);
    return memory.data();
  }
  std::byte* Dynamic(size_t offset, size_t bytes) {
    if (offset + bytes > shape_.shared_bytes) {
      Fail("more dynamic shared memory than launched with", offset + bytes, shape_.shared_bytes);
    }
    return dynamic_.data() + offset;
  }

 private:
  void CheckSharedBytes() const {
    if (shared_bytes_ > kMaxSharedBytes)
      Fail("bytes of shared memory", shared_bytes_, kMaxSharedBytes);
  }

  void RunBlock(const Index& block) {
    blockIdx = block;
    live_ = shape_.block;
    at_barrier_ = 0;
    warps_.assign((shape_.block + kWarpSize - 1) / kWarpSize, {});
    shared_.clear();
    shared_bytes_ = shape_.shared_bytes;
    CheckSharedBytes();
    dynamic_.assign(shape_.shared_bytes, std::byte{0xff});
    for (uint32_t i = 0; i < shape_.block; ++i) {
      Start(&fibers_[i]);
      ready_.push_back(i);
    }
    while (!ready_.empty()) {
      const size_t pick = random_() % ready_.size();
      std::swap(ready_[pick], ready_.back());
      const uint32_t next = ready_.back();
      ready_.pop_back();
      Resume(next);
    }
    if (live_ > 0)
      Fail("threads wait for ever: of them at the block's barrier", live_, at_barrier_);
  }

  void Start(Fiber* fiber) {
    fiber->fake_stack = nullptr;
    fiber->inside = ctx::fiber(std::allocator_arg,
                               ctx::preallocated(fiber->stack.sp, fiber->stack.size, fiber->stack),
                               NoStack(), [this, fiber](ctx::fiber&& outside) {
                                 FinishSwitch(nullptr, &outside_bottom_, &outside_size_);
                                 fiber->outside = std::move(outside);
                                 (*thread_)();
                                 --live_;
                                 if (live_ > 0 && at_barrier_ == live_) ReleaseBarrier();
                                 StartSwitch(nullptr, outside_bottom_, outside_size_);
                                 return std::move(fiber->outside);
                               });
  }

  void Resume(uint32_t index) {
    current_ = index;
    threadIdx = {index, 0, 0};
    Fiber& fiber = fibers_[index];
    void* fake_stack = nullptr;
    StartSwitch(&fake_stack, static_cast<std::byte*>(fiber.stack.sp) - fiber.stack.size,
                fiber.stack.size);
    fiber.inside = std::move(fiber.inside).resume();
    FinishSwitch(fake_stack, nullptr, nullptr);
  }

  void Yield() {
    Fiber& fiber = fibers_[current_];
    StartSwitch(&fiber.fake_stack, outside_bottom_, outside_size_);
    fiber.outside = std::move(fiber.outside).resume();
    FinishSwitch(fiber.fake_stack, &outside_bottom_, &outside_size_);
  }

  void ReleaseBarrier() {
    ready_.insert(ready_.end(), barrier_.begin(), barrier_.end());
    barrier_.clear();
    at_barrier_ = 0;
  }

  uint64_t seed_ = 0;
  std::minstd_rand random_;
  LaunchShape shape_;
  const std::function<void()>* thread_ = nullptr;
  ctx::protected_fixedsize_stack stacks_{kStackBytes};
  std::vector<Fiber> fibers_;
  const void* outside_bottom_ = nullptr;
  size_t outside_size_ = 0;

  // Of the block that runs.
  uint32_t current_ = 0;
  uint32_t live_ = 0;
  uint32_t at_barrier_ = 0;
  std::vector<uint32_t> ready_, barrier_;
  std::vector<Warp> warps_;
  std::map<const void*, std::vector<std::byte>> shared_;
  size_t shared_bytes_ = 0;
  std::vector<std::byte> dynamic_;
};

thread_local BlockRunner t_runner;
thread_local std::vector<std::function<void()>>* t_capture = nullptr;

}  // namespace

void Launch(const LaunchShape& shape, const std::function<void()>& thread) {
  if (t_capture == nullptr) return t_runner.Run(shape, thread);
  t_capture->push_back([shape, thread] { t_runner.Run(shape, thread); });
}

void CaptureInto(std::vector<std::function<void()>>* nodes) { t_capture = nodes; }
bool Captures() { return t_capture != nullptr; }

void Enqueue(std::function<void()> work) {
  if (t_capture == nullptr) return work();
  t_capture->push_back(std::move(work));
}

void SetSeed(uint64_t seed) {
  ProcessSeed().store(seed);
  t_runner.SetSeed(seed);
}
uint64_t Seed() { return t_runner.seed(); }

void BlockBarrier() { t_runner.BlockBarrier(); }

uint64_t NanoTime() {
  return static_cast<uint64_t>(std::chrono::steady_clock::now().time_since_epoch().count());
}
void Relax() { std::this_thread::yield(); }

void WarpBarrier(uint32_t mask) {
  t_runner.Meet(mask, {}, [](Warp*, uint32_t) {});
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
  return t_runner.Meet(mask, {.value = value, .from = from}, give);
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
  return static_cast<uint32_t>(t_runner.Meet(mask, {.value = value ? 1u : 0u}, vote));
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
  t_runner.Meet(~0u, {.value = reinterpret_cast<uintptr_t>(mine), .work = work}, all);
}

std::byte* SharedMemory(const void* key, size_t bytes) { return t_runner.SharedMemory(key, bytes); }

std::byte* DynamicSharedMemory(size_t offset, size_t bytes) {
  return t_runner.Dynamic(offset, bytes);
}

void Fail(const char* what, uint64_t a, uint64_t b) {
  std::fprintf(stderr,
               "emulated kernel failed: %s (%llu, %llu); block %u,%u thread %u; "
               "FLOTILLA_EMULATION_SEED=%llu\n",
               what, static_cast<unsigned long long>(a), static_cast<unsigned long long>(b),
               blockIdx.x, blockIdx.y, threadIdx.x,
               static_cast<unsigned long long>(t_runner.seed()));
  std::fflush(stderr);
  std::abort();
}

}  // namespace flotilla::cuda::emulation
