// The policies, by themselves and in a small simulation of replicas that serve tokens.
#include "router/policy/policy.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <numeric>
#include <random>

#include "common/base/flags.h"

namespace flotilla {
namespace {

std::vector<ReplicaView> Views(size_t count) {
  std::vector<ReplicaView> views(count);
  for (size_t i = 0; i < count; ++i) {
    views[i].index = static_cast<uint32_t>(i);
    views[i].identity = 1000 + i;
  }
  return views;
}

std::unique_ptr<Policy> Make(const char* name) { return std::move(CreatePolicy(name, 1)).value(); }

TEST(PolicyTest, UnknownNameIsRefusedWithTheKnownOnes) {
  const auto policy = CreatePolicy("fastest", 1);
  ASSERT_FALSE(policy.ok());
  EXPECT_NE(std::string(policy.status().message()).find("round_robin, shortest_queue"),
            std::string::npos);
}

TEST(PolicyTest, TheNamesAreThoseOfTheFlag) {
  const std::vector<std::string> flag(kPolicies.begin(), kPolicies.end());
  EXPECT_EQ(PolicyNames(), flag);
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

TEST(PolicyTest, PowerOfTwoDrawsEvenlyAndNeverTheLongestOfAll) {
  auto policy = Make("power_of_two");
  auto views = Views(4);
  std::vector<int> count(4);
  for (int i = 0; i < 8000; ++i) ++count[policy->Pick({}, views)];
  for (int each : count) EXPECT_NEAR(each, 2000, 200);
  for (size_t i = 0; i < 4; ++i) views[i].queued_tokens = 10 * i;
  count.assign(4, 0);
  for (int i = 0; i < 6000; ++i) ++count[policy->Pick({}, views)];
  // Of the six pairs the shortest is in three, the next one best of two, the third of one.
  EXPECT_NEAR(count[0], 3000, 200);
  EXPECT_NEAR(count[1], 2000, 200);
  EXPECT_NEAR(count[2], 1000, 200);
  EXPECT_EQ(count[3], 0);
}

TEST(PolicyTest, PowerOfTwoTakesTheOnlyOne) {
  EXPECT_EQ(Make("power_of_two")->Pick({}, Views(1)), 0u);
}

TEST(PolicyTest, TheSameSeedDrawsTheSame) {
  auto one = std::move(CreatePolicy("power_of_two", 7)).value();
  auto same = std::move(CreatePolicy("power_of_two", 7)).value();
  auto other = std::move(CreatePolicy("power_of_two", 8)).value();
  const auto views = Views(64);
  int differences = 0;
  for (int i = 0; i < 100; ++i) {
    const size_t pick = one->Pick({}, views);
    EXPECT_EQ(same->Pick({}, views), pick);
    differences += other->Pick({}, views) != pick ? 1 : 0;
  }
  EXPECT_GT(differences, 50);
}

TEST(PolicyTest, LeastLatencyAvoidsTheSlowMachine) {
  auto policy = Make("least_latency");
  auto views = Views(3);
  views[0].first_token_s = 0.3;
  views[1].first_token_s = 0.1;
  views[2].first_token_s = 0.2;
  EXPECT_EQ(policy->Pick({}, views), 1u);
  views[1].active_requests = 2;  // three would share it
  EXPECT_EQ(policy->Pick({}, views), 2u);
}

TEST(PolicyTest, LeastLatencyTriesWhatIsNotKnownAndSharesAmongEquals) {
  auto policy = Make("least_latency");
  auto views = Views(3);
  views[0].first_token_s = 0.1;
  views[2].first_token_s = 0.2;
  std::vector<int> count(3);
  for (int i = 0; i < 10; ++i) ++count[policy->Pick({}, views)];
  EXPECT_EQ(count, std::vector<int>({5, 5, 0}));
  views[1].first_token_s = views[2].first_token_s = 0.1;
  count.assign(3, 0);
  for (int i = 0; i < 30; ++i) ++count[policy->Pick({}, views)];
  EXPECT_EQ(count, std::vector<int>({10, 10, 10}));
}

TEST(PolicyTest, LeastLatencyDoesNotFloodWhatIsNotKnown) {
  auto policy = Make("least_latency");
  auto views = Views(4);
  for (size_t i = 1; i < 4; ++i) views[i].first_token_s = 0.1;
  // No answer comes from the first one.
  for (int i = 0; i < 400; ++i) ++views[policy->Pick({}, views)].active_requests;
  for (const ReplicaView& view : views) EXPECT_EQ(view.active_requests, 100u) << view.index;
}

TEST(PolicyTest, LeastLatencyTriesWhatHasFadedWithAFewRequests) {
  auto policy = Make("least_latency");
  auto views = Views(4);
  for (size_t i = 1; i < 4; ++i) {
    views[i].first_token_s = 0.1;
    views[i].active_requests = 1;
  }
  views[0].first_token_s = 1e-6;
  for (int i = 0; i < 400; ++i) {
    const size_t pick = policy->Pick({}, views);
    ++views[pick].active_requests;
    if (pick == 0) views[0].first_token_s = 4;  // as it was, now that it has requests
  }
  EXPECT_GE(views[0].active_requests, 1u);
  EXPECT_LE(views[0].active_requests, 4u);
}

TEST(PolicyTest, ConsistentHashKeepsASessionInEveryRouter) {
  auto policy = Make("consistent_hash"), other_router = Make("consistent_hash");
  const auto views = Views(8);
  auto reversed = views;  // another router was told of the replicas in another order
  std::reverse(reversed.begin(), reversed.end());
  std::vector<int> count(8);
  for (uint64_t session = 1; session <= 8000; ++session) {
    const size_t pick = policy->Pick({.session = session}, views);
    EXPECT_EQ(policy->Pick({.session = session}, views), pick);
    EXPECT_EQ(reversed[other_router->Pick({.session = session}, reversed)].identity,
              views[pick].identity);
    ++count[pick];
  }
  for (int each : count) EXPECT_NEAR(each, 1000, 150);
}

TEST(PolicyTest, ConsistentHashMovesOnlyTheSessionsOfAReplicaThatGoes) {
  auto policy = Make("consistent_hash");
  const auto all = Views(8);
  auto fewer = all;
  fewer.erase(fewer.begin() + 3);
  for (uint64_t session = 1; session <= 2000; ++session) {
    const uint64_t before = all[policy->Pick({.session = session}, all)].identity;
    const uint64_t after = fewer[policy->Pick({.session = session}, fewer)].identity;
    if (before != all[3].identity) {
      EXPECT_EQ(after, before);
    }
  }
}

TEST(PolicyTest, ConsistentHashSpreadsAHotSession) {
  auto policy = Make("consistent_hash");
  auto views = Views(8);
  for (int i = 0; i < 800; ++i) ++views[policy->Pick({.session = 42}, views)].active_requests;
  for (const ReplicaView& view : views) EXPECT_LE(view.active_requests, 126u) << view.index;
}

TEST(PolicyTest, ConsistentHashWithoutASessionTakesTheShortestQueue) {
  auto policy = Make("consistent_hash");
  auto views = Views(3);
  views[0].queued_tokens = views[2].queued_tokens = 1;
  EXPECT_EQ(policy->Pick({}, views), 1u);
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
        const size_t pick = policy_->Pick({.prompt_tokens = tokens}, views_);
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
    const double of_two = Simulation("power_of_two", 3).MeanShortWait(seed);
    EXPECT_LT(shortest, round_robin / 2) << "seed " << seed;
    EXPECT_LT(of_two, round_robin * 0.8) << "seed " << seed;
    EXPECT_LT(shortest, of_two) << "seed " << seed;
  }
}

}  // namespace
}  // namespace flotilla
