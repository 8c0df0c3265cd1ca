#include "worker_proc/cuda/graph/profile_warmup.h"

namespace flotilla::cuda {

StatusOr<DeviceMemory> ProfileWarmup(GraphApi* api, uint64_t free_at_start, double utilization,
                                     const std::function<Status()>& warmup) {
  RETURN_IF_ERROR(warmup());
  RETURN_IF_ERROR(api->Synchronize(DeviceStream::kCompute));
  ASSIGN_OR_RETURN(const DeviceMemoryInfo info, api->Memory());
  DeviceMemory memory;
  memory.total = info.total;
  memory.utilization = utilization;
  memory.used = info.total - info.free;
  memory.current = free_at_start > info.free ? free_at_start - info.free : 0;
  memory.peak = memory.current;
  return memory;
}

}  // namespace flotilla::cuda
