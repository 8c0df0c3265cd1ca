// Sampling where the logits are, of a backend that has them in memory of its own: the same tokens
// and logprobs as Sampler's from the same bits.
//
// The tokens stay there too, one a slot, for the next step that has TokenOfSlot in its input
// (forward_batch.h): so a step may be begun before the host has read what the one before sampled.
// Of several ranks, rank 0 draws, and within Begin its tokens come to the devices of all: they
// begin the same steps in the same order, each with what its own queries refer to.
//
// Units, threads: as sampler.h. Ownership: the backend's; what the queries refer to lives during
// the call. Errors: DataLoss when a row's logits are not finite; what the device says.
#pragma once

#include <cstdint>
#include <span>

#include "worker_proc/model/backend.h"
#include "worker_proc/runner/sampler.h"

namespace flotilla {

inline constexpr uint32_t kNoSlot = UINT32_MAX;

// What is asked of a row of logits.
struct SampleQuery {
  uint32_t row = 0;
  SampleInput input;
  int32_t given = -1;  // this token's logprobs, without a draw; -1: draw one
  uint32_t num_top = 0;
  uint32_t slot = kNoSlot;               // whose last token the draw becomes
  PositionLogprobs* logprobs = nullptr;  // where they go; null: none are asked for
};

class DeviceSampler {
 public:
  virtual ~DeviceSampler() = default;
  // tokens[i]: what queries[i] led to; -1 for a row that fails, and then the others are there too.
  virtual Status Sample(Tensor logits, std::span<const SampleQuery> queries,
                        std::span<int32_t> tokens) = 0;

  // The same in two parts, for steps behind each other. Begin: false: the queries are too long to
  // be answered at once, and Sample must do it. No queries: the step's end alone is awaited, and
  // what has been drawn is shared. What the queries refer to is read now, but for where their
  // logprobs go. `logits` are rank 0's.
  virtual StatusOr<bool> Begin(Tensor logits, std::span<const SampleQuery> queries) = 0;
  // Whether the oldest that was begun, and not taken, is done.
  virtual StatusOr<bool> Done() = 0;
  // Of the oldest, which is done: as Sample.
  virtual Status Take(std::span<const SampleQuery> queries, std::span<int32_t> tokens) = 0;
};

}  // namespace flotilla
