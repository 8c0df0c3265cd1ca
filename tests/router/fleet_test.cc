// Replicas that come and go while the router runs, and several models behind it.
#include "router/fleet.h"

#include <gtest/gtest.h>

#include <future>

#include "tests/router/router_harness.h"

namespace flotilla {
namespace {

constexpr const char* kBody = R"({"model":"smol","prompt":"Hi","max_tokens":4,"seed":1})";
constexpr const char* kReplicas = "flotilla_router_replicas";

std::string Healthy(size_t engine) {
  return StrCat("flotilla_router_backend_healthy{replica=\"fake-", engine, "\"}");
}

HarnessOptions Discovering(size_t engines) {
  HarnessOptions options;
  options.replicas = engines;
  options.discover = true;
  return options;
}

TEST(FleetTest, ReplicasAreFoundAndForgotten) {
  RouterHarness harness(Discovering(3));
  harness.Discover({0});
  EXPECT_TRUE(harness.WaitForMetric(Healthy(0), 1));
  EXPECT_EQ(harness.Complete(kBody).status, 200);
  harness.Discover({0, 1, 2});
  for (size_t i = 0; i < 3; ++i) EXPECT_TRUE(harness.WaitForMetric(Healthy(i), 1)) << i;
  EXPECT_TRUE(harness.WaitForMetric(kReplicas, 3));
  for (int i = 0; i < 9; ++i) EXPECT_EQ(harness.Complete(kBody).status, 200);
  EXPECT_EQ(harness.engine(1).submits().size(), 3u);
  EXPECT_EQ(harness.engine(2).submits().size(), 3u);
  harness.Discover({2});
  EXPECT_TRUE(harness.WaitForMetric(kReplicas, 1));
  const size_t before = harness.engine(2).submits().size();
  for (int i = 0; i < 5; ++i) EXPECT_EQ(harness.Complete(kBody).status, 200);
  EXPECT_EQ(harness.engine(2).submits().size(), before + 5);
}

TEST(FleetTest, ARetiredReplicaFinishesWhatItHas) {
  RouterHarness harness(Discovering(2));
  harness.Discover({0});
  EXPECT_TRUE(harness.WaitForMetric(Healthy(0), 1));
  harness.engine(0).Hold();
  auto running = std::async(std::launch::async, [&] { return harness.Complete(kBody); });
  ASSERT_TRUE(harness.engine(0).WaitForSubmits(1));
  harness.Discover({1});
  EXPECT_TRUE(harness.WaitForMetric(Healthy(1), 1));
  EXPECT_TRUE(harness.WaitForMetric(Healthy(0), 0));
  for (int i = 0; i < 4; ++i) EXPECT_EQ(harness.Complete(kBody).status, 200);
  EXPECT_EQ(harness.engine(0).submits().size(), 1u);
  EXPECT_EQ(harness.Metric(kReplicas), 2) << "it still works";
  harness.engine(0).RunFreely();
  EXPECT_EQ(running.get().status, 200);
  EXPECT_TRUE(harness.WaitForMetric(kReplicas, 1));
}

TEST(FleetTest, ARetiredReplicaThatIsNamedAgainServesAgain) {
  RouterHarness harness(Discovering(2));
  harness.Discover({0, 1});
  EXPECT_TRUE(harness.WaitForMetric(Healthy(0), 1));
  EXPECT_TRUE(harness.WaitForMetric(Healthy(1), 1));
  harness.engine(0).Hold();
  harness.engine(1).Hold();
  std::vector<std::future<HttpAnswer>> running;
  for (int i = 0; i < 2; ++i)
    running.push_back(std::async(std::launch::async, [&] { return harness.Complete(kBody); }));
  ASSERT_TRUE(harness.engine(0).WaitForSubmits(1));
  ASSERT_TRUE(harness.engine(1).WaitForSubmits(1));
  harness.Discover({1});
  EXPECT_TRUE(harness.WaitForMetric(Healthy(0), 0));
  harness.Discover({0, 1});
  EXPECT_TRUE(harness.WaitForMetric(Healthy(0), 1));
  harness.engine(0).RunFreely();
  harness.engine(1).RunFreely();
  for (auto& answer : running) EXPECT_EQ(answer.get().status, 200);
  EXPECT_EQ(harness.engine(0).hellos().size(), 1u) << "its connection was never given up";
}

TEST(FleetTest, WhatARetiredReplicaLosesGoesOnElsewhereAtOnce) {
  HarnessOptions options = Discovering(2);
  options.engine.reattach_ms = 60'000;  // for which nobody shall wait
  RouterHarness harness(options);
  harness.Discover({0});
  EXPECT_TRUE(harness.WaitForMetric(Healthy(0), 1));
  harness.engine(0).Hold();
  auto running = std::async(std::launch::async, [&] { return harness.Complete(kBody); });
  ASSERT_TRUE(harness.engine(0).WaitForSubmits(1));
  harness.Discover({1});
  EXPECT_TRUE(harness.WaitForMetric(Healthy(1), 1));
  EXPECT_TRUE(harness.WaitForMetric(Healthy(0), 0));
  harness.engine(0).Stop();
  EXPECT_EQ(running.get().status, 200);
  EXPECT_EQ(harness.engine(1).submits().size(), 1u);
  EXPECT_TRUE(harness.WaitForMetric(kReplicas, 1));
}

TEST(FleetTest, AResolverThatFailsTakesNoReplicaAway) {
  RouterHarness harness(Discovering(1));
  harness.Discover({0});
  EXPECT_TRUE(harness.WaitForMetric(Healthy(0), 1));
  EXPECT_EQ(harness.Metric("flotilla_router_discoveries_total{result=\"failed\"}"), 0);
  harness.FailDiscovery();
  EXPECT_TRUE(harness.WaitForMetric("flotilla_router_discoveries_total{result=\"failed\"}", 3));
  EXPECT_EQ(harness.Metric(kReplicas), 1);
  EXPECT_EQ(harness.Complete(kBody).status, 200);
}

TEST(FleetTest, AddressesBeyondTheLimitAreCounted) {
  HarnessOptions options = Discovering(3);
  options.max_replicas = 2;
  RouterHarness harness(options);
  harness.Discover({0, 1, 2});
  EXPECT_TRUE(harness.WaitForMetric("flotilla_router_replicas_left_out", 1));
  EXPECT_EQ(harness.Metric(kReplicas), 2);
  harness.Discover({0, 2});
  EXPECT_TRUE(harness.WaitForMetric("flotilla_router_replicas_left_out", 0));
  EXPECT_TRUE(harness.WaitForMetric(Healthy(2), 1)) << "there is room now";
}

TEST(FleetTest, EachModelHasItsReplicas) {
  HarnessOptions options;
  options.replicas = 3;
  options.models = {"smol", "large", "smol"};
  RouterHarness harness(options);
  const std::string large = R"({"model":"large","prompt":"Hi","max_tokens":4,"seed":1})";
  for (int i = 0; i < 4; ++i) {
    EXPECT_EQ(harness.Complete(kBody).status, 200);
    EXPECT_EQ(harness.Complete(large).status, 200);
  }
  EXPECT_EQ(harness.engine(0).submits().size(), 2u);
  EXPECT_EQ(harness.engine(1).submits().size(), 4u);
  EXPECT_EQ(harness.engine(2).submits().size(), 2u);
  const HttpAnswer unknown = harness.Complete(R"({"model":"huge","prompt":"Hi"})");
  EXPECT_EQ(unknown.status, 404);
  EXPECT_EQ(ErrorField(unknown, "code"), "model_not_found");
  const HttpAnswer models = Get(harness.port(), "/v1/models");
  EXPECT_NE(models.body.find("\"smol\""), std::string::npos) << models.body;
  EXPECT_NE(models.body.find("\"large\""), std::string::npos) << models.body;
}

}  // namespace
}  // namespace flotilla
