// Where a request's time went, as clients get it who ask for it (return_timing): seconds of each
// stage, which add up to the whole, and what kept it in the scheduler's queue the longest.
//
// The engine's stamps and the router's may be of two hosts' clocks, so only differences of one
// clock are told: what is not the engine's is the router's, the network and a replica that was lost
// included. Units: nanoseconds in, seconds out. Threads: any. Errors: none.
#pragma once

#include <cstdint>
#include <string>

#include "flotilla/v1/inference.pb.h"

namespace flotilla {

struct RequestStages {
  int64_t total_ns = 0, router_ns = 0, engine_ns = 0;  // the engine's: its own, before the queue
  int64_t queue_ns = 0, prefill_ns = 0, decode_ns = 0;
};
// The router had the request from received_ns to sent_ns. All but the total add up to it.
RequestStages StagesOf(const v1::Timing& timing, int64_t received_ns, int64_t sent_ns);

// {"total_seconds":…,"router_seconds":…,"engine_seconds":…,"queue_seconds":…,"prefill_seconds":…,
// "decode_seconds":…,"wait_reason":"…"}.
std::string TimingJson(const v1::Timing& timing, int64_t received_ns, int64_t sent_ns);

}  // namespace flotilla
