// Leads a core through a flight recording: what it decides must be what was recorded, call by call.
//
// It begins at the oldest configuration, with a new core, or key frame, with the core that was
// saved; what lies before that is of calls whose beginning the ring has overwritten. A later key
// frame must be what the core saves there. Grammars are not recorded but what they answered is
// (recorded_grammar.h).
//
// A last call that has no answer is the one in which the scheduler died (or that it was in when it
// was killed, or looked at). It is run again only if the caller wants it: what it died of, it dies
// of again.
//
// Threads: one. Errors: DataLoss for records that are broken, or without a beginning; a decision
// that differs is no error but the report's `difference`.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "scheduler_proc/flight/flight_record.h"

namespace flotilla {

// Of a call, as Scheduler names it.
const char* CallName(FlightKind kind);

struct ReplayReport {
  uint64_t records = 0;  // calls, answered ones, and configurations and key frames
  uint64_t steps = 0, requests = 0;
  uint64_t skipped = 0;                   // records before the beginning
  bool from_key_frame = false;            // what was before that is overwritten
  uint64_t key_frames = 0;                // that the core agreed with
  std::string difference;                 // empty: it decided the same
  std::vector<Scheduler::Progress> live;  // requests at the end, or at the difference
  std::string ended_in;                   // the call without an answer; empty: all have one
  bool lacks_grammars =
      false;  // it was run without what grammars said in it, so it may go otherwise
};

// What a visitor sees after each record.
struct ReplayMoment {
  const FlightRecord& record;             // of a call with its answer
  const StepPlan& plan;                   // of a kPlan that is ok
  const std::vector<ReqOutput>& outputs;  // that the call gave
  const Scheduler& core;
  bool begins = false;   // the core is another from here on: a new one, or out of a key frame
  bool answered = true;  // else the recording ends in this call, and the answer is today's
};

// unanswered: called before the last call is run again, if it has no answer; null: it is not run.
StatusOr<ReplayReport> Replay(const std::vector<std::string>& records,
                              const std::function<void(const ReplayMoment&)>& visit,
                              const std::function<void(FlightKind)>& unanswered = nullptr);

struct Trace {
  std::string json;
  std::string error;  // why it ends before the recording does; empty: it is all there
};

// Chrome's trace format (also Perfetto's), JSON. Tracks: the workers' steps; the scheduler's plans,
// from planned to answered, with what is retracted and why the first that waits does; and of each
// request its waiting, prefill and decoding, those included that live at the end. Times are
// microseconds from the first call. Where the core decides otherwise than recorded, or a record is
// broken, it ends with a mark. Errors: Replay's, if there is nothing before.
StatusOr<Trace> TraceRecords(const std::vector<std::string>& records);

}  // namespace flotilla
