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

TEST(PlanStepTest, ShortPromptsAreOneStep) {
  SchedulerConfig config = SimCluster::SmallConfig();
  config.num_pages = 4096;
  config.context_length = 256;
  config.max_prefill_tokens = 4096;
  for (const uint32_t chunk : {512u, 511u}) {
    config.chunked_prefill_size = chunk;
    SimCluster cluster(config);
    for (ReqId id = 1; id <= 4; ++id) {
      ReqSpec spec = Spec(id, 128, 1);
      spec.prompt_ids[0] = static_cast<int32_t>(id);  // nothing to wait for in another's prompt
      ASSERT_TRUE(cluster.Add(spec).ok());
    }
    ASSERT_TRUE(cluster.Step());
    ASSERT_EQ(cluster.plan().rows.size(), 4u);
    EXPECT_LE(cluster.plan().input_ids.size(), chunk);
    cluster.Drain();
    EXPECT_EQ(cluster.scheduler().stats().steps, chunk == 512 ? 1u : 2u);
  }
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

SchedulerConfig OverlapConfig() {
  SchedulerConfig config = SimCluster::SmallConfig();
  config.max_plans_in_flight = 2;
  return config;
}

TEST(PlanStepTest, OverlapPlansADecodeBeforeItsTokenIsKnown) {
  SimCluster cluster(OverlapConfig());
  ASSERT_TRUE(cluster.Add(Spec(1, 10, 3)).ok());
  ASSERT_TRUE(cluster.Plan());
  ASSERT_TRUE(cluster.Plan());
  const StepPlan& plan = cluster.plan();
  ASSERT_EQ(plan.rows.size(), 1u);
  EXPECT_EQ(plan.rows[0].start_pos, 10u);
  EXPECT_EQ(plan.rows[0].flags, kRowSample);
  EXPECT_EQ(plan.input_ids, std::vector<int32_t>{kLastToken});
  EXPECT_FALSE(cluster.Plan()) << "two are in flight";
  cluster.FinishPlan();
  ASSERT_TRUE(cluster.Plan());
  EXPECT_EQ(plan.rows[0].start_pos, 11u);
  cluster.FinishPlan();
  EXPECT_FALSE(cluster.Plan()) << "the one in flight brings its third and last token";
  cluster.FinishPlan();
  EXPECT_EQ(cluster.last(1).finish, Finish::kLength);
  EXPECT_EQ(cluster.scheduler().stats().steps, 3u);
}

TEST(PlanStepTest, OverlapWastesAtMostOneRowOnAnUnforeseenEnd) {
  SimCluster cluster(OverlapConfig());
  ReqSpec spec = Spec(1, 10, 400);
  spec.ignore_eos = false;
  ASSERT_TRUE(cluster.Add(spec).ok());
  cluster.Drain();
  ASSERT_EQ(cluster.last(1).finish, Finish::kStop);
  EXPECT_EQ(cluster.scheduler().stats().steps, cluster.last(1).completion_tokens + 1);
}

TEST(PlanStepTest, OverlapHoldsBackWhoWaitsForAPrefixInFlight) {
  SchedulerConfig config = OverlapConfig();
  SimCluster cluster(config);
  ASSERT_TRUE(cluster.Add(Spec(1, 60, 2)).ok());
  ASSERT_TRUE(cluster.Plan());
  ReqSpec second = Spec(2, 61, 2);
  second.sampling.repetition_penalty = 1;
  ASSERT_TRUE(cluster.Add(second).ok());
  ASSERT_TRUE(cluster.Plan());
  EXPECT_EQ(cluster.plan().rows.size(), 1u) << "the first one's decode alone";
  cluster.FinishPlan();
  ASSERT_TRUE(cluster.Plan());
  ASSERT_EQ(cluster.plan().opens.size(), 1u);
  EXPECT_EQ(cluster.plan().rows.back().start_pos, 60u);
  cluster.Drain();
}

// 10 ms a step: the next is planned 3.3 ms before the end of the one that runs.
TEST(PlanStepTest, OverlapPlansLate) {
  SchedulerConfig config = OverlapConfig();
  Scheduler scheduler(config);
  scheduler.BeginEpoch(1, config.num_pages);
  EXPECT_EQ(scheduler.PlanDueNs(), INT64_MIN);
  ASSERT_TRUE(scheduler.Add(Spec(1, 10, 40), 0).ok());
  StepPlan plan;
  int64_t now = 0;
  std::vector<ReqOutput> outputs;
  for (int step = 0; step < 20; ++step, now += 10'000'000) {
    ASSERT_TRUE(scheduler.PlanStep(now, &plan));
    StepResult result;
    result.step_id = plan.step_id;
    result.epoch = 1;
    result.end_ns = 10'000'000;
    RowResult& row = result.rows.emplace_back();
    row.slot = plan.rows[0].slot;
    row.token = 5;
    if (step < 19) scheduler.OnResult(result, now, &outputs);
  }
  now -= 10'000'000;
  EXPECT_NEAR(static_cast<double>(scheduler.PlanDueNs() - now), 6.67e6, 2e5);
  ASSERT_TRUE(scheduler.PlanStep(now, &plan));
  EXPECT_EQ(scheduler.PlanDueNs(), INT64_MAX);
}

// A cluster that has learned what steps cost, with one request that decodes.
struct Experienced {
  explicit Experienced(const SchedulerConfig& config, int32_t priority = 0)
      : cluster(config), priority(priority) {
    for (int i = 0; i < 20; ++i) {
      Add(4 + 3 * static_cast<uint32_t>(i), 5);
      cluster.Step();
    }
    cluster.Drain();
    Add(10, 30);
    cluster.Step();
  }
  void Add(uint32_t len, uint32_t max_new_tokens) {
    ReqSpec spec = Spec(++id, len, max_new_tokens);
    spec.priority = priority;
    ASSERT_TRUE(cluster.Add(spec).ok());
  }
  // Of the next step, of prompts.
  size_t ChunkTokens() {
    cluster.Step();
    return cluster.plan().input_ids.size() - 1;
  }

  SimCluster cluster;
  const int32_t priority;
  ReqId id = 0;
};

// A decode takes 12 ms, a prompt's token 2: beside one decode there are 21 ms for prompts, for a
// long one alone 4.2, for two 18.
TEST(PlanStepTest, PromptsTakeTheTimeThatDecodesCanSpare) {
  SchedulerConfig config = SimCluster::SmallConfig();
  config.enable_prefix_cache = false;
  const auto chunks_of = [&](int prompts, uint32_t len, int64_t waited_ns = 0,
                             int32_t priority = 0) {
    Experienced with(config, priority);
    for (int i = 0; i < prompts; ++i) with.Add(len, 1);
    with.cluster.Pass(waited_ns);
    const size_t tokens = with.ChunkTokens();
    with.cluster.Drain();
    return tokens;
  };
  EXPECT_EQ(chunks_of(1, 60), 8u) << "whole pages";
  EXPECT_EQ(chunks_of(2, 60), 8u);
  EXPECT_EQ(chunks_of(3, 60), 64u) << "far more wait for a first token than for the next";
  EXPECT_EQ(chunks_of(1, 70), kMinChunkTokens);
  EXPECT_EQ(chunks_of(2, 70), 8u);
  EXPECT_EQ(chunks_of(3, 70), 64u);
  EXPECT_EQ(chunks_of(2, 60, kLongWaitNs + 1), 64u) << "two have waited for long";
  EXPECT_EQ(chunks_of(2, 60, kLongWaitNs / 2), 8u);
  EXPECT_EQ(chunks_of(1, 60, kLongWaitNs + 1), 8u) << "one alone has a rule of its own";
  EXPECT_EQ(chunks_of(2, 60, kLongWaitNs + 1, -1), 8u) << "in the background";
}

// Who has begun waits for a first token as who has not.
TEST(PlanStepTest, APromptThatHasTakenLongIsNotLimitedBesideAnother) {
  SchedulerConfig config = SimCluster::SmallConfig();
  config.enable_prefix_cache = false;
  Experienced with(config);
  with.Add(70, 1);
  EXPECT_EQ(with.ChunkTokens(), kMinChunkTokens);
  with.cluster.Pass(kLongWaitNs + 1);
  EXPECT_EQ(with.ChunkTokens(), kMinChunkTokens) << "it is alone";
  with.Add(70, 1);
  EXPECT_EQ(with.ChunkTokens(), 70 - 2 * kMinChunkTokens) << "all that is left of it";
  with.cluster.Drain();
}

// A retraction needs a request's pages, which a plan in flight still writes.
TEST(PlanStepTest, OverlapWaitsForTheResultBeforeItRetracts) {
  SchedulerConfig config = OverlapConfig();
  config.num_pages = 12;
  config.init_new_token_ratio = 0;
  SimCluster cluster(config);
  for (ReqId id = 1; id <= 3; ++id) {
    ReqSpec spec = Spec(id, 12, 30);
    spec.prompt_ids[0] = static_cast<int32_t>(id);
    ASSERT_TRUE(cluster.Add(spec).ok());
  }
  cluster.Drain();
  EXPECT_GT(cluster.scheduler().stats().retractions, 0u);
  for (ReqId id = 1; id <= 3; ++id) EXPECT_EQ(cluster.last(id).completion_tokens, 30u);
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
