#include "worker_proc/bench/quality_score.h"

#include <algorithm>
#include <cmath>

#include "common/base/check.h"

namespace flotilla::bench {
namespace {

double Ratio(double amount, uint64_t count) {
  return count == 0 ? 0 : amount / static_cast<double>(count);
}

struct TopTwo {
  size_t id = 0;  // the lowest among equals
  double first = -HUGE_VAL;
  double second = -HUGE_VAL;
};
TopTwo TopOf(std::span<const float> logits) {
  TopTwo top;
  for (size_t i = 0; i < logits.size(); ++i) {
    const double x = logits[i];
    if (x > top.first) {
      top = {i, x, top.first};
    } else {
      top.second = std::max(top.second, x);
    }
  }
  return top;
}

}  // namespace

StatusOr<PositionScore> ScorePosition(std::span<const float> reference,
                                      std::span<const float> logits, int32_t next) {
  CHECK(reference.size() == logits.size() && !logits.empty());
  CHECK(next < static_cast<int64_t>(logits.size()));
  const TopTwo expected = TopOf(reference);
  const TopTwo top = TopOf(logits);
  double expected_sum = 0, sum = 0, weighted = 0;
  for (size_t i = 0; i < logits.size(); ++i) {
    // Both relative to their maxima, so that the difference keeps its last bits.
    const double r = reference[i] - expected.first;
    const double l = logits[i] - top.first;
    const double weight = std::exp(r);
    expected_sum += weight;
    sum += std::exp(l);
    weighted += weight * (r - l);
  }
  PositionScore score;
  score.kl = weighted / expected_sum - (std::log(expected_sum) - std::log(sum));
  if (!std::isfinite(score.kl)) return absl::DataLossError("a logit is not finite");
  score.margin = expected.first - expected.second;
  score.same_top1 = expected.id == top.id;
  score.has_next = next >= 0;
  if (next >= 0) score.nll = std::log(sum) - (logits[static_cast<size_t>(next)] - top.first);
  return score;
}

void QualityScore::Add(const PositionScore& position) {
  ++positions;
  same_top1 += position.same_top1;
  if (position.margin > kDecidedMargin) {
    ++decided;
    decided_same_top1 += position.same_top1;
  }
  sum_kl += position.kl;
  max_kl = std::max(max_kl, position.kl);
  if (!position.has_next) return;
  ++predicted;
  sum_nll += position.nll;
}

double QualityScore::mean_kl() const { return Ratio(sum_kl, positions); }

double QualityScore::perplexity() const { return std::exp(Ratio(sum_nll, predicted)); }

}  // namespace flotilla::bench
