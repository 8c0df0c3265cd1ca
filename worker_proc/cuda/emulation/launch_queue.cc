#include "worker_proc/cuda/emulation/launch_queue.h"

#include <utility>

#include "worker_proc/cuda/emulation/block_runner.h"

namespace flotilla::cuda::emulation {

LaunchQueue::LaunchQueue() : others_(std::make_unique<BlockRunner>()) {}
LaunchQueue::~LaunchQueue() { Drain(); }

void LaunchQueue::Launch(const LaunchShape& shape, const std::function<void()>& thread) {
  std::unique_ptr<BlockRunner> runner;
  if (idle_.empty()) {
    runner = std::make_unique<BlockRunner>();
  } else {
    runner = std::move(idle_.back());
    idle_.pop_back();
  }
  runner->Begin(shape, thread);
  begun_.push_back(std::move(runner));
  DrainTo(Draw(kMostBegun + 1));
}

void LaunchQueue::DrainTo(size_t begun) {
  while (begun_.size() > begun) {
    begun_.front()->Finish(others_.get());
    idle_.push_back(std::move(begun_.front()));
    begun_.pop_front();
  }
}

}  // namespace flotilla::cuda::emulation
