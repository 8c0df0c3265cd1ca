// From a row of logits to a token and its logprobs.
//
// In vLLM's order: the grammar's mask; min_tokens masks eos, unless the mask leaves nothing else;
// logit bias; penalties (repetition: logits above 0 are
// divided by it, others multiplied; then frequency; then presence); temperature; min_p; top_k;
// top_p; one draw by inverse distribution over the remaining tokens in order of id. Temperature 0
// takes the largest logit after the penalties, the lowest id among equals. Logprobs are of the raw
// logits, before any of that.
//
// A masked row is a copy. Otherwise eos, bias and penalties change only the logits they concern, in
// the row itself, and put them back. No filter sorts the vocabulary: a threshold that is sure to be
// low enough is found first, and only what reaches it is looked at (logits_scan.h, candidates.h).
// The token is the same as from a full sort and depends on logits, parameters, history and position
// only.
//
// Units: natural log; positions as in step_plan.h. Threads: one a Sampler (it owns scratch).
// Errors: DataLoss when the logits are not finite; the row is then as it was.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "common/base/status.h"
#include "shm/step_plan.h"
#include "shm/step_result.h"
#include "worker_proc/runner/candidates.h"
#include "worker_proc/runner/logits_scan.h"
#include "worker_proc/runner/sampler_kernels.h"
#include "worker_proc/runner/token_history.h"

namespace flotilla {

// What is drawn: the token that will stand at `position`.
struct SampleInput {
  const SamplingParams& params;
  uint32_t position = 0;
  std::span<const LogitBias> logit_bias = {};
  std::span<const TokenCount> counts = {};  // with penalties, of the sequence before `position`
  std::span<const int32_t> later = {};      // and these: a draft's tokens from `position` on
  std::span<const uint32_t> mask = {};      // as in StepPlan; empty: every token may be drawn
  std::span<const int32_t> stop_ids = {};   // end the output, as the eos ids do
};

constexpr float kGreedyBelow = 1e-5f;  // temperature; as in vLLM

// ln of the sum of e^logit over a row, of which the largest is `max` and the weights' sum
// `total_weight` (at temperature 1).
double LogSum(float max, double total_weight);

// min_tokens: whether these tokens, and the input's stop_ids, may not be drawn. Not if nothing else
// may: the output is complete, however short. words: scratch.
bool BansEnds(const SampleInput& input, std::span<const int32_t> eos_ids,
              std::vector<uint32_t>* words);

class Sampler {
 public:
  // Tokens, floats, bits: all tables of kernels give the same.
  Sampler(const SamplerKernels* kernels, std::vector<int32_t> eos_ids)
      : eos_ids_(std::move(eos_ids)), raw_(kernels), adjusted_(kernels), kernels_(*kernels) {}

  // logprobs: null, or where to put those of the drawn token with params.num_logprobs others
  // beside it. The row is changed meanwhile, and the same again when this returns.
  StatusOr<int32_t> Sample(std::span<float> logits, const SampleInput& input,
                           PositionLogprobs* logprobs);
  // Of `token`, with the n most likely ones beside it. The memory of *logprobs is used again.
  Status Logprobs(std::span<const float> logits, int32_t token, uint32_t n,
                  PositionLogprobs* logprobs);
  std::span<const int32_t> eos_ids() const { return eos_ids_; }
  // Scratch for rows of so many logits: none is allocated later.
  void MakeRoomFor(uint32_t vocab_size);

 private:
  void Adjust(std::span<float> logits, const SampleInput& input);
  void Set(std::span<float> logits, int32_t token, float value);
  void PutBack(std::span<float> logits);
  int32_t Draw(LogitsScan* row, const SampleInput& input);
  void CollectSurvivors(LogitsScan* row, const SamplingParams& params, float inverse);
  void CollectNucleus(LogitsScan* row, const SamplingParams& params, float inverse);
  void LogprobsOf(std::span<const float> logits, int32_t token, uint32_t n,
                  PositionLogprobs* logprobs);

  const std::vector<int32_t> eos_ids_;
  LogitsScan raw_;
  LogitsScan adjusted_;
  const SamplerKernels& kernels_;
  Candidates candidates_;
  std::vector<float> masked_;
  std::vector<uint32_t> words_;
  std::vector<std::pair<int32_t, float>> changed_;  // token and former logit, in order of change
};

}  // namespace flotilla
