#include "router/policy/latency_ewma.h"

#include <gtest/gtest.h>

namespace flotilla {
namespace {

TEST(LatencyEwmaTest, NothingIsKnownAtFirst) { EXPECT_EQ(LatencyEwma().Value(kNsPerSecond), 0); }

TEST(LatencyEwmaTest, APeakIsBelievedAtOnceAndForgottenSlowly) {
  LatencyEwma ewma;
  int64_t now_ns = 50 * kNsPerSecond;
  ewma.Add(0.1, now_ns);
  EXPECT_DOUBLE_EQ(ewma.Value(now_ns), 0.1);
  ewma.Add(2, now_ns);
  EXPECT_DOUBLE_EQ(ewma.Value(now_ns), 2);
  now_ns += kNsPerSecond;
  ewma.Add(0.1, now_ns);
  EXPECT_NEAR(ewma.Value(now_ns), 2 * std::exp(-0.1) + 0.1 * (1 - std::exp(-0.1)), 1e-12);
  for (int i = 0; i < 100; ++i) ewma.Add(0.1, now_ns += kNsPerSecond);
  EXPECT_NEAR(ewma.Value(now_ns), 0.1, 0.01);
}

TEST(LatencyEwmaTest, WithoutSamplesItFades) {
  LatencyEwma ewma;
  ewma.Add(4, 0);
  EXPECT_NEAR(ewma.Value(LatencyEwma::kTimeConstantNs), 4 * std::exp(-1.0), 1e-12);
  EXPECT_LT(ewma.Value(100 * kNsPerSecond), 0.001);
  EXPECT_EQ(ewma.Unfaded(), 4);
}

}  // namespace
}  // namespace flotilla
