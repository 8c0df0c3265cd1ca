// How a launcher uses the cores: ranks a replica, compute threads of each, and whether threads stay
// on one core. One pure function, whose answers are the defaults of serve and engine and what
// `flotilla doctor` prints.
//
// Never more compute threads than the cores that the affinity mask and the quota leave: they wait
// for each other. Threads are pinned where that is safe (nobody else uses those cores) and of use
// (several NUMA nodes, or cores that are ours alone).
//
// Units: cores, CPU numbers. Threads: any (pure). Errors: InvalidArgument naming the flag.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "deploy/launcher/machine.h"

namespace flotilla {

struct CoreRequest {
  std::string tp = "auto";  // or a number of ranks
  uint32_t threads = 0;     // of each worker; 0: choose
  uint32_t replicas = 1;
  std::string pin = "auto";  // on, off
  // Of the model: ranks at most, and at most without keeping a kv head twice.
  uint32_t query_heads = UINT32_MAX;
  uint32_t kv_heads = 1;
};

// Why threads are not pinned, if somebody could do something about it.
enum class PinProblem { kNone, kTooManyThreads, kSharedCores };

struct CorePlan {
  uint32_t cores = 1;  // that may be used
  uint32_t tp = 1;
  uint32_t threads = 1;  // of each worker
  bool pinned = false;
  PinProblem pin_problem = PinProblem::kNone;
  // Of each worker, replica by replica, a CPU for each of its threads; empty: not pinned.
  std::vector<std::vector<uint32_t>> cpus;
  std::string tp_reason, threads_reason, pin_reason;
};

StatusOr<CorePlan> PlanCores(const Machine& machine, const CoreRequest& request);

// Compute threads may spin only if each of all workers' has a core of its own.
uint32_t SpinUs(uint32_t threads, uint32_t workers, uint32_t cores);

}  // namespace flotilla
