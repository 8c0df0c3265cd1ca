// Which shapes of steps are prepared before the first one runs, and which of them a step belongs to
// (requirement 000: one padding strategy for precompile and real runs).
//
// A prefill step's bucket is the first of the token paddings that is not below its tokens, with the
// batch size that no step exceeds; a decode step's, the first of the batch size paddings. Mixed
// steps are prefill steps with more rows. The largest step always has a bucket, so that with all of
// them prepared no step lacks one. Backends whose kernels are ragged, as the CPU's, pad nothing: to
// them a bucket is the room that a step of it needs.
//
// Units: tokens, sequences. Threads: any (pure, const). Errors: InvalidArgument naming the flag.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "worker_proc/model/backend.h"

namespace flotilla {

struct PaddingOptions {
  uint32_t chunked_prefill_size = 512;
  uint32_t max_running_requests = 64;
  // Rising; what is above the largest step is left out. Empty: powers of two.
  std::vector<uint32_t> precompile_token_paddings = {};
  std::vector<uint32_t> precompile_bs_paddings = {};
};

// The largest step: chunks of prompts beside a token of every request. (The scheduler's
// max_prefill_tokens bounds what is admitted at once, which chunks make several steps of.)
PlanShape GetMaxPaddedSize(const PaddingOptions& options);

class PaddingPolicy {
 public:
  static StatusOr<PaddingPolicy> Create(const PaddingOptions& options);

  // Prefill buckets by rising tokens, then decode buckets by rising batch size.
  const std::vector<PlanShape>& buckets() const { return buckets_; }
  size_t num_prefill() const { return num_prefill_; }
  // An index into buckets(); the step is within the largest.
  size_t BucketOf(ForwardMode mode, const PlanShape& step) const;

 private:
  std::vector<PlanShape> buckets_;
  size_t num_prefill_ = 0;
};

}  // namespace flotilla
