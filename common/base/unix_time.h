// The wall clock, for what other hosts and people are told. It may jump: durations and deadlines
// are measured by common/base/clock.h.
#pragma once

#include <chrono>
#include <cstdint>

namespace flotilla {

// Milliseconds since 1970.
inline int64_t UnixMs() {
  return std::chrono::duration_cast<std::chrono::milliseconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

}  // namespace flotilla
