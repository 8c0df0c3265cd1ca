// Counts calls whose callbacks may still come from gRPC's threads, so that what they post to can
// outlive them: the owner waits for zero before it goes.
//
// A call's stub and context hold its channel, and gRPC 1.51 joins its callback threads when the
// last channel goes. So a callback posts them along: gone on one of those threads, which can't join
// itself, they would take away the queue that it goes on to read.
//
// Threads: any.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <mutex>

namespace flotilla {

class CallTracker {
 public:
  void Add() {
    std::lock_guard<std::mutex> lock(mutex_);
    ++count_;
  }
  void Remove() {
    // Notified under the lock: the waiter may destroy us as soon as it sees zero.
    std::lock_guard<std::mutex> lock(mutex_);
    if (--count_ == 0) zero_.notify_all();
  }
  void WaitForZero() {
    std::unique_lock<std::mutex> lock(mutex_);
    zero_.wait(lock, [this] { return count_ == 0; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable zero_;
  int64_t count_ = 0;
};

}  // namespace flotilla
