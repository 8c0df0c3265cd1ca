// The core with a flight recorder beside it: the same calls, each written down with what came of
// it.
//
// Without a ring it is only the core. Threads: one. Ownership: the ring is the caller's. Errors: as
// the core's; a record that the ring does not take is counted, and a replay stops there.
#pragma once

#include <string>
#include <vector>

#include "scheduler_proc/core/scheduler.h"
#include "scheduler_proc/flight_record.h"
#include "shm/flight_ring.h"

namespace flotilla {

class RecordedScheduler {
 public:
  RecordedScheduler(const SchedulerConfig& config, FlightRingWriter* ring);

  Status Add(ReqSpec spec, int64_t now_ns);
  bool Abort(ReqId id, Finish reason);
  bool Truncate(ReqId id, uint32_t num_tokens, int64_t now_ns, std::vector<ReqOutput>* outputs);
  void ExpireDeadlines(int64_t now_ns, std::vector<ReqOutput>* outputs);
  bool PlanStep(int64_t now_ns, StepPlan* plan);
  void OnResult(const StepResult& result, int64_t now_ns, std::vector<ReqOutput>* outputs);
  void BeginEpoch(uint32_t epoch, uint32_t num_pages);

  const Scheduler& core() const { return core_; }
  uint64_t records_lost() const { return records_lost_; }

 private:
  void Write();

  Scheduler core_;
  FlightRingWriter* const ring_;
  FlightRecord record_;
  std::string bytes_;
  uint64_t records_lost_ = 0;
};

}  // namespace flotilla
