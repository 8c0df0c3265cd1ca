#include "router/fleet/replica_health.h"

#include <gtest/gtest.h>

namespace flotilla {
namespace {

using Circuit = ReplicaHealth::Circuit;
constexpr int64_t kNow = 1000 * kNsPerSecond;

// A replica whose circuit has opened at kNow.
ReplicaHealth Opened() {
  ReplicaHealth health;
  for (uint32_t i = 0; i < ReplicaHealth::kFailures; ++i) health.OnFailure(kNow);
  return health;
}

TEST(CircuitTest, OpensAfterFailuresInARow) {
  ReplicaHealth health;
  for (uint32_t i = 0; i + 1 < ReplicaHealth::kFailures; ++i) health.OnFailure(kNow);
  health.OnAnswer(0.1);
  for (uint32_t i = 0; i + 1 < ReplicaHealth::kFailures; ++i) health.OnFailure(kNow);
  EXPECT_EQ(health.circuit(kNow), Circuit::kClosed);
  EXPECT_TRUE(health.Allows(kNow));
  health.OnFailure(kNow);
  EXPECT_EQ(health.circuit(kNow), Circuit::kOpen);
  EXPECT_FALSE(health.Allows(kNow));
}

TEST(CircuitTest, OneRequestOnTrialClosesIt) {
  ReplicaHealth health = Opened();
  const int64_t later = kNow + ReplicaHealth::kMinOpenNs;
  EXPECT_FALSE(health.Allows(later - 1));
  EXPECT_EQ(health.circuit(later), Circuit::kHalfOpen);
  EXPECT_TRUE(health.Allows(later));
  health.OnSubmit(later);
  EXPECT_FALSE(health.Allows(later)) << "one at a time";
  health.OnAnswer(0.1);
  EXPECT_EQ(health.circuit(later), Circuit::kClosed);
  EXPECT_TRUE(health.Allows(later));
}

TEST(CircuitTest, ATrialThatFailsOpensItForTwiceAsLongUpToALimit) {
  ReplicaHealth health = Opened();
  int64_t now = kNow, open_ns = ReplicaHealth::kMinOpenNs;
  for (int i = 0; i < 10; ++i) {
    EXPECT_EQ(health.circuit(now + open_ns - 1), Circuit::kOpen) << i;
    now += open_ns;
    ASSERT_EQ(health.circuit(now), Circuit::kHalfOpen) << i;
    health.OnSubmit(now);
    health.OnFailure(now);
    open_ns = std::min(2 * open_ns, ReplicaHealth::kMaxOpenNs);
  }
  EXPECT_EQ(open_ns, ReplicaHealth::kMaxOpenNs);
}

TEST(CircuitTest, AnswersToOldRequestsDoNotCloseIt) {
  ReplicaHealth health = Opened();
  health.OnAnswer(0.1);
  EXPECT_EQ(health.circuit(kNow), Circuit::kOpen);
  health.OnFailure(kNow + 1);
  EXPECT_EQ(health.circuit(kNow + ReplicaHealth::kMinOpenNs), Circuit::kHalfOpen)
      << "nor do their failures open it for longer";
}

TEST(CircuitTest, ATrialThatIsNeverHeardOfIsForgotten) {
  ReplicaHealth health = Opened();
  const int64_t later = kNow + ReplicaHealth::kMinOpenNs;
  health.OnSubmit(later);
  EXPECT_FALSE(health.Allows(later + kNsPerSecond));
  EXPECT_TRUE(health.Allows(later + 10 * kNsPerSecond));
}

TEST(OutlierTest, TheShortestOfSomeAnswersIsWhatCounts) {
  ReplicaHealth health;
  for (uint32_t i = 0; i + 1 < ReplicaHealth::kMinAnswers; ++i) health.OnAnswer(0.1);
  EXPECT_EQ(health.TakeShortest(), 0) << "too few";
  for (uint32_t i = 0; i < ReplicaHealth::kMinAnswers; ++i) health.OnAnswer(i == 2 ? 0.3 : 9);
  EXPECT_EQ(health.TakeShortest(), 0.3);
  EXPECT_EQ(health.TakeShortest(), 0);
}

TEST(SlowStartTest, AShareThatGrows) {
  EXPECT_DOUBLE_EQ(Warmth(0, 10 * kNsPerSecond), 0.1);
  EXPECT_DOUBLE_EQ(Warmth(5 * kNsPerSecond, 10 * kNsPerSecond), 0.5);
  EXPECT_DOUBLE_EQ(Warmth(60 * kNsPerSecond, 10 * kNsPerSecond), 1);
  EXPECT_DOUBLE_EQ(Warmth(0, 0), 1);
}

TEST(SlowStartTest, OnlyBesideWarmerOnesAndByItsShare) {
  const auto drawn = [](double draw) { return [draw] { return draw; }; };
  EXPECT_TRUE(TakesItsTurn(0.1, 0.1, drawn(0.99)));
  EXPECT_TRUE(TakesItsTurn(0.1, 0.2, drawn(0.99)));
  EXPECT_FALSE(TakesItsTurn(0.1, 1, drawn(0.11)));
  EXPECT_TRUE(TakesItsTurn(0.1, 1, drawn(0.09)));
}

std::vector<LatencySample> Samples(const std::vector<double>& seconds) {
  std::vector<LatencySample> samples;
  for (size_t i = 0; i < seconds.size(); ++i)
    samples.push_back({static_cast<uint32_t>(i), seconds[i]});
  return samples;
}

TEST(OutlierTest, TheSlowOneAmongEquals) {
  EXPECT_EQ(FindOutliers(Samples({1, 1.1, 0.9, 3.5, 1, 1.2})), std::vector<uint32_t>({3}));
  EXPECT_TRUE(FindOutliers(Samples({1, 1.1, 0.9, 2.9, 1, 1.2})).empty());
}

TEST(OutlierTest, NoneAmongFewOrUnknown) {
  EXPECT_TRUE(FindOutliers(Samples({1, 1, 1, 9})).empty());
  EXPECT_TRUE(FindOutliers(Samples({1, 1, 1, 9, 0, 0, 0, 0})).empty());
  EXPECT_TRUE(FindOutliers({}).empty());
}

TEST(OutlierTest, AtMostATenthAndTheSlowestFirst) {
  std::vector<double> seconds(20, 1);
  seconds[4] = 10;
  seconds[9] = 30;
  seconds[11] = 20;
  EXPECT_EQ(FindOutliers(Samples(seconds)), std::vector<uint32_t>({9, 11}));
}

TEST(RetryBudgetTest, AFifthOfTheRequestsAndTenASecond) {
  RetryBudget budget;
  int64_t now = kNow;
  const auto spend = [&] {
    int taken = 0;
    while (budget.Take(now)) ++taken;
    return taken;
  };
  EXPECT_EQ(spend(), 10) << "the first second's";
  for (int i = 0; i < 50; ++i) budget.OnRequest();
  EXPECT_NEAR(spend(), 10, 1);
  now += 2 * kNsPerSecond;
  EXPECT_NEAR(spend(), 20, 1);
  now += 3600 * kNsPerSecond;
  EXPECT_EQ(spend(), 100) << "it does not save up for ever";
}

}  // namespace
}  // namespace flotilla
