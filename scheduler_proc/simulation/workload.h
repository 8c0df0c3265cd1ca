// Requests for a simulation: made up, or as they came in a trace or a flight recording.
//
// A trace is a file of one JSON object a line:
//   {"at": 1.5, "prompt_tokens": 200, "output_tokens": 64}
// at: seconds from the start, not falling. Optional: "max_tokens" (default output_tokens), "prefix"
// and "prefix_tokens" (prompts that name the same prefix begin with the same so many tokens),
// "tenant", "priority". Prompts are made up, alike only where the trace says so.
//
// Units: tokens, nanoseconds. Threads: any. Errors: InvalidArgument, naming the line and the field.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/status.h"

namespace flotilla {

struct SimRequest {
  int64_t arrival_ns = 0;  // from the first request's or the trace's start
  uint32_t prompt_tokens = 0;
  uint32_t output_tokens = 0;  // it ends after so many
  uint32_t max_new_tokens = 0;
  uint64_t prefix = 0;  // 0: shares none
  uint32_t prefix_tokens = 0;
  std::string tenant = {};
  int32_t priority = 0;
  std::vector<int32_t> prompt_ids = {};  // if it is known; else made up
};

struct PoissonOptions {
  uint64_t num_requests = 0;
  double rate = 1;             // arrivals a second
  double prompt_tokens = 256;  // means; lengths are exponential, from a quarter of the mean
  double output_tokens = 64;   // to eight times it
  uint32_t prefix_tokens = 0;  // that all share
  uint64_t seed = 0;
};
std::vector<SimRequest> PoissonWorkload(const PoissonOptions& options);

StatusOr<std::vector<SimRequest>> ParseTrace(std::string_view text);
// What was asked of one scheduler, and how long the answers were; requests that had no answer yet
// when the recording ends have the length that they asked for at most. Of a recording that has lost
// its beginning also the requests that were there at its oldest key frame, as they once came.
StatusOr<std::vector<SimRequest>> RecordedWorkload(const std::vector<std::string>& records);

// The prompt of request number `index`: the same call, the same tokens. Token 0 never occurs.
std::vector<int32_t> MakePrompt(const SimRequest& request, uint64_t index, uint32_t vocab_size);

}  // namespace flotilla
