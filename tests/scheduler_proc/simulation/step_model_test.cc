#include "scheduler_proc/simulation/step_model.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <deque>
#include <random>

#include "scheduler_proc/flight/recorded_scheduler.h"
#include "tests/fakes/answer_plan.h"

namespace flotilla {
namespace {

using ::testing::HasSubstr;

StepWork RandomWork(std::mt19937_64* random) {
  StepWork work;
  for (uint64_t i = (*random)() % 33; i > 0; --i) {
    work.AddDecode(static_cast<uint32_t>((*random)() % 2000));
  }
  if ((*random)() % 3 == 0) {
    work.AddChunk(static_cast<uint32_t>((*random)() % 1000), 1 + (*random)() % 512);
  }
  if (work.decode_tokens + work.chunk_tokens == 0) work.AddDecode(5);
  return work;
}

TEST(StepModelTest, FindsTheCostsThatStepsWereMadeFrom) {
  StepModel truth;
  truth.ns = {4e6, 2.5e6, 1.1e6, 3e4, 2e4, 0.4e6};
  std::mt19937_64 random(1);
  std::uniform_real_distribution<double> noise(0.95, 1.05);
  std::vector<StepSample> samples;
  for (int i = 0; i < 2000; ++i) {
    const StepWork work = RandomWork(&random);
    const double slow = i % 50 == 0 ? 4 : 1;  // something else took the core
    samples.push_back({work, static_cast<int64_t>(static_cast<double>(truth.Predict(work)) *
                                                  noise(random) * slow)});
  }
  StepModel model;
  ASSERT_TRUE(FitSteps(samples, &model).ok());
  EXPECT_EQ(model.num_steps, 2000u);
  EXPECT_LT(model.error, 0.12);
  double measured = 0, predicted = 0;
  for (const StepSample& sample : samples) {
    measured += static_cast<double>(sample.ns);
    predicted += static_cast<double>(model.Predict(sample.work));
  }
  EXPECT_NEAR(predicted / measured, 1, 0.001);  // the slow steps are part of the time
  for (int i = 0; i < 200; ++i) {
    const StepWork work = RandomWork(&random);
    EXPECT_NEAR(static_cast<double>(model.Predict(work)) / static_cast<double>(truth.Predict(work)),
                1.06, 0.09);
  }
}

TEST(StepModelTest, NoCostIsNegative) {
  std::vector<StepSample> samples;
  std::mt19937_64 random(2);
  for (int i = 0; i < 100; ++i) {
    const StepWork work = RandomWork(&random);  // the more it reads, the faster: noise
    samples.push_back({work, static_cast<int64_t>(1e7 / (1 + work.decode_reads))});
  }
  StepModel model;
  ASSERT_TRUE(FitSteps(samples, &model).ok());
  for (const double ns : model.ns) EXPECT_GE(ns, 0);
}

TEST(StepModelTest, TooFewStepsAreRefused) {
  StepModel model;
  EXPECT_TRUE(absl::IsFailedPrecondition(FitSteps({{StepWork(), 1}}, &model)));
}

TEST(StepModelTest, WhatIsWrittenIsRead) {
  StepModel model;
  model.ns = {1.5, 2, 3, 4, 5, 6};
  model.gap_ns = 7;
  model.dispatch_ns = 8;
  model.result_ns = 9;
  model.num_steps = 10;
  model.error = 0.25;
  model.num_pages = 11;
  model.page_size = 12;
  model.context_length = 13;
  model.vocab_size = 14;
  const StatusOr<StepModel> read = ParseStepModel(ToJson(model));
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(ToJson(*read), ToJson(model));
  EXPECT_EQ(read->ns, model.ns);
  EXPECT_EQ(read->vocab_size, 14u);
}

TEST(StepModelTest, BrokenFilesNameTheField) {
  EXPECT_THAT(ParseStepModel("[1").status().message(), HasSubstr("JSON"));
  EXPECT_THAT(ParseStepModel("{}").status().message(), HasSubstr("'ns'"));
  std::string text = ToJson(StepModel());
  text.replace(text.find("\"gap_ns\":0"), 10, "\"gap_ns\":-1");
  EXPECT_THAT(ParseStepModel(text).status().message(), HasSubstr("'gap_ns'"));
}

// A second recording may have lost its beginning; the step that was in flight there is left out.
TEST(StepModelTest, TakesSeveralRecordingsTogether) {
  auto segment = Segment::Create("step-model-test", 2 * kMinFlightRingBytes);
  ASSERT_TRUE(segment.ok());
  FlightRingWriter ring = *FlightRingWriter::Attach(&*segment);
  SchedulerConfig config;
  config.num_pages = 1000;
  config.context_length = 8192;
  config.vocab_size = 50;
  RecordedScheduler scheduler(config, &ring);
  scheduler.BeginEpoch(1, 1000);
  ReqSpec spec;
  spec.prompt_ids.assign(2000, 1);
  spec.max_new_tokens = 1000;
  for (spec.id = 1; spec.id <= 2; ++spec.id) ASSERT_TRUE(scheduler.Add(spec, 1).ok());
  std::deque<StepPlan> in_flight;
  std::vector<ReqOutput> outputs;
  size_t steps = 0;
  int64_t now_ns = 1000;
  while (steps < 300) {
    while (scheduler.PlanStep(now_ns, &in_flight.emplace_back())) scheduler.WriteKeyFrameIfDue();
    in_flight.pop_back();
    const StepPlan& plan = in_flight.front();
    StepResult result = testing::AnswerPlan(plan, 7);
    result.start_ns = now_ns;
    result.end_ns = now_ns += 1'000'000 + 10'000 * static_cast<int64_t>(plan.input_ids.size());
    scheduler.OnResult(result, now_ns, &outputs);
    in_flight.pop_front();
    ++steps;
  }
  ASSERT_EQ(scheduler.key_frames(), 1u);
  const std::vector<std::string> records = *ReadFlightRing(*segment);
  const std::vector<std::string> tail(records.begin() + 1, records.end());
  const auto whole = FitRecordings({records});
  ASSERT_TRUE(whole.ok()) << whole.status();
  EXPECT_EQ(whole->num_steps, steps);
  EXPECT_LT(whole->error, 0.01);
  const auto both = FitRecordings({records, tail});
  ASSERT_TRUE(both.ok()) << both.status();
  EXPECT_GT(both->num_steps, steps);
  EXPECT_LT(both->error, 0.01);
  EXPECT_EQ(both->num_pages, 1000u);
  EXPECT_EQ(both->gap_ns, whole->gap_ns);
}

TEST(StepModelTest, PlansSayWhatTheyAskFor) {
  StepPlan plan;
  plan.opens.emplace_back().slot = 2;
  plan.rows.push_back({.slot = 1, .start_pos = 99, .num_tokens = 1, .flags = kRowSample});
  plan.rows.push_back({.slot = 2, .start_pos = 10, .num_tokens = 1, .flags = kRowSample});
  plan.rows.push_back({.slot = 3, .start_pos = 0, .num_tokens = 4});
  const StepWork work = WorkOf(plan);
  EXPECT_EQ(work.decode_tokens, 1u);
  EXPECT_EQ(work.decode_reads, 100u);
  EXPECT_EQ(work.chunk_tokens, 5u);
  EXPECT_EQ(work.chunk_reads, 11u + 10u);
}

}  // namespace
}  // namespace flotilla
