// What the core takes and what it refuses. (How requests end is in scheduler_test.cc.)
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <limits>

#include "scheduler_proc/core/schedule_policy.h"
#include "tests/scheduler_proc/core/sim_cluster.h"

namespace flotilla {
namespace {

using testing::SimCluster;

ReqSpec Spec(ReqId id, uint32_t len, uint32_t max_new_tokens) {
  ReqSpec spec;
  spec.id = id;
  spec.prompt_ids.assign(len, 1);
  spec.max_new_tokens = max_new_tokens;
  spec.ignore_eos = true;
  return spec;
}

TEST(RequestsTest, TheQueueIsBounded) {
  SchedulerConfig config = SimCluster::SmallConfig();
  config.max_queued_requests = 2;
  SimCluster cluster(config);
  EXPECT_TRUE(cluster.Add(Spec(1, 4, 1)).ok());
  EXPECT_TRUE(cluster.Add(Spec(2, 4, 1)).ok());
  const Status status = cluster.Add(Spec(3, 4, 1));
  EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
  EXPECT_EQ(cluster.scheduler().stats().queued_tokens, 8u);
  cluster.Drain();
  EXPECT_TRUE(cluster.Add(Spec(3, 4, 1)).ok());
}

TEST(RequestsTest, NothingIsTakenBeforeThePagesAreKnown) {
  SchedulerConfig config = SimCluster::SmallConfig();
  config.num_pages = 0;
  Scheduler scheduler(config);
  EXPECT_TRUE(absl::IsUnavailable(scheduler.Add(Spec(1, 4, 1), 0)));
  scheduler.BeginEpoch(1, 16);
  EXPECT_TRUE(scheduler.Add(Spec(1, 4, 1), 0).ok());
  EXPECT_EQ(scheduler.stats().total_pages, 16u);
}

TEST(RequestsTest, RefusesWhatCanNeverRunAndNamesTheField) {
  SchedulerConfig config = SimCluster::SmallConfig();
  config.num_pages = 20;  // 80 tokens
  Scheduler scheduler(config);
  ASSERT_TRUE(scheduler.Add(Spec(1, 4, 1), 0).ok());
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const struct {
    const char* field;
    std::function<void(ReqSpec*)> break_it;
  } cases[] = {
      {"id", [](ReqSpec* s) { s->id = 1; }},
      {"prompt_ids", [](ReqSpec* s) { s->prompt_ids.clear(); }},
      {"prompt_ids[1]", [](ReqSpec* s) { s->prompt_ids[1] = 97; }},
      {"prompt_ids[0]", [](ReqSpec* s) { s->prompt_ids[0] = -1; }},
      {"prompt_ids", [](ReqSpec* s) { s->prompt_ids.assign(512, 1); }},
      {"resumed_ids[0]", [](ReqSpec* s) { s->resumed_ids = {1 << 30}; }},
      {"resumed_ids", [](ReqSpec* s) { s->resumed_ids.assign(10, 1); }},
      {"max_new_tokens", [](ReqSpec* s) { s->max_new_tokens = 0; }},
      {"max_new_tokens", [](ReqSpec* s) { s->max_new_tokens = UINT32_MAX; }},
      {"max_new_tokens", [](ReqSpec* s) { s->max_new_tokens = 78; }},
      {"min_new_tokens", [](ReqSpec* s) { s->min_new_tokens = 11; }},
      {"temperature", [nan](ReqSpec* s) { s->sampling.temperature = nan; }},
      {"temperature", [](ReqSpec* s) { s->sampling.temperature = -1; }},
      {"top_p", [](ReqSpec* s) { s->sampling.top_p = 0; }},
      {"top_p", [nan](ReqSpec* s) { s->sampling.top_p = nan; }},
      {"min_p", [](ReqSpec* s) { s->sampling.min_p = 1.5f; }},
      {"logprobs", [](ReqSpec* s) { s->sampling.num_logprobs = 21; }},
      {"prompt_logprobs", [](ReqSpec* s) { s->sampling.num_prompt_logprobs = 21; }},
  };
  for (const auto& test : cases) {
    ReqSpec spec = Spec(2, 4, 10);
    test.break_it(&spec);
    const Status status = scheduler.Add(spec, 0);
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << test.field << ": " << status;
    EXPECT_THAT(std::string(status.message()), ::testing::StartsWith(test.field));
  }
  ReqSpec largest = Spec(2, 4, 77);  // 80 tokens with KV, and one that needs none
  EXPECT_TRUE(scheduler.Add(largest, 0).ok());
  EXPECT_EQ(scheduler.stats().waiting, 2u);
}

// What another replica lost in mid-answer does not wait behind what never ran, nor is it refused
// because of that; under each policy.
TEST(RequestsTest, ResumedRequestsGoFirstThoughTheQueueIsFull) {
  for (const std::string_view policy : SchedulePolicyNames()) {
    SchedulerConfig config = SimCluster::SmallConfig();
    config.schedule_policy = policy;
    config.max_running_requests = 2;
    config.max_queued_requests = 5;
    SimCluster cluster(config);
    const auto add = [&](ReqId id, bool resumed) {
      ReqSpec spec = Spec(id, 8, 12);
      spec.cache_salt = id % 2 == 0 ? "even" : "odd";
      if (resumed) spec.resumed_ids = {3, 4};
      return cluster.Add(spec);
    };
    for (ReqId id = 1; id <= 2; ++id) ASSERT_TRUE(add(id, false).ok());
    ASSERT_TRUE(cluster.Step());  // they run
    for (ReqId id = 3; id <= 7; ++id) ASSERT_TRUE(add(id, false).ok());
    EXPECT_TRUE(absl::IsResourceExhausted(add(8, false)));
    for (ReqId id = 11; id <= 12; ++id) ASSERT_TRUE(add(id, true).ok()) << policy;
    EXPECT_TRUE(absl::IsResourceExhausted(add(13, true))) << "as many as may run";
    while (!cluster.finished(11) || !cluster.finished(12)) {
      ASSERT_TRUE(cluster.Step());
      for (ReqId id = 3; id <= 7; ++id) {
        EXPECT_TRUE(cluster.tokens(id).empty()) << policy << " " << id;
      }
    }
    cluster.Drain();
  }
}

}  // namespace
}  // namespace flotilla
