// Which batch sizes get a CUDA graph, and which graph a step replays (requirement 002).
//
// A bucket is a PlanShape: num_seqs requests of tokens_per_request tokens each (1, or 1 + the draft
// tokens of speculation). A step belongs to the first bucket that has room for its tokens and for
// its sequences; beyond the last one it runs eager, where launches no longer count.
//
// Units: requests, tokens. Threads: any (pure). Errors: InvalidArgument naming the flag. Source:
// requirement 002's "Padding and Bucketing"; the sizes are SGLang's.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "common/base/status.h"
#include "worker_proc/model/backend.h"

namespace flotilla::cuda {

struct GraphSizeOptions {
  uint32_t max_running_requests = 64;
  uint32_t tokens_per_request = 1;
  // --cuda-graph-sizes: tokens, rising; what is above the largest is left out. Empty: 1, 2, 4, 8,
  // 12, then 8 apart from 16 to 256, then 16 apart, each times tokens_per_request.
  std::vector<uint32_t> cuda_graph_sizes = {};
  uint32_t cuda_graph_max_size = 512;  // --cuda-graph-max-size: tokens; 0: no graphs
};

// Rising. The largest step of decodes within cuda_graph_max_size always has a bucket.
StatusOr<std::vector<PlanShape>> GraphBuckets(const GraphSizeOptions& options);

// An index into `buckets`; none: eager.
std::optional<size_t> GraphBucketOf(std::span<const PlanShape> buckets, const PlanShape& step);

}  // namespace flotilla::cuda
