// Requests that are pooled: prompts that end in an embedding.
#include <gtest/gtest.h>

#include "scheduler_proc/core/prefill_adder.h"
#include "tests/scheduler_proc/core/sim_cluster.h"

namespace flotilla {
namespace {

using testing::SimCluster;

// A prompt of `len` tokens that begins with `first`.
ReqSpec Spec(ReqId id, uint32_t len, uint32_t max_new_tokens, int32_t first = 1) {
  ReqSpec spec;
  spec.id = id;
  for (uint32_t i = 0; i < len; ++i) {
    spec.prompt_ids.push_back(static_cast<int32_t>((static_cast<uint32_t>(first) + i * i) % 97));
  }
  spec.max_new_tokens = max_new_tokens;
  spec.ignore_eos = true;
  return spec;
}

ReqSpec PooledSpec(ReqId id, uint32_t len, Pooling pooling, int32_t first = 1) {
  ReqSpec spec = Spec(id, len, 0, first);
  spec.pooling = pooling;
  return spec;
}

TEST(PoolingTest, AnEmbeddingIsAPromptWithoutASample) {
  SimCluster cluster(SimCluster::SmallConfig());
  ASSERT_TRUE(cluster.Add(PooledSpec(1, 150, Pooling::kMean)).ok());
  ASSERT_TRUE(cluster.Add(Spec(2, 5, 20, 7)).ok());  // shares its last step
  for (int step = 0; step < 3; ++step) {
    ASSERT_FALSE(cluster.finished(1));
    ASSERT_TRUE(cluster.Step());
  }
  EXPECT_TRUE(cluster.finished(1)) << "chunks of 64, 64 and 22";
  EXPECT_EQ(cluster.last(1).completion_tokens, 0u);
  EXPECT_GT(cluster.last(1).first_token_ns, 0);
  ASSERT_TRUE(cluster.Add(PooledSpec(3, 150, Pooling::kLast)).ok());
  cluster.Drain();
  EXPECT_EQ(cluster.last(3).cached_tokens, 148u);
  ASSERT_TRUE(cluster.Add(PooledSpec(4, 150, Pooling::kMean)).ok());
  cluster.Drain();
  EXPECT_EQ(cluster.last(4).cached_tokens, 0u) << "it needs every position";
  EXPECT_EQ(cluster.scheduler().stats().generated_tokens, 20u);
}

TEST(PoolingTest, AStepEndsInNoMoreEmbeddingsThanAResultHolds) {
  SchedulerConfig config = SimCluster::SmallConfig();
  config.max_running_requests = 64;
  SimCluster cluster(config);
  for (ReqId id = 1; id <= 60; ++id) {
    ASSERT_TRUE(cluster.Add(PooledSpec(id, 1, Pooling::kLast, static_cast<int32_t>(id))).ok());
  }
  uint32_t steps = 0;
  while (cluster.scheduler().HasWork()) {
    ASSERT_TRUE(cluster.Step());
    ++steps;
    EXPECT_LE(cluster.plan().rows.size(), kMaxEmbedRows);
  }
  EXPECT_EQ(steps, 3u) << "of 24, 24 and 12";
  for (ReqId id = 1; id <= 60; ++id) EXPECT_TRUE(cluster.finished(id));
}

TEST(PoolingTest, AnEmbeddingOverlapsWithTheStepBeforeIt) {
  SchedulerConfig config = SimCluster::SmallConfig();
  config.max_plans_in_flight = 2;
  SimCluster cluster(config);
  ASSERT_TRUE(cluster.Add(PooledSpec(1, 150, Pooling::kMean)).ok());
  ASSERT_TRUE(cluster.Plan());
  ASSERT_TRUE(cluster.Plan()) << "the next chunk needs no result";
  cluster.FinishPlan();
  ASSERT_TRUE(cluster.Plan()) << "the last one";
  cluster.FinishPlan();
  EXPECT_FALSE(cluster.Plan()) << "nothing follows an embedding";
  EXPECT_FALSE(cluster.finished(1));
  cluster.FinishPlan();
  EXPECT_TRUE(cluster.finished(1));
}

TEST(PoolingTest, AnEmbeddingThatLosesItsPagesBeginsAgain) {
  SchedulerConfig config = SimCluster::SmallConfig();
  config.num_pages = 48;
  config.chunked_prefill_size = 8;
  config.init_new_token_ratio = 0;
  SimCluster cluster(config);
  for (int32_t id = 1; id <= 4; ++id)
    ASSERT_TRUE(cluster.Add(Spec(static_cast<ReqId>(id), 8, 100, 7 * id)).ok());
  for (int step = 0; step < 12; ++step) ASSERT_TRUE(cluster.Step());
  ASSERT_TRUE(cluster.Add(PooledSpec(5, 100, Pooling::kMean, 90)).ok());
  uint32_t beginnings = 0;
  while (!cluster.finished(5)) {
    ASSERT_TRUE(cluster.Step());
    for (const PlanRow& row : cluster.plan().rows)
      beginnings += (row.flags & kRowPoolMean) != 0 && row.start_pos == 0;
  }
  EXPECT_GT(beginnings, 1u) << "its pages went to those who decode";
  cluster.Drain();
}

TEST(PoolingTest, AnEmbeddingBeginsAgainInANewEpoch) {
  SimCluster cluster(SimCluster::SmallConfig());
  ASSERT_TRUE(cluster.Add(PooledSpec(1, 150, Pooling::kMean)).ok());
  ASSERT_TRUE(cluster.Step());
  ASSERT_TRUE(cluster.Plan());
  cluster.NewEpoch();
  cluster.Drain();
  EXPECT_TRUE(cluster.finished(1));
}

}  // namespace
}  // namespace flotilla
