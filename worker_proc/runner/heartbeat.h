// Tells the supervisor that this rank makes progress: beaten between layers, head tiles, weights
// and inside waits, so at least once a second.
//
// Threads: one beats, anyone reads the word. Ownership: the word is the control segment's.
#pragma once

#include <atomic>
#include <cstdint>

#include "common/base/clock.h"

namespace flotilla {

class Heartbeat {
 public:
  Heartbeat() = default;  // beats nothing
  Heartbeat(const Clock* clock, std::atomic<int64_t>* word) : clock_(clock), word_(word) {}

  void Beat() const {
    if (word_ != nullptr) word_->store(clock_->NowNs(), std::memory_order_relaxed);
  }

 private:
  const Clock* clock_ = nullptr;
  std::atomic<int64_t>* word_ = nullptr;
};

}  // namespace flotilla
