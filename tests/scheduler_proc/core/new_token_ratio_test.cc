#include "scheduler_proc/core/new_token_ratio.h"

#include <gtest/gtest.h>

#include <cmath>

#include "tests/scheduler_proc/core/sim_cluster.h"

namespace flotilla {
namespace {

using testing::SimCluster;

TEST(NewTokenRatioTest, FallsToItsLeastInTheStepsGiven) {
  SchedulerConfig config;  // 0.7, 0.14 of it in 600 steps
  NewTokenRatio ratio(config);
  EXPECT_DOUBLE_EQ(ratio.value(), 0.7);
  for (int i = 0; i < 300; ++i) ratio.OnDecode();
  EXPECT_NEAR(ratio.value(), 0.7 * (1 + 0.14) / 2, 1e-9);
  for (int i = 0; i < 400; ++i) ratio.OnDecode();
  EXPECT_NEAR(ratio.value(), 0.7 * 0.14, 1e-9);
  EXPECT_TRUE(ratio.FellSince(0.7));
  EXPECT_TRUE(ratio.FellSince(0.0981)) << "further it does not fall";
  EXPECT_FALSE(ratio.FellSince(ratio.value()));
  ratio.Reset();
  ratio.OnDecode();
  EXPECT_FALSE(ratio.FellSince(0.7)) << "hardly";
  ratio.Reset();
  EXPECT_DOUBLE_EQ(ratio.value(), 0.7);
}

TEST(NewTokenRatioTest, ConservativenessScalesItUpToAll) {
  SchedulerConfig config;
  config.schedule_conservativeness = 0.5;
  EXPECT_DOUBLE_EQ(NewTokenRatio(config).value(), 0.35);
  config.schedule_conservativeness = 2;
  EXPECT_DOUBLE_EQ(NewTokenRatio(config).value(), 1);
}

TEST(NewTokenRatioTest, ARetractionRaisesItToWhatIsNeededAndNeverLowersIt) {
  SchedulerConfig config;
  config.init_new_token_ratio = 0.1;
  NewTokenRatio ratio(config);
  Req reqs[2];
  for (Req& req : reqs) {
    req.prompt_len = 10;
    req.max_total = 10 + 200;
    req.SetTokens(std::vector<int32_t>(10 + 80, 1));
  }
  Req* running[] = {&reqs[0], &reqs[1]};
  ratio.OnRetract(running);
  EXPECT_DOUBLE_EQ(ratio.value(), 2.0 * (80 + 20) / (2 * 200 + 1));
  const double raised = ratio.value();
  for (Req& req : reqs) req.SetTokens(std::vector<int32_t>(10, 1));
  ratio.OnRetract(running);
  EXPECT_EQ(ratio.value(), raised);
  ratio.OnRetract({});
  EXPECT_EQ(ratio.value(), raised);
  for (Req& req : reqs) req.SetTokens(std::vector<int32_t>(10 + 199, 1));
  ratio.OnRetract(running);
  EXPECT_EQ(ratio.value(), 1);
}

// A request that generates all it asks for; its prompt is its own.
ReqSpec UsesAll(ReqId id, size_t prompt_tokens, uint32_t max_new_tokens) {
  ReqSpec spec;
  spec.id = id;
  spec.prompt_ids.assign(prompt_tokens, static_cast<int32_t>(id));
  spec.max_new_tokens = max_new_tokens;
  spec.ignore_eos = true;
  return spec;
}

// Requests that use all they ask for, in a pool for a few of them: what is learned at the first
// retractions keeps the next ones from happening.
TEST(NewTokenRatioTest, LearnsFromRetractions) {
  uint64_t retractions[2];
  for (const bool learns : {false, true}) {
    SchedulerConfig config = SimCluster::SmallConfig();  // pages of 4
    config.num_pages = 120;
    config.init_new_token_ratio = 0.05;
    config.new_token_ratio_decay_steps = learns ? 2000 : 1;
    config.min_new_token_ratio_factor = 0;
    SimCluster cluster(config);
    for (ReqId id = 1; id <= 60; ++id) ASSERT_TRUE(cluster.Add(UsesAll(id, 20, 100)).ok());
    cluster.Drain();
    retractions[learns] = cluster.scheduler().stats().retractions;
  }
  EXPECT_GT(retractions[0], 20u);
  EXPECT_LT(retractions[1], retractions[0] / 2);
}

TEST(NewTokenRatioTest, TheSchedulerDecaysItAndStartsAgainWhenIdle) {
  SimCluster cluster(SimCluster::SmallConfig());
  ASSERT_TRUE(cluster.Add(UsesAll(1, 3, 50)).ok());
  EXPECT_DOUBLE_EQ(cluster.scheduler().stats().new_token_ratio, 0.7);
  for (int i = 0; i < 40; ++i) ASSERT_TRUE(cluster.Step());
  EXPECT_LT(cluster.scheduler().stats().new_token_ratio, 0.7 - 30 * 0.001);
  cluster.Drain();
  EXPECT_FALSE(cluster.Step());
  EXPECT_DOUBLE_EQ(cluster.scheduler().stats().new_token_ratio, 0.7);
}

uint64_t PagesFor(double tokens) { return static_cast<uint64_t>(std::ceil(tokens / 4)); }

// Nobody ends, nothing is given back: as the ratio falls, what is kept for those who run becomes
// less, and who waits gets its pages soon after they suffice.
TEST(NewTokenRatioTest, WhoFoundNoPagesIsAskedAgainWhileItFalls) {
  SchedulerConfig config = SimCluster::SmallConfig();  // pages of 4
  config.num_pages = 160;
  config.new_token_ratio_decay_steps = 200;  // by 0.003 a step
  SimCluster cluster(config);
  for (ReqId id = 1; id <= 3; ++id) ASSERT_TRUE(cluster.Add(UsesAll(id, 20, 400)).ok());
  uint32_t enough_since = 0, steps = 0;
  while (cluster.scheduler().stats().waiting > 0) {
    if (steps % 50 == 7) cluster.MakeTwin();
    const double ratio = cluster.scheduler().stats().new_token_ratio;
    const auto running = static_cast<uint32_t>(cluster.tokens(1).size());
    const auto pages = [ratio](uint32_t output) {
      return PagesFor(20 + output + std::ceil(ratio * (400 - output)));
    };
    ASSERT_TRUE(cluster.Step());
    ASSERT_EQ(cluster.live().size(), 3u) << "nobody ends";
    ++steps;
    if (enough_since == 0 && 2 * pages(running) + pages(0) <= config.num_pages)
      enough_since = steps;
  }
  EXPECT_GT(enough_since, 100u) << "it had to wait";
  EXPECT_LE(steps - enough_since, 6u) << "the ratio falls by a twentieth of 0.35";
  EXPECT_EQ(cluster.scheduler().stats().retractions, 0u);
  cluster.Drain();
}

// What another computes may be its own prefix (one so short that it is not held back for it).
TEST(NewTokenRatioTest, WhoFoundNoPagesIsAskedAgainWhenAPrefixIsCached) {
  SchedulerConfig config = SimCluster::SmallConfig();
  config.num_pages = 16;
  config.init_new_token_ratio = 0;
  SimCluster cluster(config);
  for (ReqId id = 1; id <= 2; ++id) {
    ReqSpec spec = UsesAll(id, 40, id == 1 ? 20 : 2);
    std::fill_n(spec.prompt_ids.begin(), 28, 7);
    ASSERT_TRUE(cluster.Add(spec).ok());
  }
  ASSERT_TRUE(cluster.Step());
  EXPECT_EQ(cluster.scheduler().stats().waiting, 1u) << "10 pages each";
  ASSERT_TRUE(cluster.Step());
  EXPECT_EQ(cluster.scheduler().stats().waiting, 0u) << "7 of them are the first one's";
  cluster.Drain();
  EXPECT_EQ(cluster.last(2).cached_tokens, 28u);
  EXPECT_EQ(cluster.scheduler().stats().retractions, 0u);
}

}  // namespace
}  // namespace flotilla
