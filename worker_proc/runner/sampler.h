// From a row of logits to a token and its logprobs.
//
// Sampling, in vLLM's order: min_tokens masks eos, temperature, min_p, top_k, top_p, then one draw
// by inverse distribution; temperature 0 takes the largest logit, the lowest id among equals.
// Logprobs are of the raw logits, before any of that. Everything has one fixed order and an exp of
// our own, so the bits depend on the logits, the parameters and the position only.
//
// Units: natural log; positions as in step_plan.h. Threads: one a Sampler (it owns scratch).
// Errors: DataLoss when the logits are not finite.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "common/base/status.h"
#include "shm/step_plan.h"
#include "shm/step_result.h"

namespace flotilla {

// e^x for x in [-87, 0] within 3 ulp, without libm or FMA; below -87 as at -87.
float DeterministicExp(float x);

// log(sum(e^logits)): tiles of 1024, each in 16 lanes, folded in order. -inf … are allowed, NaN
// gives NaN.
double LogSumExp(std::span<const float> logits);

class Sampler {
 public:
  explicit Sampler(std::vector<int32_t> eos_ids) : eos_ids_(std::move(eos_ids)) {}

  // The token that will stand at `position`.
  StatusOr<int32_t> Sample(std::span<const float> logits, const SamplingParams& params,
                           uint32_t position);
  // Of `token`, with the n most likely ones beside it.
  StatusOr<PositionLogprobs> Logprobs(std::span<const float> logits, int32_t token, uint32_t n);

 private:
  struct Candidate {
    float weight;  // unnormalised probability
    int32_t token;
  };
  static bool MoreLikely(const Candidate& a, const Candidate& b) {
    return a.weight > b.weight || (a.weight == b.weight && a.token < b.token);
  }
  bool Masked(int32_t token, const SamplingParams& params, uint32_t position) const;
  void FillCandidates(std::span<const float> logits, float max, const SamplingParams& params,
                      uint32_t position);
  void KeepTopK(uint32_t k);
  void KeepTopP(float top_p);

  const std::vector<int32_t> eos_ids_;
  std::vector<Candidate> candidates_;
  std::vector<float> weights_;
};

}  // namespace flotilla
