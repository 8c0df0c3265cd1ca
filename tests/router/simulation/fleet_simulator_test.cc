// What docs/scaling.md claims of the policies, in small.
#include "router/simulation/fleet_simulator.h"

#include <gtest/gtest.h>

#include <utility>

namespace flotilla {
namespace {

FleetReport Simulate(const FleetSimOptions& options, const std::string& policy) {
  return std::move(SimulateFleet(options, policy)).value();
}

// One turn each, nothing shared; one prompt in eleven is ten times as long.
FleetSimOptions Skewed(uint64_t seed) {
  FleetSimOptions options;
  options.workload.num_requests = 20'000;
  options.workload.rate = 60;
  options.workload.turns = 1;
  options.workload.groups = 0;
  options.workload.user_tokens = 1500;
  options.workload.long_share = 0.09;
  options.workload.seed = seed;
  return options;
}

FleetSimOptions Conversations(uint64_t seed) {
  FleetSimOptions options;
  options.workload.num_requests = 20'000;
  options.workload.rate = 80;
  options.workload.seed = seed;
  return options;
}

TEST(FleetSimulatorTest, EveryRequestEndsAndTheSameSeedGivesTheSame) {
  const FleetSimOptions options = Conversations(1);
  for (const char* policy : {"round_robin", "power_of_two", "prefix_aware"}) {
    const FleetReport one = Simulate(options, policy), two = Simulate(options, policy);
    EXPECT_GE(one.finished, options.workload.num_requests) << policy;
    EXPECT_EQ(one.ttft_s.size(), one.finished);
    EXPECT_EQ(one.ttft_s, two.ttft_s) << policy;
    EXPECT_LE(one.cached_tokens, one.prompt_tokens);
  }
  EXPECT_NE(Simulate(options, "round_robin").ttft_s,
            Simulate(Conversations(2), "round_robin").ttft_s);
}

TEST(FleetSimulatorTest, ThePolicyMustBeThere) {
  EXPECT_EQ(SimulateFleet({}, "fastest").status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(FleetSimulatorTest, ShortestQueueBeatsRoundRobinWhereLengthsDiffer) {
  for (const uint64_t seed : {1, 2, 3}) {
    const FleetReport robin = Simulate(Skewed(seed), "round_robin");
    const FleetReport shortest = Simulate(Skewed(seed), "shortest_queue");
    EXPECT_LT(QuantileOf(shortest.ttft_s, 0.99), QuantileOf(robin.ttft_s, 0.99) * 0.8) << seed;
    EXPECT_LT(shortest.work_balance, 1.5);
  }
}

TEST(FleetSimulatorTest, PrefixAwareBeatsBothInConversationsAndKeepsTheBalance) {
  for (const uint64_t seed : {1, 2, 3}) {
    const FleetReport robin = Simulate(Conversations(seed), "round_robin");
    const FleetReport shortest = Simulate(Conversations(seed), "shortest_queue");
    const FleetReport aware = Simulate(Conversations(seed), "prefix_aware");
    for (const FleetReport* other : {&robin, &shortest}) {
      EXPECT_LT(QuantileOf(aware.ttft_s, 0.5), QuantileOf(other->ttft_s, 0.5)) << seed;
      EXPECT_LT(QuantileOf(aware.ttft_s, 0.99), QuantileOf(other->ttft_s, 0.99)) << seed;
      EXPECT_GT(aware.HitRate(), other->HitRate() + 0.1) << seed;
    }
    EXPECT_LT(aware.work_balance, 1.5) << seed;
    EXPECT_LT(aware.request_balance, 1.5) << seed;
  }
}

// All conversations begin with the same prompt: who has it first must not get everything.
TEST(FleetSimulatorTest, AHotPrefixDoesNotMakeAHotReplica) {
  FleetSimOptions options = Conversations(1);
  options.workload.groups = 1;
  options.workload.turns = 1;
  options.workload.system_tokens = 8000;
  const FleetReport aware = Simulate(options, "prefix_aware");
  EXPECT_LT(aware.request_balance, 1.5);
  EXPECT_GT(aware.HitRate(), 0.9);
}

TEST(FleetSimulatorTest, ConsistentHashKeepsConversationsWithoutKnowingTheirCache) {
  const FleetReport robin = Simulate(Conversations(1), "round_robin");
  const FleetReport hash = Simulate(Conversations(1), "consistent_hash");
  EXPECT_GT(hash.HitRate(), robin.HitRate() + 0.1);
  EXPECT_LT(hash.request_balance, 1.5);
}

TEST(FleetSimulatorTest, WhatADeadReplicaHadGoesOnElsewhere) {
  FleetSimOptions options = Conversations(1);
  options.failures = 6;
  for (const char* policy : {"shortest_queue", "prefix_aware"}) {
    const FleetReport report = Simulate(options, policy);
    EXPECT_GE(report.finished, options.workload.num_requests);
    EXPECT_EQ(report.ttft_s.size(), report.finished) << "one first token each";
    EXPECT_GT(report.moved, 0u);
  }
}

TEST(FleetSimulatorTest, AFleetThatIsAllDownComesBack) {
  FleetSimOptions options = Conversations(1);
  options.replicas = 1;
  options.workload.rate = 5;
  options.workload.num_requests = 2000;
  options.failures = 3;
  EXPECT_GE(Simulate(options, "least_latency").finished, 2000u);
}

TEST(FleetSimulatorTest, PoliciesThatSeeLoadSpareAStraggler) {
  FleetSimOptions options = Skewed(1);
  options.straggler_share = 0.125;
  const FleetReport robin = Simulate(options, "round_robin");
  for (const char* policy : {"shortest_queue", "power_of_two", "least_latency", "prefix_aware"}) {
    EXPECT_LT(QuantileOf(Simulate(options, policy).ttft_s, 0.99),
              QuantileOf(robin.ttft_s, 0.99) * 0.7)
        << policy;
  }
}

// Four routers that all see the same shortest queue run to it together.
TEST(FleetSimulatorTest, PowerOfTwoDoesNotHerd) {
  FleetSimOptions options = Skewed(1);
  options.routers = 4;
  const FleetReport robin = Simulate(options, "round_robin");
  const FleetReport of_two = Simulate(options, "power_of_two");
  EXPECT_LT(QuantileOf(of_two.ttft_s, 0.99), QuantileOf(robin.ttft_s, 0.99));
}

}  // namespace
}  // namespace flotilla
