#include "shm/barrier.h"

#include "common/base/clock.h"
#include "shm/points.h"
#include "shm/spin.h"

namespace flotilla {

void Barrier::Advance() {
  // seq_cst here and in Wait: we see the sleeper, or it sees the new phase.
  state_->phase.fetch_add(1, std::memory_order_seq_cst);
  FLOTILLA_SHM_POINT();
  if (state_->sleepers.load(std::memory_order_seq_cst) == 0) return;
  FutexWakeAll(&state_->phase);
}

Status Barrier::Wait(int64_t deadline_ns) {
  // In this order, against a breaker that sets `broken` and then moves the phase.
  const uint32_t phase = state_->phase.load(std::memory_order_seq_cst);
  if (state_->broken.load(std::memory_order_seq_cst) != 0)
    return absl::AbortedError("barrier: broken");
  FLOTILLA_SHM_POINT();
  // acq_rel: the last party acquires what all others wrote, and hands it on with the phase.
  if (state_->arrived.fetch_add(1, std::memory_order_acq_rel) + 1 == parties_) {
    FLOTILLA_SHM_POINT();
    state_->arrived.store(0, std::memory_order_relaxed);
    FLOTILLA_SHM_POINT();
    Advance();
    return OkStatus();
  }
  const auto passed = [&] { return state_->phase.load(std::memory_order_seq_cst) != phase; };
  if (!SpinUntil(wait_.spin_ns, deadline_ns, passed)) {
    state_->sleepers.fetch_add(1, std::memory_order_seq_cst);
    FLOTILLA_SHM_POINT();
    bool timed_out = false;
    while (!timed_out && !passed()) timed_out = !FutexWait(&state_->phase, phase, deadline_ns);
    state_->sleepers.fetch_sub(1, std::memory_order_relaxed);
  }
  if (passed()) {
    return state_->broken.load(std::memory_order_acquire) == 0
               ? OkStatus()
               : absl::AbortedError("barrier: broken");
  }
  state_->broken.store(1, std::memory_order_seq_cst);
  FLOTILLA_SHM_POINT();
  Advance();
  return absl::DeadlineExceededError("barrier: a party did not arrive");
}

}  // namespace flotilla
