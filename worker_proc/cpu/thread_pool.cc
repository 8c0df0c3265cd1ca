#include "worker_proc/cpu/thread_pool.h"

#include <pthread.h>
#include <signal.h>

#include <algorithm>
#include <string>

#include "common/base/check.h"
#include "shm/futex.h"
#include "shm/spin.h"

namespace flotilla::cpu {
namespace {

constexpr uint64_t kGeneration = uint64_t{1} << 32;
constexpr uint64_t kClosed = uint64_t{1} << 31;
constexpr uint64_t kInside = kClosed - 1;

uint64_t GenerationOf(uint64_t state) { return state / kGeneration; }
// Of a Share: [begin : 32 | end : 32].
constexpr uint64_t kOneOffTheFront = uint64_t{1} << 32;
uint32_t BeginOf(uint64_t left) { return static_cast<uint32_t>(left >> 32); }
uint32_t EndOf(uint64_t left) { return static_cast<uint32_t>(left); }

bool IsOpen(uint64_t state) { return (state & kClosed) == 0; }

// A CPU that is gone, or not ours any more, is no reason not to compute.
void Pin(pthread_t thread, uint32_t cpu) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(cpu, &set);
  pthread_setaffinity_np(thread, sizeof(set), &set);
}

}  // namespace

ThreadPool::ThreadPool(const ThreadPoolOptions& options)
    : spin_ns_(options.spin_ns), shares_(options.threads), state_(kClosed) {
  CHECK(options.threads >= 1);
  CPU_ZERO(&unpinned_);
  sched_getaffinity(0, sizeof(unpinned_), &unpinned_);
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  for (uint32_t worker = 1; worker < options.threads; ++worker) {
    workers_.emplace_back([this, worker] { WorkerMain(worker); });
    pthread_setname_np(workers_.back().native_handle(),
                       ("compute-" + std::to_string(worker)).c_str());
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  if (options.cpus.empty()) return;
  CHECK(options.cpus.size() == options.threads);
  for (uint32_t worker = 1; worker < options.threads; ++worker) {
    Pin(workers_[worker - 1].native_handle(), options.cpus[worker]);
  }
  Pin(pthread_self(), options.cpus[0]);
}

void ThreadPool::Unpin() const { sched_setaffinity(0, sizeof(unpinned_), &unpinned_); }

ThreadPool::~ThreadPool() {
  stop_.store(true, std::memory_order_seq_cst);
  bell_.fetch_add(1, std::memory_order_seq_cst);
  FutexWakeAll(&bell_);
  for (std::thread& worker : workers_) worker.join();
}

uint32_t ThreadPool::Grain(uint32_t count, uint32_t unit) const {
  const uint32_t pieces = threads() * 4;
  const uint32_t grain = std::max(1u, count / pieces);
  return (grain + unit - 1) / unit * unit;
}

void ThreadPool::WakeSoon(std::atomic<uint32_t>* bell) {
  WakeIfOwed();  // there has been no region since the last
  owed_bell_.store(bell, std::memory_order_release);
  if (workers_.empty()) WakeIfOwed();
}

void ThreadPool::WakeIfOwed() {
  if (owed_bell_.load(std::memory_order_relaxed) == nullptr) return;
  std::atomic<uint32_t>* const bell = owed_bell_.exchange(nullptr, std::memory_order_acq_rel);
  if (bell == nullptr) return;
  bell->fetch_add(1, std::memory_order_seq_cst);
  FutexWakeAll(bell);
}

void ThreadPool::RunRegion(const Region& region) {
  region_ = region;
  for (uint32_t share = 0; share < shares_.size(); ++share) {
    shares_[share].left.store(PiecesOf(region, share), std::memory_order_relaxed);
  }
  const uint64_t generation = GenerationOf(state_.load(std::memory_order_relaxed)) + 1;
  // seq_cst here and in WaitForRegion: we see the sleeper, or it sees the open region.
  state_.store(generation * kGeneration, std::memory_order_seq_cst);
  if (sleepers_.load(std::memory_order_seq_cst) != 0) {
    sleepers_.store(0, std::memory_order_relaxed);
    bell_.fetch_add(1, std::memory_order_seq_cst);
    FutexWakeAll(&bell_);
  }
  ClaimItems(0);
  WakeIfOwed();

  state_.fetch_or(kClosed, std::memory_order_acq_rel);
  const auto empty = [this] { return (state_.load(std::memory_order_seq_cst) & kInside) == 0; };
  if (SpinUntil(spin_ns_, INT64_MAX, empty)) return;
  caller_sleeps_.store(1, std::memory_order_seq_cst);
  for (;;) {
    const uint32_t seen = done_bell_.load(std::memory_order_acquire);
    if (empty()) break;
    FutexWait(&done_bell_, seen, INT64_MAX);
  }
  caller_sleeps_.store(0, std::memory_order_relaxed);
}

uint32_t ThreadPool::PiecesOf(const Region& region, uint32_t share) const {
  const auto shares = static_cast<uint32_t>(shares_.size());
  if (region.grain == 1) return (region.pieces + shares - 1 - share) / shares;
  return FirstOf(region, share + 1) - FirstOf(region, share);
}

void ThreadPool::RunPiece(const Region& region, uint32_t share, uint32_t index,
                          uint32_t worker) const {
  const uint64_t piece =
      region.grain == 1 ? share + index * shares_.size() : FirstOf(region, share) + index;
  const uint64_t begin = piece * region.grain;
  const uint64_t end = std::min<uint64_t>(region.count, begin + region.grain);
  region.call(region.context, static_cast<uint32_t>(begin), static_cast<uint32_t>(end), worker);
}

void ThreadPool::ClaimItems(uint32_t worker) {
  const Region region = region_;
  const auto num_shares = static_cast<uint32_t>(shares_.size());
  for (uint32_t i = 0; i < num_shares; ++i) {
    const uint32_t share = (worker + i) % num_shares;
    const bool own = i == 0;
    std::atomic<uint64_t>& left = shares_[share].left;
    uint64_t seen = left.load(std::memory_order_relaxed);
    while (BeginOf(seen) < EndOf(seen)) {
      const uint64_t rest = own ? seen + kOneOffTheFront : seen - 1;
      if (!left.compare_exchange_weak(seen, rest, std::memory_order_relaxed)) continue;
      RunPiece(region, share, own ? BeginOf(seen) : EndOf(rest), worker);
      seen = left.load(std::memory_order_relaxed);
    }
  }
}

void ThreadPool::WorkerMain(uint32_t worker) {
  uint64_t seen = 0;  // the last generation that this worker has looked at
  while (WaitForRegion(seen)) {
    WakeIfOwed();  // outside the region: nobody waits for this worker meanwhile
    uint64_t state = state_.load(std::memory_order_acquire);
    seen = GenerationOf(state);
    bool entered = false;
    while (IsOpen(state) && GenerationOf(state) == seen && !entered) {
      entered = state_.compare_exchange_weak(state, state + 1, std::memory_order_acq_rel,
                                             std::memory_order_acquire);
    }
    if (!entered) continue;  // the others have finished it
    ClaimItems(worker);
    Leave();
  }
}

void ThreadPool::Leave() {
  // seq_cst here and in RunRegion: we see the sleeping caller, or it sees us gone.
  const uint64_t state = state_.fetch_sub(1, std::memory_order_seq_cst) - 1;
  if (IsOpen(state) || (state & kInside) != 0) return;
  if (caller_sleeps_.load(std::memory_order_seq_cst) == 0) return;
  done_bell_.fetch_add(1, std::memory_order_seq_cst);
  FutexWakeAll(&done_bell_);
}

bool ThreadPool::WaitForRegion(uint64_t seen) {
  const auto ready = [this, seen] {
    const uint64_t state = state_.load(std::memory_order_seq_cst);
    return (IsOpen(state) && GenerationOf(state) != seen) || stop_.load(std::memory_order_relaxed);
  };
  if (!SpinUntil(spin_ns_, INT64_MAX, ready)) {
    for (;;) {
      const uint32_t bell = bell_.load(std::memory_order_acquire);
      sleepers_.fetch_add(1, std::memory_order_seq_cst);
      if (ready()) break;  // sleepers_ may count us though we are awake: a needless wake-up call
      FutexWait(&bell_, bell, INT64_MAX);
      if (ready()) break;
    }
  }
  return !stop_.load(std::memory_order_acquire);
}

}  // namespace flotilla::cpu
