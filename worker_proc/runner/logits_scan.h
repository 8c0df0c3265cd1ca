// One row of logits as sampling and logprobs look at it: each pass over it is made at most once,
// and the tiles' maxima tell later passes which tiles they may leave out.
//
// Exactness: Collect(bound) gives all logits of at least `bound` and no other, so any bound below
// what is looked for gives the same answer; sums of weights are exact (sampler_kernels.h).
//
// Threads: one. Ownership: the row must live, unchanged, while it is asked; scratch is reused from
// row to row. Errors: Reset: DataLoss if there is a NaN or an infinity, or nothing is finite.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "common/base/status.h"
#include "worker_proc/runner/candidates.h"
#include "worker_proc/runner/sampler_kernels.h"

namespace flotilla {

// Weights of a row of so many logits are multiples of 2^-bits.
int QuantumBits(size_t vocab_size);

class LogitsScan {
 public:
  explicit LogitsScan(const SamplerKernels* kernels) : kernels_(*kernels) {}

  Status Reset(std::span<const float> logits);
  // Scratch for rows of so many logits.
  void MakeRoomFor(size_t size);
  size_t size() const { return logits_.size(); }
  float max() const { return max_; }
  int32_t ArgMax() const;  // the lowest id among equals
  WeightScale Scale(float inverse_temperature) const;

  // Of all logits.
  double TotalWeight(float inverse_temperature);
  // The first token where the running sum of the weights exceeds `target`, which is less than the
  // total. After TotalWeight.
  int32_t Draw(double target);

  // Some number that at least k logits reach; the closer the better. k ≥ 1.
  float BoundOfTop(uint32_t k);
  void Collect(float bound, Candidates* candidates) const;
  // 1 + how many are more likely.
  uint32_t Rank(int32_t token) const;

 private:
  std::span<const float> Tile(size_t tile) const {
    const size_t begin = tile * kSamplerTile;
    return logits_.subspan(begin, std::min(kSamplerTile, logits_.size() - begin));
  }
  size_t Count(float bound) const;

  const SamplerKernels& kernels_;
  std::span<const float> logits_;
  std::vector<float> tile_max_;
  float max_ = 0;
  std::vector<double> tile_sums_;
  float sums_inverse_ = 0;  // what tile_sums_ were made with; 0: none
  double total_ = 0;
  std::vector<float> sorted_;
};

}  // namespace flotilla
