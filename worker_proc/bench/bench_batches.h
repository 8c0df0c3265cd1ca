// The steps that are measured: sequences whose first tokens lie in the KV cache already, as after
// earlier steps or a prefix hit.
//
// Units: tokens, pages. Pages are drawn from a shuffled list, as a server's come to lie. Pure.
// Errors: none; the caller sees to it that the pages and tokens are there.
#pragma once

#include <cstdint>
#include <span>

#include "shm/step_plan.h"
#include "worker_proc/bench/roofline_model.h"
#include "worker_proc/runner/forward_batch.h"

namespace flotilla::bench {

inline constexpr uint32_t kPageSize = 16;
// Of the compute threads, in microseconds: as a worker's that have cores of their own.
inline constexpr uint32_t kSpinUs = 50;

uint32_t PagesOf(std::span<const SequenceSize> sequences);
uint32_t TokensOf(std::span<const SequenceSize> sequences);

// A plan that opens a slot for each sequence, runs it, samples greedily from its last position and
// closes the slot, so that it can be executed again and again.
StepPlan MakePlan(std::span<const SequenceSize> sequences, uint32_t vocab_size);

// The same for a backend's ops; nobody samples.
ForwardBatch MakeBatch(std::span<const SequenceSize> sequences);

// Consecutive tokens [begin, begin + tokens) of the KV cache, written in order of its pages.
ForwardBatch MakeFillBatch(uint32_t begin, uint32_t tokens, uint32_t max_positions);

}  // namespace flotilla::bench
