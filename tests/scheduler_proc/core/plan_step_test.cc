// What a plan tells the workers about slots with penalties and biases. (Everything else of plans is
// in scheduler_test.cc; the simulated workers check each token and bias.)
#include <gtest/gtest.h>

#include "scheduler_proc/core/kv_pool.h"
#include "tests/scheduler_proc/core/sim_cluster.h"

namespace flotilla {
namespace {

using testing::SimCluster;

ReqSpec Spec(ReqId id, uint32_t len, uint32_t max_new_tokens) {
  ReqSpec spec;
  spec.id = id;
  for (uint32_t i = 0; i < len; ++i) spec.prompt_ids.push_back(static_cast<int32_t>(i % 90));
  spec.max_new_tokens = max_new_tokens;
  spec.ignore_eos = true;
  spec.sampling.repetition_penalty = 1.2f;
  return spec;
}

TEST(PlanStepTest, HistoryIsWhatTheRowsLeaveOut) {
  SimCluster cluster(SimCluster::SmallConfig());
  ReqSpec spec = Spec(1, 30, 5);
  spec.logit_bias = {{4, 1}, {9, -100}};
  ASSERT_TRUE(cluster.Add(spec).ok());
  ASSERT_TRUE(cluster.Step());
  const StepPlan& plan = cluster.plan();
  ASSERT_EQ(plan.opens.size(), 1u);
  EXPECT_EQ(plan.opens[0].output_start, 30u);
  EXPECT_EQ(plan.opens[0].num_history, 0u) << "nothing was in the cache";
  EXPECT_EQ(plan.opens[0].num_logit_bias, 2u);
  EXPECT_EQ(plan.logit_bias[1].token, 9);
  ASSERT_TRUE(cluster.Step());
  EXPECT_TRUE(plan.opens.empty() && plan.logit_bias.empty() && plan.history.empty());
  cluster.Drain();
  // The same prompt again: its pages are in the cache now.
  ASSERT_TRUE(cluster.Add(Spec(2, 30, 2)).ok());
  ReqSpec plain = Spec(3, 30, 2);
  plain.sampling.repetition_penalty = 1;
  ASSERT_TRUE(cluster.Add(plain).ok());
  ASSERT_TRUE(cluster.Step());
  ASSERT_EQ(plan.opens.size(), 2u);
  EXPECT_EQ(plan.opens[0].num_history, 28u);
  EXPECT_EQ(plan.rows[0].start_pos, 28u);
  EXPECT_EQ(plan.opens[1].num_history, 0u) << "without penalties nobody needs it";
  EXPECT_EQ(plan.rows[1].start_pos, 28u);
  EXPECT_EQ(plan.history.size(), 28u);
  cluster.Drain();
}

TEST(PlanStepTest, OutputStaysOutputOverANewEpochAndAResume) {
  SimCluster cluster(SimCluster::SmallConfig());
  ASSERT_TRUE(cluster.Add(Spec(1, 10, 20)).ok());
  for (int i = 0; i < 6; ++i) ASSERT_TRUE(cluster.Step());
  cluster.NewEpoch();
  ASSERT_TRUE(cluster.Step());
  ASSERT_EQ(cluster.plan().opens.size(), 1u);
  EXPECT_EQ(cluster.plan().opens[0].output_start, 10u);
  EXPECT_EQ(cluster.plan().rows[0].num_tokens, 16u) << "prompt and output in one row";
  ReqSpec resumed = Spec(2, 12, 20);
  resumed.resumed_ids = {1, 2, 3};
  ASSERT_TRUE(cluster.Add(resumed).ok());
  ASSERT_TRUE(cluster.Step());
  ASSERT_EQ(cluster.plan().opens.size(), 1u);
  EXPECT_EQ(cluster.plan().opens[0].output_start, 12u);
  cluster.Drain();
}

TEST(PlanStepTest, BadPenaltiesAndBiasesAreRefused) {
  SimCluster cluster(SimCluster::SmallConfig());
  const auto refused = [&](void (*spoil)(ReqSpec*)) {
    ReqSpec spec = Spec(1, 5, 5);
    spec.logit_bias = {{1, 1}, {2, 2}};
    spoil(&spec);
    return absl::IsInvalidArgument(cluster.Add(spec));
  };
  EXPECT_TRUE(refused([](ReqSpec* s) { s->sampling.presence_penalty = 2.1f; }));
  EXPECT_TRUE(refused([](ReqSpec* s) { s->sampling.frequency_penalty = NAN; }));
  EXPECT_TRUE(refused([](ReqSpec* s) { s->sampling.repetition_penalty = 0; }));
  EXPECT_TRUE(refused([](ReqSpec* s) { s->sampling.repetition_penalty = 2.1f; }));
  EXPECT_TRUE(refused([](ReqSpec* s) { s->logit_bias[1].token = 1; }));
  EXPECT_TRUE(refused([](ReqSpec* s) { s->logit_bias[0].token = -1; }));
  EXPECT_TRUE(refused([](ReqSpec* s) { s->logit_bias[1].token = 97; }));
  EXPECT_TRUE(refused([](ReqSpec* s) { s->logit_bias[1].bias = 101; }));
  EXPECT_TRUE(refused([](ReqSpec* s) { s->logit_bias.resize(1025); }));
  EXPECT_FALSE(refused([](ReqSpec*) {}));
  cluster.Drain();
}

}  // namespace
}  // namespace flotilla
