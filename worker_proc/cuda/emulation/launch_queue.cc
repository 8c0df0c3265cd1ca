#include "worker_proc/cuda/emulation/launch_queue.h"

#include <chrono>
#include <thread>
#include <utility>

#include "worker_proc/cuda/emulation/block_runner.h"

namespace flotilla::cuda::emulation {
namespace {

constexpr std::chrono::microseconds kSpin{500};
constexpr std::chrono::microseconds kLookEvery{50};

}  // namespace

LaunchQueue::LaunchQueue() : others_(std::make_unique<BlockRunner>()) {}
LaunchQueue::~LaunchQueue() { Drain(); }

void LaunchQueue::Run(std::function<void()> work) {
  if (!gate_) DrainTo(0);
  if (gate_) return behind_.push_back({true, std::move(work)});
  work();
}

void LaunchQueue::AddGate(std::function<bool()> open) {
  Run([this, open = std::move(open)] { gate_ = open; });
}

bool LaunchQueue::TryDrain() {
  for (;;) {
    if (gate_ && !gate_()) return false;
    gate_ = nullptr;
    if (behind_.empty() || behind_.front().alone) DrainTo(0);
    if (gate_) continue;
    if (behind_.empty()) return true;
    const std::function<void()> run = std::move(behind_.front().run);
    behind_.pop_front();
    run();
  }
}

void LaunchQueue::Drain() {
  const auto begin = std::chrono::steady_clock::now();
  while (!TryDrain()) {
    if (std::chrono::steady_clock::now() - begin < kSpin) {
      std::this_thread::yield();
    } else {
      std::this_thread::sleep_for(kLookEvery);
    }
  }
}

void LaunchQueue::Launch(const LaunchShape& shape, const std::function<void()>& thread) {
  if (gate_) return behind_.push_back({false, [this, shape, thread] { Launch(shape, thread); }});
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

bool LaunchQueue::FinishOldest() {
  if (!begun_.front()->Finish(others_.get())) return false;
  idle_.push_back(std::move(begun_.front()));
  begun_.pop_front();
  return true;
}

void LaunchQueue::DrainTo(size_t begun) {
  while (begun_.size() > begun) {
    if (FinishOldest()) continue;
    gate_ = [this] { return FinishOldest(); };
    return;
  }
}

}  // namespace flotilla::cuda::emulation
