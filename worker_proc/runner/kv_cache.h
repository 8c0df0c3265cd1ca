// How many KV pages there are: requirement 004's formula for a device's own memory, after a warm-up
// has shown what steps take, and a rule for the host's.
//
// Units: bytes, pages (the document's blocks), tokens. Pure functions. Errors: InvalidArgument or
// ResourceExhausted with the flag that mends it.
#pragma once

#include <cstdint>
#include <vector>

#include "common/base/status.h"

namespace flotilla {

// Bytes of one block: 2 (K and V) * layers * block_size * kv_heads * head_dim * dtype_bytes.
uint64_t KvBlockBytes(uint32_t num_layers, uint32_t block_size, uint32_t num_kv_heads,
                      uint32_t head_dim, uint32_t dtype_bytes);

// A device's memory when the KV cache is sized, after the warm-up (profile).
struct DeviceMemory {
  uint64_t total = 0;
  double utilization = 0.9;  // share of the total we may use
  uint64_t used = 0;         // by everyone
  uint64_t peak = 0;         // of our own, during the warm-up
  uint64_t current = 0;      // of our own, now
};
// From what the device says after a warm-up whose memory stays taken, so that the peak is what is
// in use. free_at_start: before anything of ours was there.
DeviceMemory MemoryAfterWarmup(uint64_t total, uint64_t free, uint64_t free_at_start,
                               double utilization);
// total * utilization - used - peak + current; 0 if that is negative.
uint64_t KvCacheBytes(const DeviceMemory& memory);

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

struct HostKvRequest {
  uint64_t kv_cache_memory = 0;      // flag: bytes of the whole replica, all ranks; 0: choose
  uint64_t available_bytes = 0;      // memory that can be had, cgroup limits included
  std::vector<uint64_t> page_bytes;  // of each rank
  uint32_t page_size = 0;            // tokens
  uint32_t context_length = 0;       // tokens: at least one such request must fit
  // The ranks whose memory that is, those of this host: [first, first + number); 0: all.
  uint32_t first_local_rank = 0, local_ranks = 0;
};
// Pages each rank gets (the same number on all). 0 chooses 512 MiB, or what one context takes if
// that is more, but at most a quarter of what is available, where other hosts count as having as
// much for each of their ranks as this one.
StatusOr<uint64_t> HostKvPages(const HostKvRequest& request);

}  // namespace flotilla
