#include "worker_proc/runner/candidates.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <numeric>

#include "common/base/check.h"
#include "worker_proc/runner/scratch.h"

namespace flotilla {
namespace {

constexpr size_t kSortBelow = 32;   // entries; a quickselect by weight ends with a sort of so few
constexpr size_t kSliceFrom = 512;  // candidates; fewer are not worth a pass of their own
constexpr size_t kSlices = 256;

}  // namespace

uint64_t LikelihoodKey(float logit, int32_t token) {
  const uint32_t bits = std::bit_cast<uint32_t>(logit + 0.0f);  // -0 becomes +0
  const uint32_t falling = (bits >> 31) != 0 ? bits : 0x7fffffff - bits;
  return uint64_t{falling} << 32 | static_cast<uint32_t>(token);
}
float LogitOfKey(uint64_t key) {
  const auto falling = static_cast<uint32_t>(key >> 32);
  return std::bit_cast<float>((falling >> 31) != 0 ? falling : 0x7fffffff - falling);
}
int32_t TokenOfKey(uint64_t key) { return static_cast<int32_t>(static_cast<uint32_t>(key)); }

void Candidates::Collect(const SamplerKernels& kernels, std::span<const float> logits, float bound,
                         int32_t first_token) {
  const size_t room = size_ + logits.size();
  if (tokens_.size() < room) {
    tokens_.resize(2 * room);
    logits_.resize(2 * room);
  }
  size_ += kernels.collect(logits.data(), logits.size(), bound, first_token, logits_.data() + size_,
                           tokens_.data() + size_);
}

void Candidates::MakeRoomFor(size_t size) {
  const size_t room = size + kSamplerTile;  // Collect asks for a whole tile more than it has
  if (tokens_.size() < room) {
    tokens_.resize(room);
    logits_.resize(room);
  }
  MakeRoom(room, &weights_);
  MakeRoom(size, &keys_);
  MakeRoom(size, &key_weights_);
  MakeRoom(size, &order_);
}

void Candidates::SetWeights(const SamplerKernels& kernels, const WeightScale& scale) {
  if (weights_.size() < size_) weights_.resize(tokens_.size());
  kernels.weights(logits_.data(), size_, scale, weights_.data());
}

double Candidates::TotalWeight() const {
  double lanes[4] = {};  // the sum is exact in any order
  for (size_t i = 0; i < size_; ++i) lanes[i % 4] += weights_[i];
  return (lanes[0] + lanes[1]) + (lanes[2] + lanes[3]);
}

template <typename Keep>
void Candidates::KeepIf(Keep keep) {
  size_t kept = 0;
  for (size_t i = 0; i < size_; ++i) {  // without a branch, which nobody could foretell
    const size_t more = keep(i) ? 1 : 0;
    logits_[kept] = logits_[i];
    tokens_[kept] = tokens_[i];
    weights_[kept] = weights_[i];
    kept += more;
  }
  size_ = kept;
}

void Candidates::KeepWeightAtLeast(float least) {
  KeepIf([&](size_t i) { return weights_[i] >= least; });
}

void Candidates::KeepTopK(uint32_t k) {
  if (k >= size_) return;
  keys_.resize(size_);
  for (size_t i = 0; i < size_; ++i) keys_[i] = LikelihoodKey(logits_[i], tokens_[i]);
  const auto last = keys_.begin() + (k - 1);
  std::nth_element(keys_.begin(), last, keys_.end());
  const uint64_t cutoff = *last;
  KeepIf([&](size_t i) { return LikelihoodKey(logits_[i], tokens_[i]) <= cutoff; });
}

// The key of the last candidate to keep. A quickselect: splits by likelihood, and goes on with the
// side in which the mass is reached. before: the weight of all that is more likely.
uint64_t Candidates::CutoffKey(std::span<KeyWeight> entries, double before, double need) {
  while (entries.size() > kSortBelow) {
    const uint64_t a = entries.front().first;
    const uint64_t b = entries[entries.size() / 2].first;
    const uint64_t c = entries.back().first;
    // Keys differ, so the median of three is not the largest: neither side is empty.
    const uint64_t pivot = std::max(std::min(a, b), std::min(std::max(a, b), c));
    const auto middle = std::partition(entries.begin(), entries.end(),
                                       [&](const KeyWeight& e) { return e.first <= pivot; });
    const auto left = static_cast<size_t>(middle - entries.begin());
    double weight = 0;
    for (const KeyWeight& e : entries.first(left)) weight += e.second;
    if (before + weight >= need) {
      entries = entries.first(left);
    } else {
      before += weight;
      entries = entries.subspan(left);
    }
  }
  std::sort(entries.begin(), entries.end());
  for (const KeyWeight& e : entries) {
    before += e.second;
    if (before >= need) return e.first;
  }
  return entries.back().first;
}

// The candidates among which the last one to keep is, as entries. Of many, these are those of one
// slice of the logits' range. Returns the weight of all that are more likely than the entries.
double Candidates::FillEntries(double need) {
  key_weights_.clear();
  const auto [lowest, highest] = std::minmax_element(logits_.begin(), logits_.begin() + size_);
  const float range = *highest - *lowest;
  const float slices_per_unit = kSlices / range;
  if (size_ < kSliceFrom || !std::isnormal(range) || !std::isfinite(slices_per_unit)) {
    for (size_t i = 0; i < size_; ++i) {
      key_weights_.emplace_back(LikelihoodKey(logits_[i], tokens_[i]), weights_[i]);
    }
    return 0;
  }
  const float max = *highest;
  // Rounding keeps order: what is in a later slice is less likely.
  const auto slice_of = [&](size_t i) {
    return std::min(kSlices - 1, static_cast<size_t>((max - logits_[i]) * slices_per_unit));
  };
  std::array<double, kSlices> sums = {};
  for (size_t i = 0; i < size_; ++i) sums[slice_of(i)] += weights_[i];
  double before = 0;
  size_t slice = 0;
  while (slice + 1 < kSlices && before + sums[slice] < need) before += sums[slice++];
  for (size_t i = 0; i < size_; ++i) {
    if (slice_of(i) != slice) continue;
    key_weights_.emplace_back(LikelihoodKey(logits_[i], tokens_[i]), weights_[i]);
  }
  return before;
}

void Candidates::KeepMass(double need) {
  if (size_ == 0) return;
  const double before = FillEntries(need);
  const uint64_t cutoff = CutoffKey(key_weights_, before, need);
  KeepIf([&](size_t i) { return LikelihoodKey(logits_[i], tokens_[i]) <= cutoff; });
}

int32_t Candidates::Draw(double target) const {
  double sum = 0;
  size_t i = 0;
  while (i < size_ && (sum += weights_[i]) <= target) ++i;
  CHECK(i < size_);
  return tokens_[i];
}

std::span<const uint32_t> Candidates::MostLikely(uint32_t n) {
  order_.resize(size_);
  std::iota(order_.begin(), order_.end(), 0u);
  const size_t wanted = std::min<size_t>(n, size_);
  std::partial_sort(order_.begin(), order_.begin() + static_cast<ptrdiff_t>(wanted), order_.end(),
                    [&](uint32_t a, uint32_t b) {
                      return LikelihoodKey(logits_[a], tokens_[a]) <
                             LikelihoodKey(logits_[b], tokens_[b]);
                    });
  return std::span<const uint32_t>(order_).first(wanted);
}

}  // namespace flotilla
