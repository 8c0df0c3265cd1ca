#include "scheduler_proc/simulation/workload.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "scheduler_proc/flight/recorded_scheduler.h"
#include "tests/fakes/answer_plan.h"

namespace flotilla {
namespace {

using ::testing::HasSubstr;

TEST(WorkloadTest, PoissonHasItsRateAndMeans) {
  const auto requests = PoissonWorkload({.num_requests = 20'000, .rate = 40, .prefix_tokens = 16});
  ASSERT_EQ(requests.size(), 20'000u);
  EXPECT_NEAR(static_cast<double>(requests.back().arrival_ns) * 1e-9, 500, 15);
  double prompt = 0, output = 0;
  for (const SimRequest& request : requests) {
    prompt += request.prompt_tokens - 16;
    output += request.output_tokens;
  }
  // The mean of an exponential cut at a quarter of it from below.
  EXPECT_NEAR(prompt / 20'000, 256 * 1.03, 8);
  EXPECT_NEAR(output / 20'000, 64 * 1.03, 3);
  const auto again = PoissonWorkload({.num_requests = 20'000, .rate = 40, .prefix_tokens = 16});
  EXPECT_EQ(again.back().arrival_ns, requests.back().arrival_ns);
}

TEST(WorkloadTest, ReadsTraces) {
  const auto requests = ParseTrace(
      "{\"at\": 0.5, \"prompt_tokens\": 30, \"output_tokens\": 4}\n\n"
      "{\"at\": 1, \"prompt_tokens\": 30, \"output_tokens\": 4, \"max_tokens\": 9, \"prefix\": "
      "\"a\","
      " \"prefix_tokens\": 20, \"tenant\": \"t\", \"priority\": -3}\n"
      "{\"at\": 1, \"prompt_tokens\": 25, \"output_tokens\": 4, \"prefix\": \"a\", "
      "\"prefix_tokens\": 20}");
  ASSERT_TRUE(requests.ok()) << requests.status();
  ASSERT_EQ(requests->size(), 3u);
  EXPECT_EQ((*requests)[0].arrival_ns, 500'000'000);
  EXPECT_EQ((*requests)[0].max_new_tokens, 4u);
  EXPECT_EQ((*requests)[1].max_new_tokens, 9u);
  EXPECT_EQ((*requests)[1].tenant, "t");
  EXPECT_EQ((*requests)[1].priority, -3);
  std::vector<std::vector<int32_t>> prompts;
  for (size_t i = 0; i < 3; ++i) prompts.push_back(MakePrompt((*requests)[i], i, 1000));
  EXPECT_EQ(prompts[1].size(), 30u);
  EXPECT_TRUE(std::equal(prompts[1].begin(), prompts[1].begin() + 20, prompts[2].begin()));
  EXPECT_NE(prompts[1][20], prompts[2][20]);
  EXPECT_NE(prompts[0][0], prompts[1][0]);
  for (const auto& prompt : prompts) {
    EXPECT_GT(*std::min_element(prompt.begin(), prompt.end()), 0);
    EXPECT_LT(*std::max_element(prompt.begin(), prompt.end()), 1000);
  }
}

TEST(WorkloadTest, BrokenTracesNameLineAndField) {
  const auto error = [](const char* text) {
    return std::string(ParseTrace(text).status().message());
  };
  EXPECT_THAT(error(""), HasSubstr("no request"));
  EXPECT_THAT(error("{}"), HasSubstr("line 1: 'at'"));
  EXPECT_THAT(error("\n[1]"), HasSubstr("line 2"));
  EXPECT_THAT(error("{\"at\": 1, \"prompt_tokens\": 0, \"output_tokens\": 1}"),
              HasSubstr("'prompt_tokens'"));
  EXPECT_THAT(error("{\"at\": 1, \"prompt_tokens\": 5, \"output_tokens\": 2, \"max_tokens\": 1}"),
              HasSubstr("'max_tokens'"));
  EXPECT_THAT(error("{\"at\": 1, \"prompt_tokens\": 5, \"output_tokens\": 2, \"prefix\": \"a\"}"),
              HasSubstr("'prefix_tokens'"));
  EXPECT_THAT(error("{\"at\": 1, \"prompt_tokens\": 5, \"output_tokens\": 2, \"tenant\": 1}"),
              HasSubstr("'tenant'"));
  EXPECT_THAT(error("{\"at\": 2, \"prompt_tokens\": 5, \"output_tokens\": 2}\n"
                    "{\"at\": 1, \"prompt_tokens\": 5, \"output_tokens\": 2}"),
              HasSubstr("line 2: 'at'"));
}

TEST(WorkloadTest, TakesRequestsFromARecording) {
  auto segment = Segment::Create("workload-test", kMinFlightRingBytes);
  ASSERT_TRUE(segment.ok());
  FlightRingWriter ring = *FlightRingWriter::Attach(&*segment);
  SchedulerConfig config;
  config.num_pages = 100;
  config.context_length = 512;
  config.vocab_size = 50;
  config.eos_ids = {0};
  RecordedScheduler scheduler(config, &ring);
  scheduler.BeginEpoch(1, 100);
  for (ReqId id = 1; id <= 3; ++id) {
    ReqSpec spec;
    spec.id = id;
    spec.prompt_ids.assign(10 * id, static_cast<int32_t>(id));
    spec.max_new_tokens = 9;
    spec.arrival_ns = 5000 - static_cast<int64_t>(id) * 1000;  // the third is the first
    ASSERT_TRUE(scheduler.Add(spec, 6000).ok());
  }
  StepPlan plan;
  std::vector<ReqOutput> outputs;
  for (int step = 0; step < 2; ++step) {
    ASSERT_TRUE(scheduler.PlanStep(7000 + step, &plan));
    StepResult result = testing::AnswerPlan(plan, 7);
    if (step == 1) result.rows[0].token = 0;  // one has an end
    scheduler.OnResult(result, 8000, &outputs);
  }
  ASSERT_TRUE(scheduler.Abort(2, Finish::kAbort));
  const auto requests = RecordedWorkload(*ReadFlightRing(*segment));
  ASSERT_TRUE(requests.ok()) << requests.status();
  ASSERT_EQ(requests->size(), 3u);
  EXPECT_EQ((*requests)[0].prompt_tokens, 30u);
  EXPECT_EQ((*requests)[0].arrival_ns, 0);
  EXPECT_EQ((*requests)[2].arrival_ns, 2000);
  EXPECT_EQ((*requests)[0].output_tokens, 9u);  // no end in the recording
  EXPECT_EQ((*requests)[1].output_tokens, 2u);  // aborted
  EXPECT_EQ((*requests)[2].output_tokens, 2u);  // ended
  EXPECT_EQ((*requests)[2].max_new_tokens, 9u);
  EXPECT_EQ(MakePrompt((*requests)[2], 2, 50), std::vector<int32_t>(10, 1));
}

// Those that were there at the key frame with which it begins count too.
TEST(WorkloadTest, TakesRequestsFromARecordingThatHasLostItsBeginning) {
  auto segment = Segment::Create("workload-test", kMinFlightRingBytes);
  ASSERT_TRUE(segment.ok());
  FlightRingWriter ring = *FlightRingWriter::Attach(&*segment);
  SchedulerConfig config;
  config.num_pages = 1100;
  config.context_length = 9000;
  config.vocab_size = 50;
  RecordedScheduler scheduler(config, &ring);
  scheduler.BeginEpoch(1, 1100);
  StepPlan plan;
  std::vector<ReqOutput> outputs;
  const auto step = [&](int64_t now_ns) {
    ASSERT_TRUE(scheduler.PlanStep(now_ns, &plan));
    scheduler.OnResult(testing::AnswerPlan(plan, 7), now_ns, &outputs);
  };
  for (ReqId id = 1; id <= 4; ++id) {
    ReqSpec spec;
    spec.id = id;
    spec.prompt_ids.assign(id == 1 ? 20 : 8200, static_cast<int32_t>(id));
    spec.max_new_tokens = 4;
    spec.arrival_ns = static_cast<int64_t>(id) * 1000;
    if (id == 4) {
      for (int i = 0; i < 2; ++i) step(5000 + i);
      ASSERT_EQ(scheduler.key_frames(), 0u);
      scheduler.WriteKeyFrameIfDue();  // 1 has tokens
      ASSERT_EQ(scheduler.key_frames(), 1u);
    }
    ASSERT_TRUE(scheduler.Add(spec, spec.arrival_ns).ok());
  }
  for (int i = 0; i < 3; ++i) step(6000 + i);
  std::vector<std::string> records = *ReadFlightRing(*segment);
  records.erase(records.begin(), records.begin() + 3);  // its configuration and epoch
  const auto requests = RecordedWorkload(records);
  ASSERT_TRUE(requests.ok()) << requests.status();
  ASSERT_EQ(requests->size(), 4u);
  EXPECT_EQ((*requests)[0].output_tokens, 4u);  // some of them before the key frame
  EXPECT_EQ((*requests)[0].prompt_tokens, 20u);
  EXPECT_EQ((*requests)[1].arrival_ns, 1000);
  EXPECT_EQ(MakePrompt((*requests)[3], 3, 50), std::vector<int32_t>(8200, 4));
}

}  // namespace
}  // namespace flotilla
