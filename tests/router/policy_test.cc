// The policies, by themselves and in a small simulation of replicas that serve tokens.
#include "router/policy.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <numeric>
#include <random>

namespace flotilla {
namespace {

std::vector<ReplicaView> Views(size_t count) {
  std::vector<ReplicaView> views(count);
  for (size_t i = 0; i < count; ++i) views[i].index = static_cast<uint32_t>(i);
  return views;
}

std::unique_ptr<Policy> Make(const char* name) { return std::move(CreatePolicy(name)).value(); }

TEST(PolicyTest, UnknownNameIsRefusedWithTheKnownOnes) {
  const auto policy = CreatePolicy("fastest");
  ASSERT_FALSE(policy.ok());
  EXPECT_NE(std::string(policy.status().message()).find("round_robin, shortest_queue"),
            std::string::npos);
}

TEST(PolicyTest, RoundRobinSplitsEvenly) {
  auto policy = Make("round_robin");
  std::vector<int> count(3);
  const auto views = Views(3);
  for (int i = 0; i < 300; ++i) ++count[policy->Pick({}, views)];
  EXPECT_EQ(count, std::vector<int>({100, 100, 100}));
}

TEST(PolicyTest, RoundRobinStaysEvenWhileAReplicaIsAway) {
  auto policy = Make("round_robin");
  auto views = Views(3);
  EXPECT_EQ(views[policy->Pick({}, views)].index, 0u);
  views.erase(views.begin() + 1);
  std::vector<uint32_t> picks;
  for (int i = 0; i < 4; ++i) picks.push_back(views[policy->Pick({}, views)].index);
  EXPECT_EQ(picks, std::vector<uint32_t>({2, 0, 2, 0}));
}

TEST(PolicyTest, ShortestQueueCountsQueuedRunningAndUnreported) {
  auto policy = Make("shortest_queue");
  auto views = Views(3);
  views[0].queued_tokens = 10;
  views[1].running_tokens = 9;
  views[2].unreported_tokens = 8;
  EXPECT_EQ(policy->Pick({}, views), 2u);
  views[2].unreported_tokens = 11;
  EXPECT_EQ(policy->Pick({}, views), 1u);
}

TEST(PolicyTest, ShortestQueueBreaksTiesByRequestsThenGoesRound) {
  auto policy = Make("shortest_queue");
  auto views = Views(2);
  views[0].active_requests = 1;
  EXPECT_EQ(policy->Pick({}, views), 1u);
  EXPECT_EQ(policy->Pick({}, views), 1u);
  views[0].active_requests = 0;
  std::vector<int> count(2);
  for (int i = 0; i < 10; ++i) ++count[policy->Pick({}, views)];
  EXPECT_EQ(count, std::vector<int>({5, 5}));
}

// Replicas that compute one token a tick, one request after the other; the mean wait of the short
// requests while one request in ten is long.
class Simulation {
 public:
  Simulation(const char* policy, size_t replicas)
      : policy_(Make(policy)), queues_(replicas), views_(Views(replicas)) {}

  double MeanShortWait(uint32_t seed) {
    std::mt19937 random(seed);
    std::vector<double> waits;
    for (int tick = 0; tick < 40'000; ++tick) {
      if (tick % 40 == 0) {
        const bool is_long = random() % 10 == 0;
        const uint64_t tokens = is_long ? 600 : 20;
        const size_t pick = policy_->Pick({tokens}, views_);
        if (!is_long) waits.push_back(static_cast<double>(views_[pick].queued_tokens));
        queues_[pick].push_back(tokens);
        views_[pick].queued_tokens += tokens;
      }
      Serve();
    }
    return std::accumulate(waits.begin(), waits.end(), 0.0) / static_cast<double>(waits.size());
  }

 private:
  void Serve() {
    for (size_t i = 0; i < queues_.size(); ++i) {
      if (queues_[i].empty()) continue;
      --views_[i].queued_tokens;
      if (--queues_[i].front() == 0) queues_[i].pop_front();
    }
  }

  std::unique_ptr<Policy> policy_;
  std::vector<std::deque<uint64_t>> queues_;
  std::vector<ReplicaView> views_;
};

TEST(PolicyTest, ShortestQueueHalvesTheWaitOfShortRequestsUnderSkew) {
  for (uint32_t seed : {1u, 2u, 3u}) {
    const double round_robin = Simulation("round_robin", 3).MeanShortWait(seed);
    const double shortest = Simulation("shortest_queue", 3).MeanShortWait(seed);
    EXPECT_LT(shortest, round_robin / 2) << "seed " << seed;
  }
}

}  // namespace
}  // namespace flotilla
