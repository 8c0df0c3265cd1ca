// A core that is led through all that can come, recorded; for tests of recordings. Threads: one.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "scheduler_proc/flight/recorded_scheduler.h"
#include "shm/flight_ring.h"

namespace flotilla::testing {

SchedulerConfig RecordedConfig();

struct RecordOptions {
  std::string policy = "fcfs";
  size_t ring_bytes = 8 << 20;
  bool key_frames = false;
  uint32_t long_prompt = 0;  // tokens of one request's
  ReqId requests = 150;
};

struct Recorded {
  uint64_t records_lost = 0, key_frames = 0, key_frames_lost = 0, retractions = 0,
           accepted_draft_tokens = 0;
};

// A few thousand calls with everything that can come: aborts, ends, epochs, retractions, grammars,
// drafts. Some requests wait and run at the end.
Recorded Record(uint64_t seed, const RecordOptions& options, const Segment& segment);
// The records of it. Expects that none is lost but a long prompt's, and that requests were
// retracted.
std::vector<std::string> RecordSome(uint64_t seed, const RecordOptions& options = {});

FlightKind KindOf(const std::string& bytes);

}  // namespace flotilla::testing
