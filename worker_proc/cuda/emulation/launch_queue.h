// The emulated device's stream: kernels begin before those before them are done, as GPUs from sm_90
// on let them (programmatic dependent launch; AfterPrevious in kernels/platform_gpu.cuh).
//
// When a kernel is launched, one of its blocks, drawn at random, runs at once up to where it waits
// for the kernel before, while up to kMostBegun kernels before it still lack all their blocks but
// one. So a kernel that reads too early what one of them writes computes something else, and one
// whose block never waits ends the process. Graphs, copies and products that are no kernel drain
// the queue first.
//
// A gate holds the stream up: what comes behind it is kept until it opens, which Drain waits for. A
// kernel whose threads wait for another device (Relax) is one, too.
//
// Units, errors: as block.h. Threads: one. Ownership: drained when it is destroyed.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <vector>

#include "worker_proc/cuda/emulation/block.h"

namespace flotilla::cuda::emulation {

class BlockRunner;

class LaunchQueue {
 public:
  static constexpr uint32_t kMostBegun = 3;

  LaunchQueue();
  ~LaunchQueue();
  LaunchQueue(const LaunchQueue&) = delete;
  LaunchQueue& operator=(const LaunchQueue&) = delete;

  void Launch(const LaunchShape& shape, const std::function<void()>& thread);
  // Work that is no kernel, behind all that was launched.
  void Run(std::function<void()> work);
  // open: asked again and again until it is true.
  void AddGate(std::function<bool()> open);
  // Until all that was launched is done.
  void Drain();
  // False: a gate is closed.
  bool TryDrain();

 private:
  bool FinishOldest();  // false: its threads wait
  void DrainTo(size_t begun);

  struct Work {
    bool alone = false;  // when all before it is done
    std::function<void()> run;
  };

  std::function<bool()> gate_;  // closed
  std::deque<Work> behind_;     // the gate

  const std::unique_ptr<BlockRunner> others_;       // runs the blocks that did not begin early
  std::deque<std::unique_ptr<BlockRunner>> begun_;  // the oldest first
  std::vector<std::unique_ptr<BlockRunner>> idle_;
};

}  // namespace flotilla::cuda::emulation
