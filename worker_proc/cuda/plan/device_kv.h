// How many KV pages a device has room for, after the warm-up has shown what steps take (requirement
// 004's formula, runner/kv_cache.h).
//
// Units: bytes, pages, tokens. Threads: any (pure). Errors: ResourceExhausted with the flag that
// mends it.
#pragma once

#include <cstdint>
#include <vector>

#include "common/base/status.h"
#include "worker_proc/runner/kv_cache.h"

namespace flotilla::cuda {

struct DeviceKvRequest {
  DeviceMemory memory;               // this rank's device, after the warm-up
  uint64_t graph_bytes = 0;          // kept back for graphs, which are captured later
  uint64_t kv_cache_memory = 0;      // flag: of the whole replica, all ranks; 0: what is left
  std::vector<uint64_t> page_bytes;  // of each rank
  uint32_t rank = 0;
  uint32_t page_size = 0;       // tokens
  uint32_t context_length = 0;  // tokens: at least one such request must fit
};
StatusOr<uint64_t> DeviceKvPages(const DeviceKvRequest& request);

}  // namespace flotilla::cuda
