#include "worker_proc/runner/logits_scan.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>

#include "common/base/check.h"
#include "worker_proc/runner/scratch.h"

namespace flotilla {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr int kSignificandBits = 53;  // of a double
constexpr int kMostHalvings = 8;
constexpr int kFinestQuantumBits = 36;  // serves vocabularies of up to 2^17 tokens

}  // namespace

int QuantumBits(size_t vocab_size) {
  return std::min(kFinestQuantumBits,
                  kSignificandBits - static_cast<int>(std::bit_width(vocab_size - 1)));
}

Status LogitsScan::Reset(std::span<const float> logits) {
  logits_ = logits;
  sums_inverse_ = 0;
  tile_max_.resize((logits.size() + kSamplerTile - 1) / kSamplerTile);
  const bool good = kernels_.tile_max(logits.data(), logits.size(), tile_max_.data());
  max_ = -kInfinity;
  for (float max : tile_max_) max_ = std::max(max_, max);
  if (!good || !std::isfinite(max_)) return absl::DataLossError("the logits are not finite");
  return OkStatus();
}

void LogitsScan::MakeRoomFor(size_t size) {
  const size_t tiles = (size + kSamplerTile - 1) / kSamplerTile;
  MakeRoom(tiles, &tile_max_);
  MakeRoom(tiles, &tile_sums_);
  MakeRoom(tiles, &sorted_);
}

int32_t LogitsScan::ArgMax() const {
  const auto tile = std::find(tile_max_.begin(), tile_max_.end(), max_) - tile_max_.begin();
  const auto begin = logits_.begin() + tile * static_cast<ptrdiff_t>(kSamplerTile);
  return static_cast<int32_t>(std::find(begin, logits_.end(), max_) - logits_.begin());
}

WeightScale LogitsScan::Scale(float inverse_temperature) const {
  return {max_, inverse_temperature, std::ldexp(1.0f, -QuantumBits(size()))};
}

double LogitsScan::TotalWeight(float inverse_temperature) {
  if (sums_inverse_ == inverse_temperature) return total_;
  tile_sums_.resize(tile_max_.size());
  kernels_.tile_sums(logits_.data(), size(), Scale(inverse_temperature), tile_sums_.data());
  total_ = std::accumulate(tile_sums_.begin(), tile_sums_.end(), 0.0);
  sums_inverse_ = inverse_temperature;
  return total_;
}

int32_t LogitsScan::Draw(double target) {
  double sum = 0;
  size_t tile = 0;
  while (tile < tile_sums_.size() && sum + tile_sums_[tile] <= target) sum += tile_sums_[tile++];
  CHECK(tile < tile_sums_.size());
  const std::span<const float> logits = Tile(tile);
  float weights[kSamplerTile];
  kernels_.weights(logits.data(), logits.size(), Scale(sums_inverse_), weights);
  size_t i = 0;
  while (i < logits.size() && (sum += weights[i]) <= target) ++i;
  CHECK(i < logits.size());
  return static_cast<int32_t>(tile * kSamplerTile + i);
}

size_t LogitsScan::Count(float bound) const {
  size_t count = 0;
  for (size_t tile = 0; tile < tile_max_.size(); ++tile) {
    if (!(tile_max_[tile] >= bound)) continue;
    count += kernels_.count(Tile(tile).data(), Tile(tile).size(), bound);
  }
  return count;
}

float LogitsScan::BoundOfTop(uint32_t k) {
  if (k >= size()) return -kInfinity;
  if (k <= tile_max_.size()) {
    // k tiles have a logit that reaches the k-th largest maximum.
    sorted_ = tile_max_;
    const auto kth = sorted_.begin() + (k - 1);
    std::nth_element(sorted_.begin(), kth, sorted_.end(), std::greater<>());
    return *kth;
  }
  // Each tile has one that reaches the smallest maximum. From there on twice as far each time, then
  // back by halves, as long as that pays.
  const float smallest = *std::min_element(tile_max_.begin(), tile_max_.end());
  if (smallest == -kInfinity) return -kInfinity;
  float margin = std::max(max_ - smallest, 1.0f);
  float too_high = max_;
  float bound = max_ - margin;
  size_t count = Count(bound);
  if (count < k && Count(std::numeric_limits<float>::lowest()) < k) return -kInfinity;
  for (; count < k; count = Count(bound)) {
    margin *= 2;
    too_high = bound;
    bound = max_ - margin;
  }
  for (int i = 0; i < kMostHalvings && count > 2 * size_t{k}; ++i) {
    const float middle = bound / 2 + too_high / 2;
    const size_t reach = Count(middle);
    (reach < k ? too_high : bound) = middle;
    if (reach >= k) count = reach;
  }
  return bound;
}

void LogitsScan::Collect(float bound, Candidates* candidates) const {
  candidates->Clear();
  for (size_t tile = 0; tile < tile_max_.size(); ++tile) {
    if (!(tile_max_[tile] >= bound)) continue;
    candidates->Collect(kernels_, Tile(tile), bound, static_cast<int32_t>(tile * kSamplerTile));
  }
}

uint32_t LogitsScan::Rank(int32_t token) const {
  const auto own = static_cast<size_t>(token);
  const float bound = logits_[own];
  // Equal ones count before the token only.
  const float above = std::nextafter(bound, kInfinity);
  size_t rank = 1;
  for (size_t tile = 0; tile < tile_max_.size(); ++tile) {
    if (!(tile_max_[tile] >= bound)) continue;
    const std::span<const float> logits = Tile(tile);
    const size_t begin = tile * kSamplerTile;
    const size_t split = std::clamp(own, begin, begin + logits.size()) - begin;
    rank += kernels_.count(logits.data(), split, bound);
    rank += kernels_.count(logits.data() + split, logits.size() - split, above);
  }
  return static_cast<uint32_t>(rank);
}

}  // namespace flotilla
