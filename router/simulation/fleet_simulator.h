// The router's own policies under virtual time: a fleet of simulated replicas, conversations,
// failures and stragglers.
//
// A router sees of a replica what its frames would say: load and cached pages as of its last step,
// its own submissions at once, times to the first token as they come. A request whose replica dies
// is given to another one and goes on where it was. Router and network take no time.
//
// Units: seconds of virtual time, tokens. Threads: any, one a call. Errors: InvalidArgument for a
// policy that there is not.
#pragma once

#include <string>
#include <vector>

#include "common/base/status.h"
#include "router/simulation/sim_replica.h"

namespace flotilla {

struct FleetSimOptions {
  uint32_t replicas = 8;
  uint32_t routers = 1;  // each with a policy of its own; they do not know of each other's requests
  WorkloadOptions workload;
  ReplicaCost cost;
  double straggler_share = 0;  // of the replicas
  double straggler_slowdown = 3;
  uint32_t failures = 0;  // deaths of replicas, evenly over the time that requests come
  double down_s = 30;     // until such a one is back, empty
};

struct FleetReport {
  std::vector<double> ttft_s, e2e_s;  // rising
  uint64_t finished = 0;
  uint64_t moved = 0;  // requests whose replica died
  uint64_t prompt_tokens = 0, cached_tokens = 0;
  double duration_s = 0;
  // Of the replicas: the most computed tokens (prompt and output) over the mean, and likewise of
  // requests.
  double work_balance = 0, request_balance = 0;
  double HitRate() const {
    return prompt_tokens == 0
               ? 0
               : static_cast<double>(cached_tokens) / static_cast<double>(prompt_tokens);
  }
};
// The value that a share of a rising list is not above; 0 of an empty list.
double QuantileOf(const std::vector<double>& rising, double share);

StatusOr<FleetReport> SimulateFleet(const FleetSimOptions& options, const std::string& policy);

}  // namespace flotilla
