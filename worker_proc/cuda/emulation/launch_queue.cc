#include "worker_proc/cuda/emulation/launch_queue.h"

#include <chrono>
#include <thread>
#include <utility>

#include "worker_proc/cuda/emulation/block_runner.h"

namespace flotilla::cuda::emulation {
namespace {

constexpr std::chrono::microseconds kLookEvery{50};

}  // namespace

LaunchQueue::LaunchQueue() : others_(std::make_unique<BlockRunner>()) {}
LaunchQueue::~LaunchQueue() { Drain(); }

void LaunchQueue::Run(std::function<void()> work) {
  if (gate_) return behind_.push_back([this, work = std::move(work)] { Run(work); });
  DrainTo(0);
  work();
}

void LaunchQueue::AddGate(std::function<bool()> open) {
  Run([this, open = std::move(open)] { gate_ = open; });
}

bool LaunchQueue::TryDrain() {
  for (;;) {
    if (gate_ && !gate_()) return false;
    gate_ = nullptr;
    if (behind_.empty()) break;
    const std::function<void()> work = std::move(behind_.front());
    behind_.pop_front();
    work();
  }
  DrainTo(0);
  return true;
}

void LaunchQueue::Drain() {
  while (!TryDrain()) std::this_thread::sleep_for(kLookEvery);
}

void LaunchQueue::Launch(const LaunchShape& shape, const std::function<void()>& thread) {
  if (gate_) return behind_.push_back([this, shape, thread] { Launch(shape, thread); });
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
