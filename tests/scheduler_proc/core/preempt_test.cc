// Preemption through the scheduler: SimCluster checks that each request's output is the foretold
// one whoever preempts it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <set>

#include "common/base/clock.h"
#include "tests/scheduler_proc/core/sim_cluster.h"

namespace flotilla {
namespace {

using ::testing::ElementsAre;
using testing::SimCluster;

SchedulerConfig Config(uint32_t slots, uint32_t num_pages) {
  SchedulerConfig config = SimCluster::SmallConfig();  // pages of 4
  config.schedule_policy = "priority";
  config.priority_scheduling_preemption_threshold = 10;
  config.max_running_requests = slots;
  config.num_pages = num_pages;
  config.init_new_token_ratio = 0;
  return config;
}

ReqSpec Spec(ReqId id, int32_t priority, uint32_t len, uint32_t max_new_tokens) {
  ReqSpec spec;
  spec.id = id;
  for (uint32_t i = 0; i < len; ++i) {
    spec.prompt_ids.push_back(static_cast<int32_t>((id * 13 + i * i) % 97));
  }
  spec.max_new_tokens = max_new_tokens;
  spec.ignore_eos = true;
  spec.priority = priority;
  return spec;
}

// The requests of the plan.
std::set<ReqId> Planned(SimCluster& cluster) {
  std::set<ReqId> ids;
  for (const PlanRow& row : cluster.plan().rows) {
    ids.insert(cluster.worker().RequestOf(row.slot).spec.id);
  }
  return ids;
}

TEST(PreemptTest, TakesTheSlotOfTheLowestThenTheLastToCome) {
  SimCluster cluster(Config(3, 256));
  for (const auto& [id, priority] : {std::pair{1, 0}, {2, -20}, {3, -20}}) {
    ASSERT_TRUE(cluster.Add(Spec(static_cast<ReqId>(id), priority, 6, 40)).ok());
  }
  for (int i = 0; i < 5; ++i) ASSERT_TRUE(cluster.Step());
  ASSERT_TRUE(cluster.Add(Spec(4, 5, 6, 4)).ok());
  ASSERT_TRUE(cluster.Step());
  EXPECT_THAT(Planned(cluster), ElementsAre(1, 2, 4));
  ASSERT_TRUE(cluster.Add(Spec(5, 5, 6, 4)).ok());
  ASSERT_TRUE(cluster.Step());
  EXPECT_THAT(Planned(cluster), ElementsAre(1, 4, 5));
  ASSERT_TRUE(cluster.Add(Spec(6, 10, 6, 4)).ok());  // not more than the threshold above 0
  ASSERT_TRUE(cluster.Step());
  EXPECT_THAT(Planned(cluster), ElementsAre(1, 4, 5));
  EXPECT_EQ(cluster.scheduler().stats().preemptions, 2u);
  cluster.Drain();
  EXPECT_EQ(cluster.last(3).completion_tokens, 40u);
}

TEST(PreemptTest, TakesThePagesOfAsFewAsSuffice) {
  SimCluster cluster(Config(8, 40));  // 160 tokens
  for (ReqId id = 1; id <= 4; ++id) {
    ASSERT_TRUE(cluster.Add(Spec(id, id == 1 ? 0 : -20, 32, 8)).ok());
  }
  for (int i = 0; i < 4; ++i) ASSERT_TRUE(cluster.Step());  // all decode: 9 pages each
  ASSERT_TRUE(cluster.Add(Spec(5, 5, 52, 4)).ok());         // 13 pages: 4 are free, one gives 9
  ASSERT_TRUE(cluster.Step());
  EXPECT_EQ(cluster.scheduler().stats().preemptions, 1u);
  EXPECT_THAT(Planned(cluster), ElementsAre(1, 2, 3, 5));
  cluster.Drain();
}

TEST(PreemptTest, NobodyGivesWayInVain) {
  SimCluster cluster(Config(8, 40));
  ASSERT_TRUE(cluster.Add(Spec(1, 0, 112, 8)).ok());
  ASSERT_TRUE(cluster.Add(Spec(2, -20, 24, 8)).ok());
  for (int i = 0; i < 4; ++i) ASSERT_TRUE(cluster.Step());
  ASSERT_TRUE(cluster.Add(Spec(3, 5, 60, 4)).ok());  // 15 pages; 4 are free, 2 would give 7
  ASSERT_TRUE(cluster.Step());
  EXPECT_EQ(cluster.scheduler().stats().preemptions, 0u);
  EXPECT_THAT(Planned(cluster), ElementsAre(1, 2));
  cluster.Drain();
}

// What two victims share counts once, and only if both give way.
TEST(PreemptTest, SharedPagesAreCountedRight) {
  SimCluster cluster(Config(8, 24));
  ReqSpec first = Spec(1, -20, 44, 30), second = Spec(2, -30, 44, 30);
  std::copy_n(first.prompt_ids.begin(), 40, second.prompt_ids.begin());
  second.prompt_ids[40] = 1 + first.prompt_ids[40];
  ASSERT_TRUE(cluster.Add(first).ok());
  ASSERT_TRUE(cluster.Step());
  ASSERT_TRUE(cluster.Add(second).ok());
  for (int i = 0; i < 2; ++i) ASSERT_TRUE(cluster.Step());
  EXPECT_EQ(cluster.scheduler().stats().locked_pages, 14u);  // 10 shared and 2 each
  ASSERT_TRUE(cluster.Add(Spec(3, 5, 56, 4)).ok());          // 14: one would give but 2
  ASSERT_TRUE(cluster.Step());
  EXPECT_EQ(cluster.scheduler().stats().preemptions, 2u);
  EXPECT_THAT(Planned(cluster), ElementsAre(3));
  cluster.Drain();
}

// The same long prompt twice: the second waits for what the first computes, and costs nobody a
// slot.
TEST(PreemptTest, NobodyGivesWayForOneThatIsHeldBack) {
  SchedulerConfig config = Config(2, 256);
  config.chunked_prefill_size = 16;
  SimCluster cluster(config);
  ASSERT_TRUE(cluster.Add(Spec(1, -20, 6, 60)).ok());
  for (int i = 0; i < 2; ++i) ASSERT_TRUE(cluster.Step());
  const ReqSpec first = Spec(2, 50, 80, 4);
  ReqSpec second = first;
  second.id = 3;
  ASSERT_TRUE(cluster.Add(first).ok());
  ASSERT_TRUE(cluster.Step());
  ASSERT_TRUE(cluster.Add(second).ok());
  ASSERT_TRUE(cluster.Step());  // of five chunks the second
  EXPECT_EQ(cluster.scheduler().stats().preemptions, 0u);
  EXPECT_THAT(Planned(cluster), ElementsAre(1, 2));
  cluster.Drain();
  EXPECT_EQ(cluster.scheduler().stats().preemptions, 1u);  // when the prompt was there
  EXPECT_GE(cluster.last(3).cached_tokens, 64u);
}

// It keeps a slot for itself; what else is free is not kept from others.
TEST(PreemptTest, OneThatIsHeldBackHoldsUpNobody) {
  SchedulerConfig config = Config(4, 256);
  config.chunked_prefill_size = 16;
  SimCluster cluster(config);
  const ReqSpec first = Spec(1, 50, 80, 4);
  ReqSpec second = first;
  second.id = 2;
  ASSERT_TRUE(cluster.Add(first).ok());
  ASSERT_TRUE(cluster.Step());
  ASSERT_TRUE(cluster.Add(second).ok());
  for (ReqId id = 3; id <= 6; ++id) ASSERT_TRUE(cluster.Add(Spec(id, 0, 6, 60)).ok());
  while (cluster.Step() && !cluster.finished(1)) {
    const std::set<ReqId> planned = Planned(cluster);
    EXPECT_LE(planned.size(), 4u);
    if (planned.contains(5)) break;
  }
  EXPECT_FALSE(Planned(cluster).contains(6)) << "the fourth slot is the second's";
  cluster.Drain();
  EXPECT_GE(cluster.last(2).cached_tokens, 64u);
}

TEST(PreemptTest, OtherPoliciesDoNotPreempt) {
  SchedulerConfig config = Config(1, 256);
  config.schedule_policy = "fcfs";
  SimCluster cluster(config);
  ASSERT_TRUE(cluster.Add(Spec(1, -100, 6, 10)).ok());
  ASSERT_TRUE(cluster.Add(Spec(2, 100, 6, 10)).ok());
  cluster.Drain();
  EXPECT_EQ(cluster.scheduler().stats().preemptions, 0u);
}

// With pages and budgets for all, nobody ever waits that may preempt one who runs.
TEST(PreemptTest, NoInversionIsLeft) {
  std::mt19937_64 random(1);
  SchedulerConfig config = Config(4, 4096);
  config.chunked_prefill_size = 512;
  config.max_step_ns = 3600 * kNsPerSecond;
  SimCluster cluster(config);
  ReqId next = 1;
  for (int step = 0; step < 3000; ++step) {
    if (random() % 4 == 0 && cluster.live().size() < 30) {
      const auto priority = static_cast<int32_t>(random() % 201) - 100;
      ASSERT_TRUE(cluster.Add(Spec(next++, priority, 4 + random() % 20, 1 + random() % 30)).ok());
    }
    if (!cluster.Plan()) continue;
    const std::set<ReqId> runs = Planned(cluster);
    int32_t lowest = INT32_MAX;
    for (const ReqId id : runs) lowest = std::min(lowest, cluster.expected(id).spec.priority);
    for (const ReqId id : cluster.live()) {
      if (runs.contains(id)) continue;
      ASSERT_EQ(runs.size(), 4u);
      ASSERT_LE(cluster.expected(id).spec.priority, lowest + 10) << "request " << id;
    }
    cluster.FinishPlan();
  }
  EXPECT_GT(cluster.scheduler().stats().preemptions, 100u);
  cluster.Drain();
}

}  // namespace
}  // namespace flotilla
