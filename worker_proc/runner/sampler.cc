#include "worker_proc/runner/sampler.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "worker_proc/runner/philox.h"

namespace flotilla {
namespace {

constexpr size_t kTile = 1024;  // logits a log-sum-exp tile
constexpr size_t kLanes = 16;
constexpr float kGreedyBelow = 1e-5f;  // temperature; as in vLLM

// Branch-free and without calls, so that the compiler may use any vector width: every lane does the
// same IEEE operations. x = n ln2 + r; e^r by its Taylor polynomial. NaN stays NaN.
inline float Exp(float x) {
  x = x < -87.0f ? -87.0f : x;
  x = x > 88.0f ? 88.0f : x;
  constexpr float kRound = 12582912.0f;  // 1.5 * 2^23: adding it leaves n in the lowest bits
  const float shifted = x * 1.44269504f + kRound;
  const float n = shifted - kRound;
  const float r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
  float p = 1.3888889e-3f;
  p = p * r + 8.3333333e-3f;
  p = p * r + 4.1666667e-2f;
  p = p * r + 1.6666667e-1f;
  p = p * r + 0.5f;
  p = p * r + 1.0f;
  p = p * r + 1.0f;
  const uint32_t biased = std::bit_cast<uint32_t>(shifted) - std::bit_cast<uint32_t>(kRound) + 127;
  return p * std::bit_cast<float>(biased << 23);
}

// ln x for a normal x > 0: x = m 2^e with m in [sqrt 1/2, sqrt 2), ln m = 2 artanh((m-1)/(m+1)).
double Log(double x) {
  int e = 0;
  double m = std::frexp(x, &e);
  if (m < 0.70710678118654752) {
    m *= 2;
    --e;
  }
  const double s = (m - 1) / (m + 1);
  double sum = 0;
  for (int k = 25; k >= 1; k -= 2) sum = sum * s * s + 1.0 / k;
  return e * 0.69314718055994531 + 2 * s * sum;
}

float Max(std::span<const float> values) {
  float lanes[kLanes];
  std::fill(lanes, lanes + kLanes, -std::numeric_limits<float>::infinity());
  size_t i = 0;
  for (; i + kLanes <= values.size(); i += kLanes) {
    for (size_t l = 0; l < kLanes; ++l) lanes[l] = std::max(lanes[l], values[i + l]);
  }
  for (; i < values.size(); ++i) lanes[0] = std::max(lanes[0], values[i]);
  return *std::max_element(lanes, lanes + kLanes);
}

// Sum of e^(value - max) over one tile.
double TileSum(std::span<const float> tile, float max) {
  float lanes[kLanes] = {};
  size_t i = 0;
  for (; i + kLanes <= tile.size(); i += kLanes) {
    for (size_t l = 0; l < kLanes; ++l) lanes[l] += Exp(tile[i + l] - max);
  }
  for (size_t l = 0; i + l < tile.size(); ++l) lanes[l] += Exp(tile[i + l] - max);
  double sum = 0;
  for (float lane : lanes) sum += lane;
  return sum;
}

}  // namespace

float DeterministicExp(float x) { return Exp(x); }

double LogSumExp(std::span<const float> logits) {
  const float max = Max(logits);
  double sum = 0;
  for (size_t begin = 0; begin < logits.size(); begin += kTile) {
    sum += TileSum(logits.subspan(begin, std::min(kTile, logits.size() - begin)), max);
  }
  return static_cast<double>(max) + Log(sum);
}

bool Sampler::Masked(int32_t token, const SamplingParams& params, uint32_t position) const {
  return position < params.min_tokens_until &&
         std::find(eos_ids_.begin(), eos_ids_.end(), token) != eos_ids_.end();
}

void Sampler::FillCandidates(std::span<const float> logits, float max, const SamplingParams& params,
                             uint32_t position) {
  const float inverse = 1.0f / params.temperature;
  weights_.resize(logits.size());
  for (size_t i = 0; i < logits.size(); ++i) weights_[i] = Exp((logits[i] - max) * inverse);
  if (position < params.min_tokens_until) {
    for (int32_t id : eos_ids_) {
      if (id >= 0 && static_cast<size_t>(id) < weights_.size()) weights_[id] = -1;
    }
  }
  candidates_.clear();
  for (size_t i = 0; i < weights_.size(); ++i) {
    // The most likely token weighs 1, a masked one -1.
    if (weights_[i] >= params.min_p) candidates_.push_back({weights_[i], static_cast<int32_t>(i)});
  }
}

void Sampler::KeepTopK(uint32_t k) {
  if (k == 0 || k >= candidates_.size()) return;
  std::nth_element(candidates_.begin(), candidates_.begin() + k, candidates_.end(), MoreLikely);
  candidates_.resize(k);
  std::sort(candidates_.begin(), candidates_.end(), MoreLikely);
}

// The fewest most likely tokens that hold top_p of the probability.
void Sampler::KeepTopP(float top_p) {
  if (top_p >= 1) return;
  double total = 0;
  for (const Candidate& c : candidates_) total += c.weight;
  // All tokens below this together hold less than 1 - top_p, so none of them is needed.
  const double least = (1.0 - top_p) * total / static_cast<double>(candidates_.size()) * (1 - 1e-6);
  std::erase_if(candidates_, [&](const Candidate& c) { return c.weight < least; });
  std::sort(candidates_.begin(), candidates_.end(), MoreLikely);
  double sum = 0;
  size_t n = 0;
  while (n < candidates_.size() && sum < top_p * total) sum += candidates_[n++].weight;
  candidates_.resize(std::max<size_t>(n, 1));
}

StatusOr<int32_t> Sampler::Sample(std::span<const float> logits, const SamplingParams& params,
                                  uint32_t position) {
  float max = -std::numeric_limits<float>::infinity();
  int32_t best = -1;
  for (size_t i = 0; i < logits.size(); ++i) {
    const auto token = static_cast<int32_t>(i);
    if (logits[i] > max && !Masked(token, params, position)) {
      max = logits[i];
      best = token;
    }
  }
  if (best < 0 || !std::isfinite(max)) return absl::DataLossError("the logits are not finite");
  if (params.temperature < kGreedyBelow) return best;

  FillCandidates(logits, max, params, position);
  KeepTopK(params.top_k);
  KeepTopP(params.top_p);
  double total = 0;
  for (const Candidate& c : candidates_) total += c.weight;
  const double target = UniformDraw(params.seed, position, 0) * total;
  double sum = 0;
  for (const Candidate& c : candidates_) {
    sum += c.weight;
    if (sum > target) return c.token;
  }
  return best;  // only by rounding at the very end of the distribution
}

StatusOr<PositionLogprobs> Sampler::Logprobs(std::span<const float> logits, int32_t token,
                                             uint32_t n) {
  const double norm = LogSumExp(logits);
  if (!std::isfinite(norm)) return absl::DataLossError("the logits are not finite");
  const auto logprob = [&](float logit) {
    return static_cast<float>(static_cast<double>(logit) - norm);
  };
  const float own = logits[static_cast<size_t>(token)];
  PositionLogprobs result;
  result.token = token;
  result.logprob = logprob(own);
  result.rank = 1;
  for (size_t i = 0; i < logits.size(); ++i) {
    const bool before = static_cast<int32_t>(i) < token;
    result.rank += logits[i] > own || (logits[i] == own && before) ? 1 : 0;
  }
  // The n largest in falling order; strict comparison keeps the lower id first among equals.
  candidates_.clear();
  for (size_t i = 0; n > 0 && i < logits.size(); ++i) {
    if (candidates_.size() == n && !(logits[i] > candidates_.back().weight)) continue;
    if (candidates_.size() == n) candidates_.pop_back();
    const Candidate entry{logits[i], static_cast<int32_t>(i)};
    candidates_.insert(std::upper_bound(candidates_.begin(), candidates_.end(), entry, MoreLikely),
                       entry);
  }
  result.top.reserve(candidates_.size());
  for (const Candidate& c : candidates_) result.top.push_back({c.token, logprob(c.weight)});
  return result;
}

}  // namespace flotilla
