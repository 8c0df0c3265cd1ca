// One pause of a spin loop: gives the core's other hardware thread room and saves power.
#pragma once

#include <algorithm>
#include <cstdint>

#include "common/base/clock.h"

namespace flotilla {

inline void CpuRelax() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Calls ready() until it is true, `spin_ns` have passed or deadline_ns is reached; the clock is
// read every 32 pauses only. Returns what ready() returned last.
template <typename Ready>
bool SpinUntil(int64_t spin_ns, int64_t deadline_ns, Ready&& ready) {
  if (ready()) return true;
  if (spin_ns <= 0) return false;
  int64_t end_ns = 0;
  for (;;) {
    for (int i = 0; i < 32; ++i) {
      CpuRelax();
      if (ready()) return true;
    }
    const int64_t now_ns = RealClock::Now();
    if (end_ns == 0) end_ns = std::min(now_ns + spin_ns, deadline_ns);
    if (now_ns >= end_ns) return false;
  }
}

}  // namespace flotilla
