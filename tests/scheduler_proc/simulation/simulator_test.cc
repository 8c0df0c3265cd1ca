#include "scheduler_proc/simulation/simulator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace flotilla {
namespace {

using ::testing::HasSubstr;

SimOptions Options() {
  SimOptions options;
  options.config.num_pages = 4096;
  options.config.context_length = 4096;
  options.config.vocab_size = 1000;
  options.model.ns = {5e6, 1e6, 0.5e6, 0, 0, 0};
  options.model.gap_ns = 10'000;
  options.model.dispatch_ns = 20'000;
  options.model.result_ns = 30'000;
  return options;
}

SimRequest Request(int64_t arrival_ns, uint32_t prompt_tokens, uint32_t output_tokens) {
  SimRequest request;
  request.arrival_ns = arrival_ns;
  request.prompt_tokens = prompt_tokens;
  request.output_tokens = request.max_new_tokens = output_tokens;
  return request;
}

TEST(SimulatorTest, OneRequestTakesWhatItsStepsTake) {
  const SimRequest request = Request(1'000'000, 100, 3);
  SimOptions options = Options();
  options.config.max_plans_in_flight = 1;
  const auto report = Simulate(options, {request});
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_EQ(report->finished, 1u);
  EXPECT_EQ(report->steps, 3u);
  EXPECT_EQ(report->output_tokens, 3u);
  const int64_t first = 20'000 + 55'000'000 + 30'000, next = 20'000 + 6'000'000 + 30'000;
  EXPECT_EQ(report->ttft_ns, std::vector<int64_t>{first});
  EXPECT_EQ(report->token_gap_ns, std::vector<int64_t>(2, next));
  EXPECT_EQ(report->e2e_ns, std::vector<int64_t>{first + 2 * next});
  EXPECT_EQ(report->duration_ns, first + 2 * next);
  EXPECT_NEAR(report->OutputRate(), 3 / 0.06715, 0.01);
}

TEST(SimulatorTest, OverlapLeavesOnlyTheGapBetweenSteps) {
  const SimRequest request = Request(0, 100, 40);
  const auto report = Simulate(Options(), {request});
  ASSERT_TRUE(report.ok());
  EXPECT_EQ(report->output_tokens, 40u);
  EXPECT_EQ(Quantile(report->token_gap_ns, 0.5), 6'010'000);
}

TEST(SimulatorTest, ManyRequestsAllEndAndTheSameTwice) {
  const auto requests = PoissonWorkload({.num_requests = 500, .rate = 15, .prefix_tokens = 64});
  SimOptions options = Options();
  const auto report = Simulate(options, requests);
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_EQ(report->finished, 500u);
  EXPECT_EQ(report->rejected, 0u);
  uint64_t tokens = 0, prompt_tokens = 0;
  for (const SimRequest& request : requests) {
    tokens += request.output_tokens;
    prompt_tokens += request.prompt_tokens;
  }
  EXPECT_EQ(report->output_tokens, tokens);
  EXPECT_EQ(report->prompt_tokens, prompt_tokens);
  EXPECT_GE(report->cached_tokens, 490u * 64);
  EXPECT_EQ(report->ttft_ns.size(), 500u);
  EXPECT_EQ(report->token_gap_ns.size(), tokens - 500);
  const auto again = Simulate(options, requests);
  EXPECT_EQ(again->e2e_ns, report->e2e_ns);
  options.config.enable_prefix_cache = false;
  const auto cold = Simulate(options, requests);
  EXPECT_GT(MeanOf(cold->ttft_ns), MeanOf(report->ttft_ns));
}

TEST(SimulatorTest, ClientsSendTheirNextWhenTheyHaveAnAnswer) {
  SimOptions options = Options();
  options.clients = 4;
  const auto requests = PoissonWorkload({.num_requests = 60, .rate = 1e-3});
  const auto report = Simulate(options, requests);
  ASSERT_TRUE(report.ok());
  EXPECT_EQ(report->finished, 60u);
  EXPECT_LT(report->duration_ns, 200'000'000'000);  // nobody waits for an arrival
}

TEST(SimulatorTest, AFullQueueRefuses) {
  SimOptions options = Options();
  options.config.max_queued_requests = 10;
  const std::vector<SimRequest> requests(50, Request(0, 100, 5));
  const auto report = Simulate(options, requests);
  ASSERT_TRUE(report.ok());
  EXPECT_EQ(report->rejected, 40u);
  EXPECT_EQ(report->finished, 10u);
}

TEST(SimulatorTest, WhatCanNeverRunIsAnError) {
  const SimRequest request = Request(0, 5000, 1);
  const auto report = Simulate(Options(), {request});
  EXPECT_TRUE(absl::IsInvalidArgument(report.status()));
  EXPECT_THAT(report.status().message(), HasSubstr("request 1"));
  SimOptions nothing;
  EXPECT_TRUE(absl::IsInvalidArgument(Simulate(nothing, {request}).status()));
}

TEST(SimulatorTest, QuantilesAreOfTheList) {
  EXPECT_EQ(Quantile({}, 0.5), 0);
  EXPECT_EQ(Quantile({1, 2, 3, 4}, 0.5), 3);
  EXPECT_EQ(Quantile({1, 2, 3, 4}, 0.99), 4);
  EXPECT_EQ(MeanOf({1, 2, 3, 6}), 3);
}

}  // namespace
}  // namespace flotilla
