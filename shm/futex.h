// Futex words shared between processes, and WaitPolicy: who may spin, and for how long.
//
// A waiter: read the word, check its condition, then FutexWait(word, value read). A waker: change
// what the condition reads, add 1 to the word (release), FutexWake. Memory order: the word's
// increment releases, its load acquires.
#pragma once

#include <atomic>
#include <cstdint>

#include "common/base/status.h"

namespace flotilla {

// Sleeps while *word == expected, until woken or deadline_ns (CLOCK_MONOTONIC; INT64_MAX =
// forever). Returns false only on timeout; may return true spuriously.
bool FutexWait(const std::atomic<uint32_t>* word, uint32_t expected, int64_t deadline_ns);
void FutexWake(std::atomic<uint32_t>* word, int count);
inline void FutexWakeAll(std::atomic<uint32_t>* word) { FutexWake(word, INT32_MAX); }

// Spin only where compute threads do not exceed the cores they may use; 0 means sleep at once.
struct WaitPolicy {
  int64_t spin_ns = 0;
};

}  // namespace flotilla
