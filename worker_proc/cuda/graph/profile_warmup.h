// Runs a warm-up and sees what memory it took: requirement 004's peak, which the KV cache must
// leave free.
//
// Units: bytes. Threads: one. Errors: the device's and the warm-up's.
#pragma once

#include <functional>

#include "common/base/status.h"
#include "worker_proc/cuda/graph/graph_api.h"
#include "worker_proc/runner/kv_cache.h"

namespace flotilla::cuda {

// `warmup` runs the largest step on kCompute. What it and all before it allocated stays allocated
// (an arena, libraries' workspaces), so the peak is what is in use when it has ended.
// free_at_start: before anything of ours was allocated.
StatusOr<DeviceMemory> ProfileWarmup(GraphApi* api, uint64_t free_at_start, double utilization,
                                     const std::function<Status()>& warmup);

}  // namespace flotilla::cuda
