// Sampling where the logits are, of a backend that has them in memory of its own: the same tokens
// and logprobs as Sampler's from the same bits.
//
// Units, threads: as sampler.h. Ownership: the backend's; what the queries refer to lives during
// the call. Errors: DataLoss when a row's logits are not finite; what the device says.
#pragma once

#include <cstdint>
#include <span>

#include "worker_proc/model/backend.h"
#include "worker_proc/runner/sampler.h"

namespace flotilla {

// What is asked of a row of logits.
struct SampleQuery {
  uint32_t row = 0;
  SampleInput input;
  int32_t given = -1;  // this token's logprobs, without a draw; -1: draw one
  uint32_t num_top = 0;
  PositionLogprobs* logprobs = nullptr;  // where they go; null: none are asked for
};

class DeviceSampler {
 public:
  virtual ~DeviceSampler() = default;
  // tokens[i]: what queries[i] led to; -1 for a row that fails, and then the others are there too.
  virtual Status Sample(Tensor logits, std::span<const SampleQuery> queries,
                        std::span<int32_t> tokens) = 0;
};

}  // namespace flotilla
