// How many graphs there may be: requirement 002's formula of resources, this device's memory and
// patience, and which sizes stay when there are more than that.
//
// The document's resources are streams: each graph takes one a layer and one more, times what the
// communication of each group of ranks adds. Its two ways of communicating are kept: kernels within
// the graph (its AIV; NCCL's and ours), or tasks beside it (its FFTS+).
//
// Units: graphs, bytes, nanoseconds. Threads: any (pure). Errors: none.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "worker_proc/model/backend.h"

namespace flotilla::cuda {

// 2,048, of which 248 are kept back.
inline constexpr uint32_t kMaxGraphResources = 1800;

enum class CommExpansion : uint32_t { kKernels, kTasks };

struct GraphResources {
  uint32_t max_resources = kMaxGraphResources;
  uint32_t num_layers = 0;
  uint32_t draft_layers = 0;  // of the draft model; 0: there is none
  uint32_t comm_groups = 0;   // those of more than one rank: tensor parallel, data parallel
  CommExpansion comm = CommExpansion::kKernels;
  // With kKernels: collectives of a dense model's layers take resources of their own.
  bool dense_collectives = true;
};
uint32_t MaxGraphs(const GraphResources& resources);

// What one more graph costs, as measured, and what all of them together may.
struct GraphCosts {
  uint64_t bytes = 0;
  int64_t ns = 0;
};
struct GraphLimits {
  uint32_t max_graphs = kMaxGraphResources;
  uint64_t max_bytes = UINT64_MAX;
  int64_t max_ns = INT64_MAX;
};
// How many more there may be when `done` graphs took `spent`.
uint32_t GraphsLeft(const GraphLimits& limits, uint32_t done, const GraphCosts& spent,
                    const GraphCosts& each);

// `count` of `buckets` (rising): the largest, then 1, 2, 4 and 8 requests, then evenly spread ones.
std::vector<PlanShape> Resample(std::span<const PlanShape> buckets, uint32_t count);

}  // namespace flotilla::cuda
