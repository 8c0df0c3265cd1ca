// `flotilla size`, the arithmetic: from what a model takes, what a load asks for and what one
// replica was measured to do, to replicas, requests and memory of each, and flags.
//
// Nothing is simulated: requests are all as long as the typical one, all there at once, and spread
// evenly. (`flotilla simulate` knows queues.) The number of replicas is the least at which each
// has no more requests at once than every limit allows:
//   memory     weights, KV cache and overhead within replica_memory
//   requests   the most that a replica may run
//   ttft       the prompts of all its requests, come at one moment, read within ttft_ms
// and at which all together make the tokens a second that are asked for: tokens_per_second, or a
// token each inter_token_ms for every request. Of a measured rate only `utilization` is planned on.
//
// Units: tokens, bytes, milliseconds, tokens a second. Pure. Threads: any. Errors: InvalidArgument
// naming the flag that mends it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/base/memory_info.h"
#include "common/base/status.h"

namespace flotilla::bench {

// A model as a replica has it. One entry a rank.
struct ModelMemory {
  std::vector<uint64_t> weight_bytes;
  std::vector<uint64_t> page_bytes;
  uint32_t page_size = 16;
  uint32_t context_length = 0;  // of the longest request; its pages must fit

  uint64_t ReplicaPageBytes() const;
  uint64_t ReplicaWeightBytes() const;
};

struct SizeLoad {
  uint32_t requests = 1;                       // at once, of all clients
  uint32_t input_len = 512, output_len = 128;  // of the typical request
  double tokens_per_second = 0;                // of output, wanted; 0: whatever comes
  double ttft_ms = 0, inter_token_ms = 0;      // wanted; 0: whatever comes
  uint64_t replica_memory = 0;                 // most of one; 0: any
  double utilization = 0.8;
};

// Of one replica; 0: not known.
struct ReplicaRate {
  double output = 0;
  double prompt = 0;
  double cores = 0;  // with so many, or so many GPUs
};

struct SizePlan {
  uint32_t replicas = 1;
  std::string because;               // what decides the number: a flag of SizeLoad
  uint32_t requests = 1;             // at once, of each replica
  uint64_t pages = 0;                // of each replica
  uint64_t kv_cache_memory = 0;      // of each replica, for its flag: whole MiB
  std::vector<uint64_t> rank_bytes;  // weights and KV cache of each rank
  uint64_t replica_bytes = 0;        // those, and kReplicaOverheadBytes
  double tokens_per_second = 0;      // of output that all replicas can make; 0: not known
};

StatusOr<SizePlan> PlanSize(const ModelMemory& model, const SizeLoad& load,
                            const ReplicaRate& rate);

}  // namespace flotilla::bench
