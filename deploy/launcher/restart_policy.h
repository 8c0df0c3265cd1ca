// When a process that ended is started again. Pure: time is passed in (CLOCK_MONOTONIC ns).
//
// The first restart is immediate, because a client is waiting; each further one doubles the delay
// from 250 ms up to 30 s. A life that was ready for kHealthyNs forgives what was before it; the
// time that it took to load is not of that, or what fails late in a long load would be tried
// without end or pause. An end that is another host's fault is no failure of this process; whoever
// fails there waits longer and longer. Threads: one.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>

#include "common/base/clock.h"

namespace flotilla {

class RestartPolicy {
 public:
  static constexpr int64_t kHealthyNs = 30 * kNsPerSecond;
  static constexpr int64_t kFirstDelayNs = 250 * kNsPerMs;
  static constexpr int64_t kMaxDelayNs = 30 * kNsPerSecond;

  void OnStart() { ready_ns_.reset(); }
  // Of this life; only the first time counts.
  void OnReady(int64_t now_ns) {
    if (!ready_ns_) ready_ns_ = now_ns;
  }

  // Returns when to start again.
  int64_t OnExit(int64_t now_ns) {
    if (ready_ns_ && now_ns - *ready_ns_ >= kHealthyNs) failures_ = 0;
    ++failures_;
    if (failures_ == 1) return now_ns;
    const uint32_t doublings = std::min<uint32_t>(failures_ - 2, 10);
    return now_ns + std::min(kFirstDelayNs << doublings, kMaxDelayNs);
  }

  // As OnExit, of an end because the peer on another host is lost.
  int64_t OnPeerLost(int64_t now_ns) const {
    const bool healthy = ready_ns_ && now_ns - *ready_ns_ >= kHealthyNs;
    return healthy ? now_ns : now_ns + kFirstDelayNs;
  }

  // Ends in a row without a healthy while between them.
  uint32_t failures() const { return failures_; }

 private:
  std::optional<int64_t> ready_ns_;
  uint32_t failures_ = 0;
};

}  // namespace flotilla
