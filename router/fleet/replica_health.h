// Whether a connected replica should get requests, by how it answered the last ones: a circuit
// breaker, ejection of outliers, and a slow start.
//
// After kFailures errors in a row without an answer between them the circuit opens: the replica
// gets nothing for a while, then one request on trial, whose end closes it or opens it for twice as
// long. An ejection is an opening for another reason: it is much slower than the others. A replica
// that becomes ready gets a growing share of the requests, for its caches are cold. None of this
// applies where there is no other replica; connection and heartbeats are the replica client's
// business.
//
// Units: CLOCK_MONOTONIC ns, seconds. Threads: one at a time. Pure. Source: Envoy's outlier
// detection and slow start; Nygard's circuit breaker.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "common/base/clock.h"

namespace flotilla {

class ReplicaHealth {
 public:
  enum class Circuit { kClosed = 0, kHalfOpen = 1, kOpen = 2 };
  static constexpr uint32_t kFailures = 5;
  static constexpr int64_t kMinOpenNs = 5 * kNsPerSecond;
  static constexpr int64_t kMaxOpenNs = 60 * kNsPerSecond;
  static constexpr uint32_t kMinAnswers = 5;

  void OnSubmit(int64_t now_ns);        // it was given a request
  void OnAnswer(double first_token_s);  // the first piece of one came, so long after it was given
  void OnFailure(int64_t now_ns);       // one ended in an error of the replica's making
  void Eject(int64_t now_ns) { Open(now_ns); }

  Circuit circuit(int64_t now_ns) const;
  // The circuit, at any time until something happens.
  bool closed() const { return open_ns_ == 0; }
  // It may be given a request.
  bool Allows(int64_t now_ns) const;
  // The shortest time to a first token since the last call, which a long prompt does not change;
  // 0 if there were fewer than kMinAnswers.
  double TakeShortest();

 private:
  void Open(int64_t now_ns);

  uint32_t failures_ = 0;  // in a row
  int64_t open_ns_ = 0;    // how long it was opened last; 0: not since it was closed
  int64_t open_until_ns_ = 0;
  int64_t trial_ns_ = 0;  // when the trial began; 0: there is none
  uint32_t answers_ = 0;  // since TakeShortest
  double shortest_s_ = 0;
};

// Share of the requests that a replica should get that has been ready for so long, beside warm
// ones: rises from 0.1 to 1.
double Warmth(int64_t ready_for_ns, int64_t slow_start_ns);

// Whether a replica takes its turn at a request. Half as warm as the warmest is warm: those that
// start together share evenly. `draw()`: from [0, 1); called for cold ones only.
template <typename Draw>
bool TakesItsTurn(double warmth, double warmest, Draw draw) {
  return 2 * warmth >= warmest || draw() < warmth;
}

struct LatencySample {
  uint32_t index = 0;
  double first_token_s = 0;  // the shortest of late; 0: not known
};
// Those that are slower than three times the median, the slowest first: at most a tenth of all (but
// one), and none if fewer than five are known.
std::vector<uint32_t> FindOutliers(std::span<const LatencySample> samples);

// Retries before the first token may be a fifth of the requests, and ten a second.
class RetryBudget {
 public:
  static constexpr double kShare = 0.2, kPerSecond = 10, kMost = 100;
  void OnRequest() { Add(kShare); }
  // False: not now.
  bool Take(int64_t now_ns);

 private:
  void Add(double tokens) { tokens_ = tokens_ + tokens < kMost ? tokens_ + tokens : kMost; }

  double tokens_ = kPerSecond;
  int64_t last_ns_ = 0;
};

}  // namespace flotilla
