// The replica's load as the loop last saw it, for frames and GetLoad. A submit that waits in the
// inbox counts: producers add to `submitted` before they push, the loop publishes what it has taken
// together with its own figures. Threads: any.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>

#include "flotilla/v1/engine.pb.h"
#include "scheduler_proc/core/scheduler.h"

namespace flotilla {

class LoadBoard {
 public:
  void AddSubmitted(uint64_t tokens) {
    submitted_tokens_.fetch_add(tokens, std::memory_order_relaxed);
    submitted_.fetch_add(1, std::memory_order_release);
  }
  // A submit that was counted did not get into the inbox.
  void RemoveSubmitted(uint64_t tokens) {
    submitted_.fetch_sub(1, std::memory_order_relaxed);
    submitted_tokens_.fetch_sub(tokens, std::memory_order_relaxed);
  }
  void SetDraining() { draining_.store(true); }
  bool draining() const { return draining_.load(); }
  void SetRecovering(bool recovering) { recovering_.store(recovering); }

  // By the loop: its figures, and how many submits (prompt tokens) it took from the inbox so far.
  void Publish(const SchedulerStats& stats, uint64_t taken, uint64_t taken_tokens) {
    std::lock_guard lock(mutex_);
    stats_ = stats;
    taken_ = taken;
    taken_tokens_ = taken_tokens;
  }
  SchedulerStats stats() const {
    std::lock_guard lock(mutex_);
    return stats_;
  }
  void Fill(v1::Load* load) const {
    std::lock_guard lock(mutex_);
    const uint64_t waiting = submitted_.load(std::memory_order_acquire) - taken_;
    const uint64_t tokens = submitted_tokens_.load(std::memory_order_relaxed) - taken_tokens_;
    load->set_running_requests(stats_.running);
    load->set_waiting_requests(stats_.waiting + static_cast<uint32_t>(waiting));
    load->set_queued_tokens(stats_.queued_tokens + tokens);
    load->set_running_tokens(stats_.running_tokens);
    load->set_free_pages(stats_.free_pages + stats_.evictable_pages);
    load->set_total_pages(stats_.total_pages);
    load->set_draining(draining());
    load->set_recovering(recovering_.load());
  }

 private:
  std::atomic<uint64_t> submitted_{0};
  std::atomic<uint64_t> submitted_tokens_{0};
  std::atomic<bool> draining_{false};
  std::atomic<bool> recovering_{false};
  mutable std::mutex mutex_;
  SchedulerStats stats_;       // guarded by mutex_
  uint64_t taken_ = 0;         // guarded by mutex_
  uint64_t taken_tokens_ = 0;  // guarded by mutex_
};

}  // namespace flotilla
