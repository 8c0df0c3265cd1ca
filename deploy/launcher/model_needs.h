// The memory that replicas of a model take on this host, about: what `flotilla doctor` compares
// with what there is. `flotilla size` computes it exactly, rank by rank.
//
// Units: bytes. Threads: any.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>

#include "common/base/status.h"
#include "common/checkpoint/checkpoint.h"
#include "deploy/launcher/options.h"

namespace flotilla {

struct ModelNeeds {
  std::string name;
  uint32_t replicas = 1;
  // Of each replica.
  uint64_t weight_bytes = 0;
  uint64_t kv_bytes = 0;       // --kv-cache-memory, or what is taken without
  uint64_t context_bytes = 0;  // what one context takes; less does not start
  uint64_t process_bytes = 0;

  uint64_t cache_bytes() const { return std::max(kv_bytes, context_bytes); }
  uint64_t all() const { return replicas * (weight_bytes + cache_bytes() + process_bytes); }
};

// tp: ranks of a replica.
ModelNeeds NeedsOf(const Checkpoint& model, const std::string& name, const ServeOptions& options,
                   uint32_t tp, uint64_t available_bytes);

// Replicas that start at the same time each find free what all of them want: so several are told
// the size of their KV caches, unless that was chosen, and refused if they do not fit together.
// ResourceExhausted: with what each needs.
Status ShareMemory(const ModelNeeds& needs, uint64_t available_bytes, ServeOptions* options);

}  // namespace flotilla
