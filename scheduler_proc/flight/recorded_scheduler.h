// The core with a flight recorder beside it: the same calls, each written down before it is made
// and answered when it is over, so that the call in which the core dies is there; and now and then
// a key frame: all that the core knows, from which a replay can begin.
//
// Without a ring it is only the core. Threads: one. Ownership: the ring is the caller's. Errors: as
// the core's. A record that the ring does not take is counted; nothing is recorded then until the
// next key frame, which is due at once.
#pragma once

#include <string>
#include <vector>

#include "scheduler_proc/core/scheduler.h"
#include "scheduler_proc/flight/flight_record.h"
#include "scheduler_proc/flight/recorded_grammar.h"
#include "shm/flight_ring.h"

namespace flotilla {

class RecordedScheduler {
 public:
  RecordedScheduler(const SchedulerConfig& config, FlightRingWriter* ring);

  Status Add(ReqSpec spec, int64_t now_ns);
  bool Abort(ReqId id, Finish reason, std::vector<ReqOutput>* outputs = nullptr);
  bool Truncate(ReqId id, uint32_t num_tokens, int64_t now_ns, std::vector<ReqOutput>* outputs);
  void ExpireDeadlines(int64_t now_ns, std::vector<ReqOutput>* outputs);
  bool PlanStep(int64_t now_ns, StepPlan* plan);
  void OnResult(const StepResult& result, int64_t now_ns, std::vector<ReqOutput>* outputs);
  void BeginEpoch(uint32_t epoch, uint32_t num_pages);
  void SetPageLog(PageLog* log) { core_.SetPageLog(log); }

  // Writes a key frame if one is due: when a quarter of the ring was written since the last began,
  // or an eighth since it ended. One has at most three eighths, so one is always whole in the ring,
  // also while the next is written. It takes time (a millisecond for a hundred thousand cached
  // tokens), so call it when nobody waits for a plan.
  void WriteKeyFrameIfDue();

  const Scheduler& core() const { return core_; }
  uint64_t records_lost() const { return records_lost_; }
  uint64_t key_frames() const { return key_frames_; }
  // That were too long for the ring.
  uint64_t key_frames_lost() const { return key_frames_lost_; }
  // From the oldest moment in the ring with which a replay can begin, to the last call. 0: there is
  // none.
  int64_t covered_ns() const;

 private:
  // With which a replay can begin, oldest first; those that are overwritten go with the next.
  struct Beginning {
    uint64_t at = 0;  // in the ring
    int64_t ns = 0;   // 0: before the first call
  };

  void Write();
  void Append();
  void AddBeginning();
  void WriteKeyFrame();
  void NoteTime(int64_t now_ns);
  void WriteCall(FlightKind kind, int64_t now_ns = 0);
  void WriteAnswer(bool ok, const StepPlan* plan = nullptr);

  const SchedulerConfig config_;
  GrammarLog grammar_log_;  // of the call that runs
  Scheduler core_;
  FlightRingWriter* const ring_;
  FlightRecord record_;
  std::string bytes_;
  uint64_t bytes_until_key_frame_ = 0;
  std::vector<Beginning> beginnings_;
  int64_t last_ns_ = 0;  // of a call
  std::string snapshot_;
  bool gap_ = false;  // a record is missing since the last key frame
  uint64_t records_lost_ = 0, key_frames_ = 0, key_frames_lost_ = 0;
};

}  // namespace flotilla
