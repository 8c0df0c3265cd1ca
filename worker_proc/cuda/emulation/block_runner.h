// What block.h and launch_queue.h run kernels with: the fibers, shared memory and barriers of one
// block at a time. Kernels reach the one that runs them by t_runner.
//
// A fiber runs one thread after another, of this block and of those that come; as many fibers are
// made as threads stood in the middle of something at once. A thread that must wait goes on
// straight to the next one's fiber.
//
// Units, threads, errors: as block.h. A runner's fibers go on where they were stopped, on the same
// thread.
#pragma once

#include <boost/context/fiber.hpp>
#include <boost/context/protected_fixedsize_stack.hpp>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <numeric>
#include <thread>
#include <utility>
#include <vector>

#include "worker_proc/cuda/emulation/device_language.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

namespace flotilla::cuda::emulation {

namespace ctx = boost::context;

inline constexpr size_t kStackBytes = 128 << 10;

class BlockRunner;
inline thread_local BlockRunner* t_runner = nullptr;

// Of [0, below), by the thread's seed.
uint32_t Draw(uint32_t below);

// AddressSanitizer must know on which stack we are, and that its frames are gone with the stack.
#if defined(__SANITIZE_ADDRESS__)
inline void StartSwitch(void** fake_stack, const void* bottom, size_t size) {
  __sanitizer_start_switch_fiber(fake_stack, bottom, size);
}
inline void FinishSwitch(void* fake_stack, const void** bottom, size_t* size) {
  __sanitizer_finish_switch_fiber(fake_stack, bottom, size);
}
inline void ForgetFrames(const ctx::stack_context& stack) {
  __asan_unpoison_memory_region(static_cast<std::byte*>(stack.sp) - stack.size, stack.size);
}
#else
inline void StartSwitch(void** /*fake_stack*/, const void* /*bottom*/, size_t /*size*/) {}
inline void FinishSwitch(void* /*fake_stack*/, const void** /*bottom*/, size_t* /*size*/) {}
inline void ForgetFrames(const ctx::stack_context& /*stack*/) {}
#endif

struct Fiber {
  ctx::stack_context stack;
  ctx::fiber inside;  // what resuming it continues; none while it runs
  // AddressSanitizer's.
  void* fake_stack = nullptr;
  const void* bottom = nullptr;
  size_t size = 0;
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

class BlockRunner {
 public:
  BlockRunner() = default;
  ~BlockRunner() {
    end_ = true;
    for (Fiber& fiber : fibers_) {
      SwitchTo(&fiber);
      ForgetFrames(fiber.stack);
      stacks_.deallocate(fiber.stack);
    }
  }
  BlockRunner(const BlockRunner&) = delete;
  BlockRunner& operator=(const BlockRunner&) = delete;

  void Run(const LaunchShape& shape, const std::function<void()>& thread) {
    Prepare(shape, thread);
    for (uint64_t i = 0; i < num_blocks(); ++i) {
      StartBlock(BlockAt(i));
      DriveToEnd();
      EndBlock();
    }
    thread_ = nullptr;
  }

  // One block, drawn at random, up to where it waits for the kernel before; it must. Then Finish,
  // again and again until it is true: all blocks in order, the others by a second runner, which
  // does nothing else meanwhile. False: the threads that are left wait for another device.
  void Begin(const LaunchShape& shape, const std::function<void()>& thread) {
    Prepare(shape, thread);
    must_wait_ = early_ = true;
    early_block_ = {Draw(shape.grid.x), Draw(shape.grid.y), Draw(shape.grid.z)};
    StartBlock(early_block_);
    DriveToEnd();
    early_ = false;
    next_block_ = 0;
    in_block_ = false;
  }
  bool Finish(BlockRunner* others) {
    if (next_block_ == 0 && !in_block_) {
      others->Prepare(shape_, thread_);
      others->must_wait_ = true;
    }
    for (; next_block_ < num_blocks(); ++next_block_) {
      const Index block = BlockAt(next_block_);
      BlockRunner* const runner = block == early_block_ ? this : others;
      if (!std::exchange(in_block_, true)) {
        if (runner == this) {
          ready_ = std::exchange(held_, {});
        } else {
          runner->StartBlock(block);
        }
      }
      if (!runner->Drive()) return false;
      runner->EndBlock();
      in_block_ = false;
    }
    thread_ = others->thread_ = nullptr;
    return true;
  }

  void AfterPrevious() {
    waited_ = true;
    if (!early_) return;
    held_.push_back(current_);
    GoOn();
  }

  void TouchNothing() { waited_ = true; }

  void Relax() {
    relaxing_.push_back(current_);
    GoOn();
  }

  void BlockBarrier() {
    ++at_barrier_;
    if (at_barrier_ == live_) {
      ReleaseBarrier();
    } else {
      barrier_.push_back(current_);
      GoOn();
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
      GoOn();
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
  void Prepare(const LaunchShape& shape, std::function<void()> thread) {
    if (shape.block == 0 || shape.block > kMaxBlockThreads)
      Fail("threads of a block", shape.block, 0);
    constexpr uint32_t kMaxGridYz = 65'535;
    for (const uint32_t blocks : {shape.grid.y, shape.grid.z}) {
      if (blocks == 0 || blocks > kMaxGridYz) Fail("blocks along y or z", blocks, kMaxGridYz);
    }
    if (shape.grid.x == 0 || shape.grid.x > INT32_MAX) Fail("blocks along x", shape.grid.x, 0);
    shape_ = shape;
    thread_ = std::move(thread);
  }

  uint64_t num_blocks() const { return uint64_t{shape_.grid.x} * shape_.grid.y * shape_.grid.z; }
  Index BlockAt(uint64_t i) const {
    const uint64_t row = i / shape_.grid.x;
    return {static_cast<uint32_t>(i % shape_.grid.x), static_cast<uint32_t>(row % shape_.grid.y),
            static_cast<uint32_t>(row / shape_.grid.y)};
  }

  void CheckSharedBytes() const {
    if (shared_bytes_ > kMaxSharedBytes)
      Fail("bytes of shared memory", shared_bytes_, kMaxSharedBytes);
  }

  void StartBlock(const Index& block) {
    block_ = block;
    waited_ = false;
    live_ = shape_.block;
    at_barrier_ = 0;
    warps_.assign((shape_.block + kWarpSize - 1) / kWarpSize, {});
    shared_.clear();
    shared_bytes_ = shape_.shared_bytes;
    CheckSharedBytes();
    dynamic_.assign(shape_.shared_bytes, std::byte{0xff});
    fiber_of_.assign(shape_.block, nullptr);
    ready_.resize(shape_.block);
    std::iota(ready_.begin(), ready_.end(), 0u);
  }

  // Until no thread can go on; false: those in Relax may.
  bool Drive() {
    BlockRunner* const outer = std::exchange(t_runner, this);
    blockIdx = block_;
    blockDim = {shape_.block, 1, 1};
    gridDim = shape_.grid;
    GoOn();
    t_runner = outer;
    ready_.swap(relaxing_);
    return ready_.empty();
  }
  void DriveToEnd() {
    while (!Drive()) std::this_thread::yield();
  }

  void EndBlock() const {
    if (live_ > 0)
      Fail("threads wait for ever: of them at the block's barrier", live_, at_barrier_);
    if (must_wait_ && !waited_) Fail("a block does not wait for the kernel before", 0, 0);
  }

  // Where to go on: with a thread that can, drawn at random, or in Drive. Not inlined, nor is what
  // switches: a fiber's frames outlive the thread that they began on, and so must not hold where
  // the variables of a thread are.
  [[gnu::noinline]] Fiber* Next() {
    if (ready_.empty()) return &driver_;
    std::swap(ready_[Draw(static_cast<uint32_t>(ready_.size()))], ready_.back());
    current_ = ready_.back();
    ready_.pop_back();
    threadIdx = {current_, 0, 0};
    Fiber*& fiber = fiber_of_[current_];
    if (fiber == nullptr) {
      if (idle_.empty()) idle_.push_back(MakeFiber());
      fiber = idle_.back();
      idle_.pop_back();
    }
    return fiber;
  }

  Fiber* MakeFiber() {
    Fiber* const fiber = &fibers_.emplace_back();
    fiber->stack = stacks_.allocate();
    fiber->size = fiber->stack.size;
    fiber->bottom = static_cast<std::byte*>(fiber->stack.sp) - fiber->size;
    fiber->inside = ctx::fiber(std::allocator_arg,
                               ctx::preallocated(fiber->stack.sp, fiber->stack.size, fiber->stack),
                               NoStack(), [this, fiber](ctx::fiber&& from) {
                                 Arrive(fiber, std::move(from));
                                 while (!end_) RunThread(fiber);
                                 left_ = fiber;
                                 StartSwitch(nullptr, driver_.bottom, driver_.size);
                                 return std::move(driver_.inside);
                               });
    return fiber;
  }

  [[gnu::noinline]] void RunThread(Fiber* fiber) {
    thread_();
    --live_;
    if (live_ > 0 && at_barrier_ == live_) ReleaseBarrier();
    idle_.push_back(fiber);
    GoOn();
  }

  // Until it is this fiber's turn again.
  void GoOn() {
    if (Fiber* const next = Next(); next != running_) SwitchTo(next);
  }

  // Until somebody switches back.
  [[gnu::noinline]] void SwitchTo(Fiber* next) {
    Fiber* const self = left_ = running_;
    StartSwitch(&self->fake_stack, next->bottom, next->size);
    ctx::fiber from = std::move(next->inside).resume();
    Arrive(self, std::move(from));
  }
  // On `self`, from the fiber that was left for it; `from` continues that.
  void Arrive(Fiber* self, ctx::fiber&& from) {
    FinishSwitch(self->fake_stack, &left_->bottom, &left_->size);
    left_->inside = std::move(from);
    running_ = self;
  }

  void ReleaseBarrier() {
    ready_.insert(ready_.end(), barrier_.begin(), barrier_.end());
    barrier_.clear();
    at_barrier_ = 0;
  }

  LaunchShape shape_;
  std::function<void()> thread_;
  ctx::protected_fixedsize_stack stacks_{kStackBytes};
  Fiber driver_;              // who called Drive
  std::deque<Fiber> fibers_;  // stay where they are
  Fiber* running_ = &driver_;
  Fiber* left_ = nullptr;  // from it we came
  std::vector<Fiber*> idle_;
  bool end_ = false;  // fibers return

  bool must_wait_ = false;
  bool early_ = false;  // the kernel before is not done
  Index early_block_;
  // Of Finish.
  uint64_t next_block_ = 0;
  bool in_block_ = false;

  // Of the block that runs.
  Index block_;
  bool waited_ = false;
  std::vector<Fiber*> fiber_of_;  // by thread; null: it has not begun
  std::vector<uint32_t> held_;    // that wait for the kernel before
  uint32_t current_ = 0;
  uint32_t live_ = 0;
  uint32_t at_barrier_ = 0;
  std::vector<uint32_t> ready_, relaxing_, barrier_;
  std::vector<Warp> warps_;
  std::map<const void*, std::vector<std::byte>> shared_;
  size_t shared_bytes_ = 0;
  std::vector<std::byte> dynamic_;
};

}  // namespace flotilla::cuda::emulation
