// The flight recorder's records: every call of the core with what it got, and behind it the answer,
// with a hash of what was decided, so that the same core can be led through the same calls again. A
// call is written before it is made: one without an answer is the one in which the core died. Now
// and then a key frame: the core's whole state, from which a replay can begin when what was before
// is overwritten.
//
// Rows of results and prompts are packed: a row that decodes takes 5 bytes or less, a token 3.
// Prompts and tokens are in the records (the core's decisions depend on them); logprobs are not.
// Threads: one. Errors: ParseFlightRecord: DataLoss, for bytes that are no record.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "scheduler_proc/core/scheduler.h"

namespace flotilla {

enum class FlightKind : uint8_t {
  kConfig = 1,      // config; the first of a process
  kBeginEpoch = 2,  // epoch, num_pages
  kAdd = 3,         // spec, has_grammar, now_ns
  kAbort = 4,       // id, reason
  kTruncate = 5,    // id, num_tokens, now_ns
  kExpire = 6,      // now_ns
  kPlan = 7,        // now_ns
  kResult = 8,      // result, now_ns
  // config, snapshot, parts_left; ok: the record of each call before it is there. A large one is
  // in several records: the next parts_left are the parts that its snapshot goes on with.
  kKeyFrame = 9,
  // Of the call before it: ok; of a plan that is ok, step_id and plan_hash; of an Add or a result,
  // in `answers`, what grammars said.
  kAnswer = 10,
  kKeyFramePart = 11,  // snapshot, parts_left
};

// Of the core: an answer follows.
constexpr bool IsCall(FlightKind kind) {
  return kind >= FlightKind::kBeginEpoch && kind <= FlightKind::kResult;
}

struct FlightRecord {
  FlightKind kind = FlightKind::kConfig;
  int64_t now_ns = 0;
  bool ok = false;  // what the core answered
  ReqId id = 0;
  Finish reason = Finish::kNone;
  uint32_t num_tokens = 0, epoch = 0, num_pages = 0;
  uint64_t step_id = 0, plan_hash = 0;  // plan_hash.h
  SchedulerConfig config;
  ReqSpec spec;  // without its grammar
  bool has_grammar = false;
  StepResult result;     // rows with slot, token, and how many prompt logprobs from where
  std::string snapshot;  // Scheduler::Save, or a part of it
  uint32_t parts_left = 0;
  std::string answers;  // recorded_grammar.h
};

void BuildFlightRecord(const FlightRecord& record, std::string* bytes);
// A kResult, without a copy of the result.
void BuildResultRecord(const StepResult& result, int64_t now_ns, std::string* bytes);
// Reuses *record's memory; only the fields of its kind are meaningful.
Status ParseFlightRecord(std::string_view bytes, FlightRecord* record);

}  // namespace flotilla
