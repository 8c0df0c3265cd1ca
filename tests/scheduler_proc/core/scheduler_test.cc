#include "scheduler_proc/core/scheduler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>

#include "tests/scheduler_proc/core/sim_cluster.h"

namespace flotilla {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
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

TEST(SchedulerTest, OneRequestFromPromptToLastToken) {
  SimCluster cluster(SimCluster::SmallConfig());
  ASSERT_TRUE(cluster.Add(Spec(1, 6, 4)).ok());
  ASSERT_TRUE(cluster.Step());
  const StepPlan& plan = cluster.plan();
  EXPECT_EQ(plan.command, StepCommand::kForward);
  ASSERT_EQ(plan.opens.size(), 1u);
  ASSERT_EQ(plan.rows.size(), 1u);
  EXPECT_EQ(plan.opens[0].slot, plan.rows[0].slot);
  EXPECT_EQ(plan.rows[0].start_pos, 0u);
  EXPECT_EQ(plan.rows[0].num_tokens, 6u);
  EXPECT_EQ(plan.rows[0].flags, kRowSample);
  EXPECT_THAT(plan.new_pages, ElementsAre(0, 1));
  ASSERT_TRUE(cluster.Step());
  EXPECT_TRUE(plan.opens.empty());
  EXPECT_EQ(plan.rows[0].start_pos, 6u);
  EXPECT_EQ(plan.rows[0].num_new_pages, 0u);
  ASSERT_TRUE(cluster.Step());
  ASSERT_TRUE(cluster.Step());
  EXPECT_EQ(plan.rows[0].start_pos, 8u);
  EXPECT_EQ(plan.rows[0].num_new_pages, 1u);
  EXPECT_FALSE(cluster.Step());
  EXPECT_EQ(cluster.last(1).finish, Finish::kLength);
  EXPECT_EQ(cluster.last(1).completion_tokens, 4u);
  EXPECT_FALSE(cluster.scheduler().HasWork());
}

TEST(SchedulerTest, ReportsWhenThingsHappened) {
  SimCluster cluster(SimCluster::SmallConfig());
  ASSERT_TRUE(cluster.Add(Spec(1, 100, 2)).ok());
  const int64_t added = cluster.now();
  cluster.Drain();
  const ReqOutput& output = cluster.last(1);
  EXPECT_EQ(output.queued_ns, added);
  EXPECT_EQ(output.first_scheduled_ns, added + 1000);
  EXPECT_EQ(output.first_token_ns, added + 2000);  // 64 tokens of the prompt, then 36
}

TEST(SchedulerTest, ReportsWhyARequestWaited) {
  const auto reason_of_last = [](const SchedulerConfig& config, const std::vector<ReqSpec>& specs) {
    SimCluster cluster(config);
    for (const ReqSpec& spec : specs) EXPECT_TRUE(cluster.Add(spec).ok());
    cluster.Drain();
    return std::string(WaitReasonName(cluster.last(specs.back().id).wait_reason));
  };
  const SchedulerConfig config = SimCluster::SmallConfig();
  EXPECT_EQ(reason_of_last(config, {Spec(1, 20, 4)}), "next_step");
  EXPECT_EQ(reason_of_last(config, {Spec(1, 200, 4), Spec(2, 20, 4, 5)}), "token_budget");
  EXPECT_EQ(reason_of_last(config, {Spec(1, 50, 4), Spec(2, 60, 4)}), "shared_prefix");
  SchedulerConfig one_slot = config;
  one_slot.max_running_requests = 1;
  EXPECT_EQ(reason_of_last(one_slot, {Spec(1, 20, 40), Spec(2, 20, 4, 5)}), "running_requests");
  SchedulerConfig few_pages = config;
  few_pages.num_pages = 20;
  EXPECT_EQ(reason_of_last(few_pages, {Spec(1, 40, 30), Spec(2, 40, 4, 5)}), "kv_pages");
}

TEST(SchedulerTest, DecodesRideBesideChunks) {
  SimCluster cluster(SimCluster::SmallConfig());
  ASSERT_TRUE(cluster.Add(Spec(1, 4, 20)).ok());
  ASSERT_TRUE(cluster.Step());
  ASSERT_TRUE(cluster.Add(Spec(2, 150, 2, 5)).ok());
  for (const uint32_t chunk : {64u, 64u, 22u}) {
    ASSERT_TRUE(cluster.Step());
    ASSERT_EQ(cluster.plan().rows.size(), 2u);
    EXPECT_EQ(cluster.plan().rows[0].num_tokens, 1u);
    EXPECT_EQ(cluster.plan().rows[1].num_tokens, chunk);
    EXPECT_EQ(cluster.plan().rows[1].flags, chunk == 22 ? kRowSample : 0u);
  }
  cluster.Drain();
}

TEST(SchedulerTest, WithoutMixedChunksPrefillGoesFirstButDecodingIsNotStarved) {
  SchedulerConfig config = SimCluster::SmallConfig();
  config.enable_mixed_chunk = false;
  config.chunked_prefill_size = 8;
  SimCluster cluster(config);
  ASSERT_TRUE(cluster.Add(Spec(1, 4, 20)).ok());
  ASSERT_TRUE(cluster.Step());
  ASSERT_TRUE(cluster.Add(Spec(2, 150, 2, 5)).ok());
  uint32_t decodes = 0;
  for (int i = 0; i < 21; ++i) {
    ASSERT_TRUE(cluster.Step());
    ASSERT_EQ(cluster.plan().rows.size(), 1u);
    decodes += cluster.plan().rows[0].num_tokens == 1;
  }
  EXPECT_EQ(decodes, 2u);  // 19 chunks, one decode after each eight
  cluster.Drain();
}

TEST(SchedulerTest, EndsAtEosStopTokensAndLengths) {
  SchedulerConfig config = SimCluster::SmallConfig();
  config.context_length = 50;
  SimCluster cluster(config);
  // Foretold by the model, and checked by the cluster; here: that each kind occurs.
  uint32_t ends[6] = {};
  for (ReqId id = 1; id <= 100; ++id) {
    ReqSpec spec = Spec(id, 1 + id % 30, 1 + id % 45, static_cast<int32_t>(id % 97));
    spec.ignore_eos = id % 3 == 0;
    if (id % 2 == 0) spec.stop_token_ids = {5, 6, 7, 8};
    if (id % 5 == 0) spec.min_new_tokens = spec.max_new_tokens / 2;
    ASSERT_TRUE(cluster.Add(spec).ok());
  }
  cluster.Drain();
  for (ReqId id = 1; id <= 100; ++id) {
    const ReqOutput& output = cluster.last(id);
    ++ends[static_cast<uint32_t>(output.finish)];
    if (output.finish == Finish::kStop) {
      EXPECT_EQ(output.stop_token, cluster.tokens(id).back());
      EXPECT_GT(output.completion_tokens, cluster.expected(id).spec.min_new_tokens);
    } else {
      EXPECT_EQ(output.stop_token, -1);
    }
    EXPECT_LE(output.prompt_tokens + output.completion_tokens, 50u);
  }
  EXPECT_GT(ends[static_cast<uint32_t>(Finish::kStop)], 10u);
  EXPECT_GT(ends[static_cast<uint32_t>(Finish::kLength)], 10u);
}

TEST(SchedulerTest, ResumedTokensCountAsOutput) {
  SimCluster cluster(SimCluster::SmallConfig());
  ASSERT_TRUE(cluster.Add(Spec(1, 10, 8)).ok());
  cluster.Drain();
  ReqSpec spec = Spec(2, 10, 8);
  spec.resumed_ids.assign(cluster.tokens(1).begin(), cluster.tokens(1).begin() + 5);
  ASSERT_TRUE(cluster.Add(spec).ok());
  cluster.Drain();
  EXPECT_EQ(cluster.tokens(2), cluster.tokens(1));
  EXPECT_EQ(cluster.last(2).completion_tokens, 8u);
  EXPECT_EQ(cluster.last(2).prompt_tokens, 10u);
}

// Of a prompt that waits, one that is half computed, and one that has output.
TEST(SchedulerTest, AnAbortTellsWhatWasComputed) {
  SchedulerConfig config = SimCluster::SmallConfig();
  config.chunked_prefill_size = 16;
  SimCluster cluster(config);
  const auto abort = [&](ReqId id) {
    std::vector<ReqOutput> outputs;
    cluster.Abort(id, &outputs);
    return outputs.at(0).computed_tokens;
  };
  ASSERT_TRUE(cluster.Add(Spec(1, 40, 8)).ok());
  EXPECT_EQ(abort(1), 0u);
  ASSERT_TRUE(cluster.Add(Spec(2, 40, 8)).ok());
  ASSERT_TRUE(cluster.Step());
  EXPECT_EQ(abort(2), 16u);
  ASSERT_TRUE(cluster.Add(Spec(3, 40, 8, 5)).ok());
  while (cluster.tokens(3).size() < 4) ASSERT_TRUE(cluster.Step());
  EXPECT_EQ(abort(3), 44u);
}

TEST(SchedulerTest, TruncateLeavesNothingPastTheStop) {
  SimCluster cluster(SimCluster::SmallConfig());  // pages of 4
  ASSERT_TRUE(cluster.Add(Spec(1, 6, 40)).ok());
  for (int i = 0; i < 15; ++i) ASSERT_TRUE(cluster.Step());
  ASSERT_TRUE(cluster.Plan());  // one more token is on its way
  const std::vector<int32_t> produced = cluster.tokens(1);
  cluster.Truncate(1, 7);  // the text ends at token 13 of the sequence
  EXPECT_EQ(cluster.last(1).completion_tokens, 7u);
  cluster.FinishPlan();
  EXPECT_EQ(cluster.scheduler().stats().locked_pages, 0u);
  EXPECT_EQ(cluster.scheduler().stats().evictable_pages, 3u);  // 12 tokens
  ReqSpec again = Spec(2, 6, 2);
  again.prompt_ids.insert(again.prompt_ids.end(), produced.begin(), produced.end());
  ASSERT_TRUE(cluster.Add(again).ok());
  cluster.Drain();
  EXPECT_EQ(cluster.last(2).cached_tokens, 12u);
  EXPECT_FALSE(cluster.scheduler().Truncate(1, 1, 0, nullptr));
}

TEST(SchedulerTest, AbortFreesWithinTwoSteps) {
  for (const bool in_flight : {false, true}) {
    SimCluster cluster(SimCluster::SmallConfig());
    ASSERT_TRUE(cluster.Add(Spec(1, 40, 100)).ok());
    ASSERT_TRUE(cluster.Add(Spec(2, 8, 100, 3)).ok());
    ASSERT_TRUE(cluster.Step());
    ASSERT_TRUE(cluster.Step());
    const uint64_t locked = cluster.scheduler().stats().locked_pages;
    if (in_flight) {
      ASSERT_TRUE(cluster.Plan());
      cluster.Abort(1);
      EXPECT_EQ(cluster.scheduler().stats().locked_pages, locked);  // the workers still write them
      cluster.FinishPlan();
    } else {
      cluster.Abort(1);
    }
    EXPECT_EQ(cluster.scheduler().stats().locked_pages, 3u);
    EXPECT_EQ(cluster.worker().num_open(), 2u);
    ASSERT_TRUE(cluster.Step());
    EXPECT_EQ(cluster.plan().closes.size(), 1u);
    EXPECT_EQ(cluster.worker().num_open(), 1u);
    EXPECT_FALSE(cluster.scheduler().Abort(1, Finish::kAbort));
    EXPECT_EQ(cluster.scheduler().stats().aborts, 1u);
  }
}

TEST(SchedulerTest, AFreedSlotIsOpenedAgainWithoutAClose) {
  SchedulerConfig config = SimCluster::SmallConfig();
  config.max_running_requests = 1;
  SimCluster cluster(config);
  ASSERT_TRUE(cluster.Add(Spec(1, 4, 1)).ok());
  ASSERT_TRUE(cluster.Add(Spec(2, 4, 2, 9)).ok());
  ASSERT_TRUE(cluster.Step());
  ASSERT_TRUE(cluster.Step());
  EXPECT_EQ(cluster.plan().opens.size(), 1u);
  EXPECT_TRUE(cluster.plan().closes.empty());
  cluster.Drain();
}

TEST(SchedulerTest, DeadlinesEndWaitingAndRunning) {
  SchedulerConfig config = SimCluster::SmallConfig();
  config.max_running_requests = 1;
  SimCluster cluster(config);
  ReqSpec running = Spec(1, 4, 100), waiting = Spec(2, 4, 100), patient = Spec(3, 4, 3);
  running.deadline_ns = cluster.now() + 5000;
  waiting.deadline_ns = cluster.now() + 3000;
  for (const ReqSpec& spec : {running, waiting, patient}) ASSERT_TRUE(cluster.Add(spec).ok());
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(cluster.Step());
  cluster.Expire();
  EXPECT_TRUE(cluster.finished(2));
  EXPECT_FALSE(cluster.finished(1));
  for (int i = 0; i < 2; ++i) ASSERT_TRUE(cluster.Step());
  cluster.Expire();
  EXPECT_TRUE(cluster.finished(1));
  cluster.Drain();
  EXPECT_EQ(cluster.last(3).finish, Finish::kLength);
}

TEST(SchedulerTest, RetractsTheLastToComeAndChangesNoOutput) {
  SchedulerConfig config = SimCluster::SmallConfig();
  config.num_pages = 20;  // 80 tokens
  config.init_new_token_ratio = 0;
  SimCluster cluster(config);
  for (ReqId id = 1; id <= 4; ++id) {
    ASSERT_TRUE(cluster.Add(Spec(id, 12, 50, static_cast<int32_t>(id * 7))).ok());
  }
  cluster.Drain();  // compares every token with the foretold
  EXPECT_GT(cluster.scheduler().stats().retractions, 2u);
  for (ReqId id = 2; id <= 4; ++id) EXPECT_EQ(cluster.last(id).completion_tokens, 50u);
}

// Without mixed chunks: an older prompt finds no page, then the newer request's decode finds none
// either. What the newer one gives back goes to the prompt in the same step.
TEST(SchedulerTest, ADecodeThatGivesWayLetsAPromptGoOn) {
  SchedulerConfig config = SimCluster::SmallConfig();
  config.enable_mixed_chunk = false;
  config.schedule_policy = "lpm";
  config.num_pages = 21;
  config.chunked_prefill_size = 4;
  config.init_new_token_ratio = 0;
  SimCluster cluster(config);
  ASSERT_TRUE(cluster.Add(Spec(1, 9, 1, 5)).ok());
  cluster.Drain();  // 8 tokens cached
  ASSERT_TRUE(cluster.Add(Spec(2, 72, 2)).ok());
  ASSERT_TRUE(cluster.Add(Spec(3, 11, 60, 5)).ok());  // goes first, for its prefix
  cluster.Drain();
  EXPECT_EQ(cluster.scheduler().stats().retractions, 1u);
  EXPECT_EQ(cluster.last(3).cached_tokens, 8u);
}

TEST(SchedulerTest, AnEpochRestartsWhatRunsAndForgetsThePlanInFlight) {
  SimCluster cluster(SimCluster::SmallConfig());
  for (ReqId id = 1; id <= 10; ++id) ASSERT_TRUE(cluster.Add(Spec(id, 20, 12)).ok());
  for (int i = 0; i < 4; ++i) ASSERT_TRUE(cluster.Step());
  ASSERT_TRUE(cluster.Plan());
  const StepPlan old = cluster.plan();
  const size_t produced = cluster.tokens(1).size();
  cluster.Abort(2);
  cluster.NewEpoch();
  StepResult late;
  late.step_id = old.step_id;
  late.epoch = old.epoch;
  std::vector<ReqOutput> outputs;
  cluster.scheduler().OnResult(late, 0, &outputs);
  EXPECT_TRUE(outputs.empty());
  EXPECT_EQ(cluster.scheduler().stats().running, 0u);
  ASSERT_TRUE(cluster.Step());
  EXPECT_GT(cluster.plan().step_id, old.step_id);
  EXPECT_EQ(cluster.plan().epoch, 1u);
  EXPECT_EQ(cluster.plan().rows[0].num_tokens, 20 + produced);  // the tokens are kept
  cluster.Drain();
}

TEST(SchedulerTest, PromptLogprobsComeOnceOverRestarts) {
  SimCluster cluster(SimCluster::SmallConfig());
  ASSERT_TRUE(cluster.Add(Spec(1, 21, 30)).ok());
  ReqSpec spec = Spec(2, 150, 3, 11);
  spec.sampling.num_prompt_logprobs = 0;
  ASSERT_TRUE(cluster.Add(spec).ok());
  ASSERT_TRUE(cluster.Step());
  EXPECT_EQ(cluster.plan().rows[1].flags, kRowPromptLogprobs);
  EXPECT_EQ(cluster.plan().rows[1].next_token, spec.prompt_ids[40]);
  ASSERT_TRUE(cluster.Step());  // to position 104
  cluster.Abort(1);
  cluster.NewEpoch();  // the chunks now end at 64 and 128
  cluster.Drain();     // checks that each position came once
  EXPECT_TRUE(cluster.finished(2));
}

TEST(SchedulerTest, ColdRequestsWithACommonPrefixComputeItOnce) {
  SchedulerConfig config = SimCluster::SmallConfig();
  config.num_pages = 8192;
  config.max_running_requests = 64;
  config.chunked_prefill_size = 512;
  config.context_length = 1024;
  SimCluster cluster(config);
  const ReqSpec prefix = Spec(0, 256, 1);
  for (ReqId id = 1; id <= 64; ++id) {
    ReqSpec spec = Spec(id, 128, 4, static_cast<int32_t>(id));
    spec.prompt_ids.insert(spec.prompt_ids.begin(), prefix.prompt_ids.begin(),
                           prefix.prompt_ids.end());
    spec.prompt_ids[256] = static_cast<int32_t>(id);
    ASSERT_TRUE(cluster.Add(spec).ok());
  }
  cluster.Drain();
  EXPECT_GE(cluster.scheduler().stats().cached_tokens, 63u * 256 * 95 / 100);
}

TEST(SchedulerTest, ChunksAreSharedWhileTheirPromptGoesOn) {
  SimCluster cluster(SimCluster::SmallConfig());
  ASSERT_TRUE(cluster.Add(Spec(1, 200, 2)).ok());
  ASSERT_TRUE(cluster.Step());
  ReqSpec spec = Spec(2, 60, 2);
  ASSERT_TRUE(cluster.Add(spec).ok());
  cluster.Drain();
  EXPECT_EQ(cluster.last(2).cached_tokens, 56u);
}

TEST(SchedulerTest, AFailedStepEndsItsRequestsOnly) {
  Scheduler scheduler(SimCluster::SmallConfig());
  StepPlan plan;
  std::vector<ReqOutput> outputs;
  const auto fail = [&](ReqId id, const std::function<void(StepResult*)>& change) {
    ASSERT_TRUE(scheduler.Add(Spec(id, 10, 5), 0).ok());
    ASSERT_TRUE(scheduler.PlanStep(1, &plan));
    EXPECT_FALSE(scheduler.PlanStep(1, &plan));  // one in flight
    StepResult result;
    result.step_id = plan.step_id;
    result.epoch = plan.epoch;
    result.rows.resize(1);
    result.rows[0].slot = plan.rows[0].slot;
    result.rows[0].token = 5;
    change(&result);
    outputs.clear();
    scheduler.OnResult(result, 2, &outputs);
    ASSERT_EQ(outputs.size(), 1u);
    EXPECT_EQ(outputs[0].finish, Finish::kError);
    EXPECT_FALSE(outputs[0].token.has_value());
    EXPECT_FALSE(outputs[0].error.empty());
    EXPECT_EQ(scheduler.stats().locked_pages, 0u);
    EXPECT_EQ(scheduler.stats().evictable_pages, 0u);  // nothing unsure is kept
    EXPECT_TRUE(scheduler.CheckLedger().ok());
  };
  fail(1, [](StepResult* r) { r->code = 13, r->message = "out of memory"; });
  EXPECT_THAT(outputs[0].error, HasSubstr("out of memory"));
  fail(2, [](StepResult* r) { r->rows.clear(); });
  fail(3, [](StepResult* r) { r->rows[0].slot += 1; });
  fail(4, [](StepResult* r) { r->rows[0].token = -1; });
  fail(5, [](StepResult* r) { r->rows[0].token = 97; });
  EXPECT_FALSE(scheduler.HasWork());
}

TEST(SchedulerTest, ValidatesItsConfiguration) {
  EXPECT_TRUE(ValidateSchedulerConfig(SimCluster::SmallConfig()).ok());
  const struct {
    const char* field;
    std::function<void(SchedulerConfig*)> break_it;
  } cases[] = {
      {"page_size", [](SchedulerConfig* c) { c->page_size = 0; }},
      {"max_running_requests", [](SchedulerConfig* c) { c->max_running_requests = 0; }},
      {"chunked_prefill_size", [](SchedulerConfig* c) { c->chunked_prefill_size = 0; }},
      {"max_prefill_tokens", [](SchedulerConfig* c) { c->max_prefill_tokens = 0; }},
      {"context_length", [](SchedulerConfig* c) { c->context_length = 1; }},
      {"vocab_size", [](SchedulerConfig* c) { c->vocab_size = 0; }},
      {"init_new_token_ratio", [](SchedulerConfig* c) { c->init_new_token_ratio = 1.5; }},
      {"min_new_token_ratio_factor",
       [](SchedulerConfig* c) { c->min_new_token_ratio_factor = -1; }},
      {"new_token_ratio_decay_steps",
       [](SchedulerConfig* c) { c->new_token_ratio_decay_steps = 0; }},
      {"schedule_conservativeness",
       [](SchedulerConfig* c) { c->schedule_conservativeness = std::nan(""); }},
      {"eviction_policy", [](SchedulerConfig* c) { c->eviction_policy = "fifo"; }},
      {"vtc_input_weight", [](SchedulerConfig* c) { c->vtc_input_weight = -1; }},
      {"vtc_output_weight", [](SchedulerConfig* c) { c->vtc_output_weight = std::nan(""); }},
      {"schedule_policy", [](SchedulerConfig* c) { c->schedule_policy = "best"; }},
  };
  for (const auto& test : cases) {
    SchedulerConfig config = SimCluster::SmallConfig();
    test.break_it(&config);
    EXPECT_THAT(std::string(ValidateSchedulerConfig(config).message()),
                ::testing::StartsWith(test.field));
  }
}

}  // namespace
}  // namespace flotilla
