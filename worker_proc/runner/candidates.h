// The tokens that may be drawn, and how top-k and top-p choose among them without sorting.
//
// Order of likelihood: larger logit first, lower id among equals. Candidates are kept in order of
// id, which is also the order of a draw. Weights are multiples of a quantum small enough that every
// sum of them is exact (sampler_kernels.h), so what is kept depends on no order of summation: it is
// what a full sort would keep.
//
// Threads: one (it owns scratch, reused from row to row). Errors: none. Source: ours.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "worker_proc/runner/sampler_kernels.h"

namespace flotilla {

// A smaller key is more likely. logit: not NaN.
uint64_t LikelihoodKey(float logit, int32_t token);
// What it was made of; a negative zero has become a positive one.
float LogitOfKey(uint64_t key);
int32_t TokenOfKey(uint64_t key);

class Candidates {
 public:
  size_t size() const { return size_; }
  // By id.
  std::span<const float> logits() const { return {logits_.data(), size_}; }
  std::span<const int32_t> tokens() const { return {tokens_.data(), size_}; }

  void Clear() { size_ = 0; }
  // Scratch for as many candidates.
  void MakeRoomFor(size_t size);
  // Appends what SamplerKernels::collect finds in logits[0 … n), whose first is `first_token`'s.
  void Collect(const SamplerKernels& kernels, std::span<const float> logits, float bound,
               int32_t first_token);

  // After this the candidates have weights, which everything below uses.
  void SetWeights(const SamplerKernels& kernels, const WeightScale& scale);
  double TotalWeight() const;
  void KeepWeightAtLeast(float least);
  // The k most likely.
  void KeepTopK(uint32_t k);
  // The fewest most likely ones that together weigh at least `need`; all if they weigh less.
  void KeepMass(double need);
  // The first token where the running sum of the weights exceeds `target`, which is less than
  // their total.
  int32_t Draw(double target) const;

  // The n most likely, or all: indices into logits() and tokens(), most likely first. Needs no
  // weights. Valid until the next call.
  std::span<const uint32_t> MostLikely(uint32_t n);

 private:
  using KeyWeight = std::pair<uint64_t, float>;
  double FillEntries(double need);
  static uint64_t CutoffKey(std::span<KeyWeight> entries, double before, double need);
  template <typename Keep>
  void KeepIf(Keep keep);

  size_t size_ = 0;  // of the three; they are larger
  std::vector<float> logits_;
  std::vector<int32_t> tokens_;
  std::vector<float> weights_;

  std::vector<uint64_t> keys_;
  std::vector<KeyWeight> key_weights_;
  std::vector<uint32_t> order_;
};

}  // namespace flotilla
