// A reusable barrier for a fixed number of threads, of one process or of several that map the same
// memory. For compute threads inside a step; ranks use Collective.
//
// All parties call Wait; it returns in all of them once the last has called. What each wrote before
// its Wait is visible to all after theirs. A party that waits past the deadline breaks the barrier
// for good: it gets DeadlineExceeded, the others, now and later, Aborted. (A party that had already
// seen the last arrive gets OK.) A party that dies makes the others' waits end that way.
//
// Threads: one thread a party. Ownership: the state is the caller's, zeroed once (BarrierState{}),
// and outlives every Barrier on it.
#pragma once

#include <atomic>
#include <cstdint>

#include "common/base/status.h"
#include "shm/futex.h"

namespace flotilla {

struct BarrierState {
  alignas(64) std::atomic<uint32_t> arrived{0};
  alignas(64) std::atomic<uint32_t> phase{0};  // +1 when the last party arrives or it breaks
  std::atomic<uint32_t> broken{0};
  std::atomic<uint32_t> sleepers{0};  // how many sleep on phase or are about to
};

class Barrier {
 public:
  Barrier(BarrierState* state, uint32_t parties, WaitPolicy wait)
      : state_(state), parties_(parties), wait_(wait) {}

  // deadline_ns: CLOCK_MONOTONIC; INT64_MAX: none.
  Status Wait(int64_t deadline_ns = INT64_MAX);

 private:
  void Advance();

  BarrierState* state_;
  uint32_t parties_;
  WaitPolicy wait_;
};

}  // namespace flotilla
