// The CPU backend's compute threads: a parallel for over items, hundreds of times a step.
//
// The caller is worker 0. Each worker has a share of the items, which it claims a few at a time
// from the front; whoever is through with its own takes from the backs of the others'. So a worker
// reads what lies beside each other, as the hardware's prefetchers like it, a thread that the
// system takes off its core delays no more than the items it holds, and one that is still asleep
// when the others have finished is not waited for. Which worker runs an item never matters to the
// result: `worker` only names scratch memory that no one else uses meanwhile.
//
// A worker without work spins for spin_ns, then sleeps on a futex: regions of one step meet by
// spinning, between steps nothing runs. spin_ns must be 0 where compute threads outnumber the cores
// they may use: a spinning thread would keep the one it waits for from running.
//
// Pinned threads stay on the CPU that is theirs, the caller from the constructor on.
//
// Threads: ParallelFor by one thread at a time, not from inside an item. What the caller wrote
// before is visible to all items; what items wrote is visible to the caller after. Signals are the
// caller's: all are blocked in the pool's threads. Errors: none; items must not throw. Source:
// ours.
#pragma once

#include <sched.h>

#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

namespace flotilla::cpu {

struct ThreadPoolOptions {
  uint32_t threads = 1;  // the caller included
  int64_t spin_ns = 0;
  std::vector<uint32_t> cpus = {};  // one for each thread, the caller first; empty: not pinned
};

class ThreadPool {
 public:
  explicit ThreadPool(const ThreadPoolOptions& options = {});
  ~ThreadPool();  // by the thread that calls ParallelFor
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  uint32_t threads() const { return static_cast<uint32_t>(workers_.size()) + 1; }

  // f(begin, end, worker) for pieces that together are [0, count), each item once; worker <
  // threads(). Pieces have at most `grain` items, unless one worker takes all in one piece. With a
  // grain of 1, the shares are of every threads()-th item: where the first ones take longest, each
  // worker begins with one of those. Returns when all are done.
  template <typename F>
  void ParallelFor(uint32_t count, uint32_t grain, const F& f) {
    if (workers_.empty() || count <= grain) {
      if (count > 0) f(uint32_t{0}, count, uint32_t{0});
      return;
    }
    const auto call = [](const void* context, uint32_t begin, uint32_t end, uint32_t worker) {
      (*static_cast<const F*>(context))(begin, end, worker);
    };
    const auto pieces = static_cast<uint32_t>((uint64_t{count} + grain - 1) / grain);
    RunRegion({count, grain, pieces, call, &f});
  }

  // Adds 1 to *bell and wakes who waits there, where it holds up the work the least: waking a
  // process may cost the waker its core. Another worker does it on its way into the next region; if
  // none has come by that region's end, the caller. *bell outlives the pool.
  void WakeSoon(std::atomic<uint32_t>* bell);

  // For a thread that the owner started and that computes nothing: it may run wherever the owner
  // might before it was pinned.
  void Unpin() const;

  // A grain that gives each worker about four pieces of `count` items, in whole `unit`s.
  uint32_t Grain(uint32_t count, uint32_t unit = 1) const;

 private:
  struct Region {
    uint32_t count = 0;
    uint32_t grain = 1;
    uint32_t pieces = 0;
    void (*call)(const void*, uint32_t, uint32_t, uint32_t) = nullptr;
    const void* context = nullptr;
  };

  void RunRegion(const Region& region);
  void WorkerMain(uint32_t worker);
  // Sleeps or spins until a region after `seen` is open (true) or the pool ends (false).
  bool WaitForRegion(uint64_t seen);
  // [begin, end) of a worker's pieces that nobody has claimed, as one number.
  struct alignas(64) Share {
    std::atomic<uint64_t> left{0};
  };
  // How many pieces the shares before this one have, of several items each.
  uint32_t FirstOf(const Region& region, uint32_t share) const {
    return static_cast<uint32_t>(uint64_t{region.pieces} * share / shares_.size());
  }
  uint32_t PiecesOf(const Region& region, uint32_t share) const;
  void ClaimItems(uint32_t worker);
  void RunPiece(const Region& region, uint32_t share, uint32_t index, uint32_t worker) const;
  void WakeIfOwed();
  void Leave();

  const int64_t spin_ns_;
  std::vector<Share> shares_;  // of each worker
  cpu_set_t unpinned_;
  std::vector<std::thread> workers_;  // 1 … threads() - 1

  // [generation : 32 | closed : 1 | workers inside : 31]. A worker enters by adding 1 while the
  // region is open; the caller closes it once no item is unclaimed and waits until nobody is
  // inside. region_ and shares_ are written only while the last region is closed and empty.
  alignas(64) std::atomic<uint64_t> state_;
  alignas(64) std::atomic<uint32_t> sleepers_{0};  // workers that sleep on bell_ or are about to
  std::atomic<uint32_t> bell_{0};                  // futex: a region opened, or the end
  std::atomic<uint32_t> caller_sleeps_{0};
  std::atomic<uint32_t> done_bell_{0};  // futex: the last worker left a closed region
  std::atomic<std::atomic<uint32_t>*> owed_bell_{nullptr};  // whoever takes it out rings it
  std::atomic<bool> stop_{false};
  Region region_;
};

}  // namespace flotilla::cpu
