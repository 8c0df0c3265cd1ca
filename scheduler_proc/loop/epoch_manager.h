// The epoch protocol of shm/replica_control.h, seen from the scheduler: start-up is epoch 1, a rank
// that died (or came back as another process) is the next one.
//
//   kWaitLoaded ── every rank loaded or a survivor ──▶ kWaitReady ── all ready_epoch == epoch ──▶
//   kServing ── a rank dead or new, or Restart() ──▶ epoch + 1, kWaitLoaded
//
// Poll() never blocks; call it whenever the doorbell rang and at NextDeadlineNs(). Times are
// CLOCK_MONOTONIC ns, passed in. A rank that hangs is killed by the launcher, and dead then.
// Threads: the loop's. Errors: fatal ones only (a rank without memory for one KV page); then the
// process ends.
#pragma once

#include <cstdint>
#include <string>

#include "common/base/status.h"
#include "scheduler_proc/loop/step_port.h"
#include "shm/replica_control.h"

namespace flotilla {

class EpochManager {
 public:
  struct Options {
    uint32_t tp_size = 1;
    int64_t ready_timeout_ns = 60'000'000'000;  // Reset to ready; then the next epoch is tried
  };
  enum class State { kWaitLoaded, kWaitReady, kServing };
  enum class Event {
    kNone,
    kBegan,  // serving: BeginEpoch(epoch(), num_pages())
    kLost,   // not serving any more: plans in flight will not come back
  };
  EpochManager(const Options& options, ReplicaControlBlock* control, StepPort* port);

  StatusOr<Event> Poll(int64_t now_ns);
  // Forces the next epoch (a step failed or the step ring is stuck); Poll reports nothing for it.
  void Restart(const std::string& reason);

  State state() const { return state_; }
  bool serving() const { return state_ == State::kServing; }
  uint32_t epoch() const { return epoch_; }
  uint32_t num_pages() const { return num_pages_; }  // 0 before the first Reset
  int64_t NextDeadlineNs() const;                    // INT64_MAX: none

 private:
  bool Lost(uint32_t rank) const;
  bool CanJoin(uint32_t rank) const;
  void DropDeadReaders();
  Status AdmitAll(int64_t now_ns);
  bool AllReady() const;

  const Options options_;
  ReplicaControlBlock* const control_;
  StepPort* const port_;
  State state_ = State::kWaitLoaded;
  uint32_t epoch_ = 1;
  uint32_t num_pages_ = 0;
  int64_t ready_deadline_ns_ = INT64_MAX;
};

}  // namespace flotilla
