#include "deploy/launcher/host_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>

#include "deploy/launcher/doctor.h"

namespace flotilla {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::SizeIs;

Machine EightCores() {
  Machine machine;
  machine.online.resize(8);
  std::iota(machine.online.begin(), machine.online.end(), 0u);
  machine.allowed = machine.online;
  machine.numa_nodes = {machine.online};
  machine.isas = {"avx2"};
  return machine;
}

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

TEST(DoctorTest, SaysWhichRanksAreHere) {
  const auto plan = PlanOf(Head());
  ASSERT_TRUE(plan.ok()) << plan.status();
  const std::string text = DoctorText(EightCores(), *plan);
  EXPECT_THAT(text, HasSubstr("4, of which 1 here and 3 on hosts that join at 10.0.0.1:29500\n"));
  EXPECT_THAT(text, HasSubstr("worker 0 on 0-7\n"));
  EXPECT_THAT(text, Not(HasSubstr("worker 1")));
}

TEST(DoctorTest, OneHostNeedsNoWordOfOthers) {
  const auto plan = PlanOf({});
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_THAT(
      DoctorText(EightCores(), *plan),
      AllOf(Not(HasSubstr("hosts")), HasSubstr("GPUs             none; --device cuda needs")));
  Machine machine = EightCores();
  machine.gpus = {"A", "B"};
  EXPECT_THAT(DoctorText(machine, *plan), HasSubstr("GPUs             2: A, B; --device cuda"));
}

}  // namespace
}  // namespace flotilla
