#include "worker_proc/cuda/plan/graph_sizes.h"

#include <algorithm>

#include "common/base/check.h"

namespace flotilla::cuda {
namespace {

// Requests, up to `most`.
std::vector<uint32_t> DefaultSizes(uint32_t most) {
  std::vector<uint32_t> sizes = {1, 2, 4, 8, 12};
  for (uint32_t size = 16; size <= most; size += size < 256 ? 8 : 16) sizes.push_back(size);
  return sizes;
}

// Tokens that the flag names, as requests.
StatusOr<std::vector<uint32_t>> GivenSizes(const GraphSizeOptions& options) {
  std::vector<uint32_t> sizes;
  uint32_t before = 0;
  for (const uint32_t tokens : options.cuda_graph_sizes) {
    if (tokens <= before) {
      return absl::InvalidArgumentError(StrCat("--cuda-graph-sizes: ", tokens, " follows ", before,
                                               "; they must rise, from 1 on"));
    }
    if (tokens % options.tokens_per_request != 0) {
      return absl::InvalidArgumentError(
          StrCat("--cuda-graph-sizes: ", tokens, " is not a multiple of the ",
                 options.tokens_per_request, " tokens that a request has in a step"));
    }
    before = tokens;
    sizes.push_back(tokens / options.tokens_per_request);
  }
  return sizes;
}

}  // namespace

StatusOr<std::vector<PlanShape>> GraphBuckets(const GraphSizeOptions& options) {
  CHECK(options.tokens_per_request > 0);
  const uint32_t most = std::min(options.max_running_requests,
                                 options.cuda_graph_max_size / options.tokens_per_request);
  if (most == 0) return std::vector<PlanShape>();
  std::vector<uint32_t> sizes;
  if (options.cuda_graph_sizes.empty()) {
    sizes = DefaultSizes(most);
  } else {
    ASSIGN_OR_RETURN(sizes, GivenSizes(options));
  }
  std::erase_if(sizes, [&](uint32_t size) { return size >= most; });
  sizes.push_back(most);
  std::vector<PlanShape> buckets;
  buckets.reserve(sizes.size());
  for (const uint32_t size : sizes) buckets.push_back({size * options.tokens_per_request, size});
  return buckets;
}

std::optional<size_t> GraphBucketOf(std::span<const PlanShape> buckets, const PlanShape& step) {
  const auto at = std::find_if(buckets.begin(), buckets.end(), [&](const PlanShape& bucket) {
    return bucket.num_tokens >= step.num_tokens && bucket.num_seqs >= step.num_seqs;
  });
  if (at == buckets.end()) return std::nullopt;
  return static_cast<size_t>(at - buckets.begin());
}

}  // namespace flotilla::cuda
