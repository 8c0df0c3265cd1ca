#include "router/fleet/replica_health.h"

#include <algorithm>
#include <utility>

namespace flotilla {
namespace {

constexpr double kColdest = 0.1;
constexpr double kOutlierFactor = 3;
constexpr size_t kMinOutlierSamples = 5;
constexpr size_t kOutlierShare = 10;  // one in so many
// A trial that has neither answer nor failure for so long is forgotten: its client may have left.
constexpr int64_t kTrialNs = 10 * kNsPerSecond;

}  // namespace

void ReplicaHealth::OnSubmit(int64_t now_ns) {
  if (circuit(now_ns) == Circuit::kHalfOpen) trial_ns_ = now_ns;
}

void ReplicaHealth::OnAnswer(double first_token_s) {
  shortest_s_ = answers_ == 0 ? first_token_s : std::min(shortest_s_, first_token_s);
  ++answers_;
  failures_ = 0;
  // What it was given before it opened says nothing about now.
  if (open_ns_ != 0 && trial_ns_ == 0) return;
  open_ns_ = open_until_ns_ = trial_ns_ = 0;
}

void ReplicaHealth::OnFailure(int64_t now_ns) {
  ++failures_;
  if (circuit(now_ns) == Circuit::kOpen) return;
  if (failures_ >= kFailures || trial_ns_ != 0) Open(now_ns);
}

void ReplicaHealth::Open(int64_t now_ns) {
  open_ns_ = std::clamp(2 * open_ns_, kMinOpenNs, kMaxOpenNs);
  open_until_ns_ = now_ns + open_ns_;
  failures_ = 0;
  trial_ns_ = 0;
}

ReplicaHealth::Circuit ReplicaHealth::circuit(int64_t now_ns) const {
  if (open_ns_ == 0) return Circuit::kClosed;
  return now_ns < open_until_ns_ ? Circuit::kOpen : Circuit::kHalfOpen;
}

bool ReplicaHealth::Allows(int64_t now_ns) const {
  switch (circuit(now_ns)) {
    case Circuit::kClosed:
      return true;
    case Circuit::kOpen:
      return false;
    case Circuit::kHalfOpen:
      return trial_ns_ == 0 || now_ns - trial_ns_ >= kTrialNs;
  }
  return true;
}

double ReplicaHealth::TakeShortest() {
  return std::exchange(answers_, 0) >= kMinAnswers ? shortest_s_ : 0;
}

double Warmth(int64_t ready_for_ns, int64_t slow_start_ns) {
  if (ready_for_ns >= slow_start_ns) return 1;
  const double share = static_cast<double>(ready_for_ns) / static_cast<double>(slow_start_ns);
  return std::max(share, kColdest);
}

std::vector<uint32_t> FindOutliers(std::span<const LatencySample> samples) {
  std::vector<LatencySample> known;
  for (const LatencySample& sample : samples) {
    if (sample.first_token_s > 0) known.push_back(sample);
  }
  std::vector<uint32_t> outliers;
  if (known.size() < kMinOutlierSamples) return outliers;
  std::sort(known.begin(), known.end(), [](const LatencySample& a, const LatencySample& b) {
    return a.first_token_s > b.first_token_s;
  });
  const double bound = kOutlierFactor * known[known.size() / 2].first_token_s;
  const size_t most = std::max<size_t>(1, samples.size() / kOutlierShare);
  for (size_t i = 0; i < most && known[i].first_token_s > bound; ++i)
    outliers.push_back(known[i].index);
  return outliers;
}

bool RetryBudget::Take(int64_t now_ns) {
  if (last_ns_ != 0)
    Add(kPerSecond * static_cast<double>(now_ns - last_ns_) / static_cast<double>(kNsPerSecond));
  last_ns_ = now_ns;
  if (tokens_ < 1) return false;
  tokens_ -= 1;
  return true;
}

}  // namespace flotilla
