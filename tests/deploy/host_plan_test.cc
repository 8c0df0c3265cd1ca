#include "deploy/launcher/host_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/deploy/eight_cores.h"

namespace flotilla {
namespace {

using ::testing::HasSubstr;
using ::testing::SizeIs;

ServeOptions Head() {
  ServeOptions options;
  options.tp = "4";
  options.remote_ranks = 3;
  options.join_address = "10.0.0.1:29500";
  options.link_secret_file = "/secret";
  options.pin = "on";
  return options;
}

StatusOr<HostPlan> PlanOf(const ServeOptions& options) {
  ASSIGN_OR_RETURN(const HostSpan span, SpanOfHead(options));
  return PlanHost(EightCores(), options, span, nullptr);
}

TEST(HostPlanTest, OneHostHasAllRanks) {
  ServeOptions options;
  options.tp = "2";
  const auto plan = PlanOf(options);
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->tp, 2u);
  EXPECT_EQ(plan->span.local_ranks, 2u);
  EXPECT_EQ(plan->cores.threads, 4u);
}

TEST(HostPlanTest, TheRanksOfOtherHostsTakeNoCoresHere) {
  const auto plan = PlanOf(Head());
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->tp, 4u);
  EXPECT_EQ(plan->cores.tp, 1u);
  EXPECT_EQ(plan->cores.threads, 8u);
  EXPECT_THAT(plan->cores.cpus, SizeIs(1));
}

TEST(HostPlanTest, TheModelLimitsAllRanksAndNotOnlyThoseHere) {
  ModelConfig model;
  model.num_attention_heads = 3;
  model.num_key_value_heads = 3;
  const auto span = SpanOfHead(Head());
  ASSERT_TRUE(span.ok());
  const auto plan = PlanHost(EightCores(), Head(), *span, &model);
  EXPECT_THAT(std::string(plan.status().message()),
              HasSubstr("--tp: 4 ranks, but the model has 3 query heads"));
}

}  // namespace
}  // namespace flotilla
