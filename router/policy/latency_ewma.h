// A recent latency: samples count less the older they are (a third after kTimeConstantNs), a sample
// above the average is believed at once. Without samples it fades, so that what was slow once is
// tried again.
//
// Units: seconds; CLOCK_MONOTONIC ns. Threads: one at a time. Pure. Source: Finagle's peak EWMA.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "common/base/clock.h"

namespace flotilla {

class LatencyEwma {
 public:
  static constexpr int64_t kTimeConstantNs = 10 * kNsPerSecond;

  void Add(double seconds, int64_t now_ns) {
    const double kept = Kept(now_ns);
    seconds_ = std::max(seconds, seconds_ * kept + seconds * (1 - kept));
    last_ns_ = now_ns;
  }
  // 0: nothing is known.
  double Value(int64_t now_ns) const { return seconds_ * Kept(now_ns); }
  // As of the last sample: while answers are awaited, silence is no good sign.
  double Unfaded() const { return seconds_; }

 private:
  double Kept(int64_t now_ns) const {
    const int64_t age_ns = std::max<int64_t>(0, now_ns - last_ns_);
    return std::exp(-static_cast<double>(age_ns) / static_cast<double>(kTimeConstantNs));
  }

  double seconds_ = 0;
  int64_t last_ns_ = 0;
};

}  // namespace flotilla
