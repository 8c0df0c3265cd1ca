// Replicas that come and go while the router runs, and several models behind it.
#include "router/fleet/fleet.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <future>
#include <set>

#include "common/base/clock.h"
#include "common/base/sha256.h"
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

TEST(FleetTest, RequestsWaitForTheSuccessorOfTheOnlyReplica) {
  RouterHarness harness(Discovering(1));
  harness.Discover({0});
  EXPECT_TRUE(harness.WaitForMetric(Healthy(0), 1));
  harness.Discover({1});  // which does not serve yet
  EXPECT_TRUE(harness.WaitForMetric(Healthy(0), 0));
  EXPECT_TRUE(harness.WaitForMetric(kReplicas, 1));
  auto waiting = std::async(std::launch::async, [&] { return harness.Complete(kBody); });
  EXPECT_TRUE(harness.WaitForMetric("flotilla_router_requests_parked", 1));
  harness.AddEngine();
  EXPECT_EQ(waiting.get().status, 200);
  EXPECT_EQ(harness.engine(1).submits().size(), 1u);
}

TEST(FleetTest, AModelIsForgottenSomeTimeAfterItsLastReplica) {
  HarnessOptions options = Discovering(2);
  options.models = {"smol", "large"};
  options.model_memory_ms = 300;
  RouterHarness harness(options);
  harness.Discover({0, 1});
  for (size_t i = 0; i < 2; ++i) EXPECT_TRUE(harness.WaitForMetric(Healthy(i), 1)) << i;
  const int64_t begin_ns = RealClock::Now();
  harness.Discover({1});
  while (Get(harness.port(), "/v1/models/smol").status == 200) {
  }
  EXPECT_GE(RealClock::Now() - begin_ns, options.model_memory_ms * kNsPerMs);
  EXPECT_EQ(harness.Complete(kBody).status, 404);
  EXPECT_EQ(Get(harness.port(), "/v1/models/large").status, 200);
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

// As a watch that tells changes alone: a pod leaves its list when it begins to end, and what
// follows is no change. The resolver fails from there on, and nobody sets the fleet again.
class UnusedReplicaTest : public testing::Test {
 protected:
  static constexpr const char* kFailures = "flotilla_router_discoveries_total{result=\"failed\"}";

  void Start(HarnessOptions options) {
    harness_ = std::make_unique<RouterHarness>(options);
    harness_->Discover({0});
    ASSERT_TRUE(harness_->WaitForMetric(Healthy(0), 1));
  }
  void RetireInUse() {
    harness_->Discover({1});
    ASSERT_TRUE(harness_->WaitForMetric(Healthy(0), 0));
    harness_->FailDiscovery();
    ASSERT_TRUE(harness_->WaitForMetricAtLeast(kFailures, 2));
    EXPECT_EQ(harness_->engine(0).hellos().size(), 1u) << "its connection is there";
  }

  std::unique_ptr<RouterHarness> harness_;
};

TEST_F(UnusedReplicaTest, LeavesWithItsLastRequestAndMakesRoom) {
  HarnessOptions options = Discovering(2);
  options.models = {"smol", "large"};
  options.max_replicas = 1;
  options.model_memory_ms = 1;
  ASSERT_NO_FATAL_FAILURE(Start(options));
  harness_->engine(0).Hold();
  auto running = std::async(std::launch::async, [&] { return harness_->Complete(kBody); });
  ASSERT_TRUE(harness_->engine(0).WaitForSubmits(1));
  ASSERT_NO_FATAL_FAILURE(RetireInUse());
  EXPECT_EQ(harness_->Metric("flotilla_router_replicas_left_out"), 1);
  harness_->engine(0).RunFreely();
  EXPECT_EQ(running.get().status, 200);
  EXPECT_TRUE(harness_->WaitForMetric(Healthy(1), 1)) << "it was left out before";
  EXPECT_EQ(harness_->Metric("flotilla_router_replicas_left_out"), 0);
  EXPECT_EQ(harness_->Metric(kReplicas), 1);
  while (Get(harness_->port(), "/v1/models/smol").status == 200) {
  }
}

TEST_F(UnusedReplicaTest, LeavesWithItsLastClient) {
  ASSERT_NO_FATAL_FAILURE(Start(Discovering(2)));
  harness_->engine(0).Hold();
  HttpConnection client(harness_->port());
  client.Send(PostText("/v1/completions", kBody));
  ASSERT_TRUE(harness_->engine(0).WaitForSubmits(1));
  ASSERT_NO_FATAL_FAILURE(RetireInUse());
  EXPECT_EQ(harness_->Metric(kReplicas), 2);
  client.Close();
  EXPECT_TRUE(harness_->engine(0).WaitForAborts(1)) << "it is told before";
  EXPECT_TRUE(harness_->WaitForMetric(kReplicas, 1));
}

TEST_F(UnusedReplicaTest, LeavesWithItsConnection) {
  ASSERT_NO_FATAL_FAILURE(Start(Discovering(2)));
  harness_->engine(0).Hold();
  auto running = std::async(std::launch::async, [&] { return harness_->Complete(kBody); });
  ASSERT_TRUE(harness_->engine(0).WaitForSubmits(1));
  ASSERT_NO_FATAL_FAILURE(RetireInUse());
  ASSERT_TRUE(harness_->WaitForMetric(Healthy(1), 1));
  harness_->engine(0).Stop();
  EXPECT_EQ(running.get().status, 200);
  EXPECT_TRUE(harness_->WaitForMetric(kReplicas, 1));
}

TEST_F(UnusedReplicaTest, LeavesWithItsLastLargeResult) {
  HarnessOptions options = Discovering(2);
  options.engine.large_result_over = 1;
  ASSERT_NO_FATAL_FAILURE(Start(options));
  harness_->engine(0).HoldLargeResults(true);
  auto running = std::async(std::launch::async, [&] {
    return harness_->Complete(
        R"({"model":"smol","prompt":[1,2,3,4],"max_tokens":1,"prompt_logprobs":1})");
  });
  ASSERT_TRUE(
      harness_->engine(0).WaitFor([&] { return harness_->engine(0).large_fetches() == 1; }));
  ASSERT_NO_FATAL_FAILURE(RetireInUse());
  harness_->engine(0).HoldLargeResults(false);
  EXPECT_EQ(running.get().status, 200);
  EXPECT_TRUE(harness_->WaitForMetric(kReplicas, 1));
}

// With one token, the piece whose logprobs are to be fetched is the last.
TEST(FleetTest, ARetiredReplicaStaysUntilItsLargeResultIsFetched) {
  HarnessOptions options = Discovering(2);
  options.engine.large_result_over = 1;
  RouterHarness harness(options);
  harness.Discover({0});
  EXPECT_TRUE(harness.WaitForMetric(Healthy(0), 1));
  FakeEngineService& engine = harness.engine(0);
  engine.HoldLargeResults(true);
  auto running = std::async(std::launch::async, [&] {
    return harness.Complete(
        R"({"model":"smol","prompt":[1,2,3,4],"max_tokens":1,"prompt_logprobs":1})");
  });
  ASSERT_TRUE(engine.WaitFor([&] { return engine.large_fetches() == 1; }));
  harness.Discover({1});
  EXPECT_TRUE(harness.WaitForMetric(Healthy(1), 1));
  EXPECT_EQ(harness.Metric(kReplicas), 2) << "it is needed";
  engine.HoldLargeResults(false);
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
  EXPECT_TRUE(
      harness.WaitForMetricAtLeast("flotilla_router_discoveries_total{result=\"failed\"}", 3));
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

TEST(SessionTest, StaysOnOneReplica) {
  HarnessOptions options;
  options.replicas = 4;
  options.policy = "consistent_hash";
  RouterHarness harness(options);
  std::set<size_t> used;
  for (int user = 0; user < 12; ++user) {
    const std::string body =
        StrCat(R"({"model":"smol","prompt":"Hi","max_tokens":1,"user":"u)", user, R"("})");
    for (int i = 0; i < 3; ++i) EXPECT_EQ(harness.Complete(body).status, 200);
    size_t holders = 0;
    for (size_t engine = 0; engine < 4; ++engine) {
      const auto submits = harness.engine(engine).submits();
      const auto own = std::count_if(submits.begin(), submits.end(), [&](const v1::Submit& submit) {
        return submit.request().session() == StrCat("u", user);
      });
      EXPECT_TRUE(own == 0 || own == 3) << own;
      holders += own > 0 ? 1 : 0;
      if (own > 0) used.insert(engine);
    }
    EXPECT_EQ(holders, 1u);
  }
  EXPECT_GT(used.size(), 1u);
}

TEST(SessionTest, IsThePromptCacheKeyBeforeTheUser) {
  RouterHarness harness;
  const std::string user(300, 'u');  // longer than a session may be
  EXPECT_EQ(harness
                .Complete(R"({"model":"smol","prompt":"Hi","max_tokens":1,"user":"u",)"
                          R"("prompt_cache_key":"k"})")
                .status,
            200);
  EXPECT_EQ(harness
                .Complete(StrCat(R"({"model":"smol","prompt":"Hi","max_tokens":1,"user":")", user,
                                 R"("})"))
                .status,
            200);
  const auto submits = harness.engine().submits();
  ASSERT_EQ(submits.size(), 2u);
  EXPECT_EQ(submits[0].request().session(), "k");
  EXPECT_EQ(submits[1].request().session(), Sha256Hex(user));
}

TEST(HealthTest, AReplicaThatFailsItsRequestsGetsNoMore) {
  HarnessOptions options;
  options.replicas = 2;
  RouterHarness harness(options);
  harness.engine(0).RefuseNext(100, 14, "its disk is full");
  for (int i = 0; i < 30; ++i) EXPECT_EQ(harness.Complete(kBody).status, 200);
  EXPECT_EQ(harness.engine(0).submits().size(), ReplicaHealth::kFailures);
  EXPECT_EQ(harness.engine(1).submits().size(), 30u);
  EXPECT_EQ(harness.Metric("flotilla_router_circuit_state{replica=\"fake-0\"}"), 2);
  EXPECT_EQ(harness.Metric("flotilla_router_circuit_state{replica=\"fake-1\"}"), 0);
}

TEST(HealthTest, TheOnlyReplicaIsTriedWhateverItDid) {
  HarnessOptions options;
  options.failover_wait_ms = 0;  // nobody waits for it to be better
  RouterHarness harness(options);
  const int failures = ReplicaHealth::kFailures;
  harness.engine().RefuseNext(failures, 14, "its disk is full");
  for (int i = 0; i < failures; ++i) EXPECT_EQ(harness.Complete(kBody).status, 503);
  EXPECT_EQ(harness.Metric("flotilla_router_circuit_state{replica=\"fake-0\"}"), 2);
  EXPECT_EQ(harness.Complete(kBody).status, 200);
}

// While it holds its answers back, many requests go to the others, one after the other: so it is
// far more than three times as slow as they are, on any machine. (As many choices as make it
// known.) On a busy one, another may be slow as well: so only this one's circuit is looked at.
TEST(HealthTest, AReplicaThatIsMuchSlowerGetsNothingForAWhile) {
  HarnessOptions options;
  options.replicas = 6;
  options.policy = "shortest_queue";
  options.outlier_interval_ms = 1500;
  RouterHarness harness(options);
  harness.WaitAllReady();
  FakeEngineService& slow = harness.engine(5);
  const std::string body = R"({"model":"smol","prompt":"Hi","max_tokens":1,"n":6})";
  std::string long_prompt;  // beside which the others' are nothing
  for (int i = 0; i < 200; ++i) long_prompt += "word ";
  const std::string long_body =
      StrCat(R"({"model":"smol","max_tokens":1,"n":6,"prompt":")", long_prompt, R"("})");
  const auto ejected = [&] {
    return harness.Metric("flotilla_router_circuit_state{replica=\"fake-5\"}") == 2;
  };
  const int64_t end_ns = RealClock::Now() + 60 * kNsPerSecond;
  while (!ejected() && RealClock::Now() < end_ns) {
    const size_t had = slow.submits().size();
    slow.Hold();
    std::future<HttpAnswer> held;
    while (slow.submits().size() == had && !ejected()) {  // whose turn it is
      held = std::async(std::launch::async, [&] { return harness.Complete(long_body); });
      while (slow.submits().size() == had &&
             held.wait_for(std::chrono::milliseconds(1)) != std::future_status::ready) {
      }
    }
    for (int i = 0; i < 20; ++i) EXPECT_EQ(harness.Complete(body).status, 200);
    slow.RunFreely();
    if (held.valid()) {
      EXPECT_EQ(held.get().status, 200);
    }
  }
  EXPECT_GE(harness.Metric("flotilla_router_ejections_total"), 1);
  const size_t before = slow.submits().size();
  int without_it = 0;
  for (; without_it < 12 && ejected(); ++without_it) {
    EXPECT_EQ(harness.Complete(body).status, 200);
    if (!ejected()) break;  // its time was over
    EXPECT_EQ(slow.submits().size(), before);
  }
  EXPECT_GT(without_it, 0);
}

TEST(HealthTest, RetriesEndWhenTheirBudgetDoes) {
  HarnessOptions options;
  options.replicas = 2;
  RouterHarness harness(options);
  for (size_t i = 0; i < 2; ++i) harness.engine(i).RefuseNext(1'000'000, 8, "queue full");
  const std::string sixteen = R"({"model":"smol","prompt":"Hi","max_tokens":4,"n":16})";
  // On a busy machine a refusal may come after its request had an end by another's: then it is not
  // tried again.
  const auto denied = [&] { return harness.Metric("flotilla_router_retries_denied_total"); };
  int asked = 0;
  for (; asked < 50 && denied() == 0; ++asked) EXPECT_EQ(harness.Complete(sixteen).status, 429);
  EXPECT_GT(denied(), 0);
  EXPECT_LT(harness.Metric("flotilla_router_retries_total{reason=\"refused\"}"), asked * 16);
}

TEST(AdmissionTest, LowPrioritiesLeaveRoomForOthers) {
  HarnessOptions options;
  options.max_requests = 10;
  RouterHarness harness(options);
  harness.engine().Hold();
  const auto body = [](int priority, int n) {
    return StrCat(R"({"model":"smol","prompt":"Hi","max_tokens":4,"priority":)", priority,
                  R"(,"n":)", n, "}");
  };
  auto low = std::async(std::launch::async, [&] { return harness.Complete(body(-1, 8)); });
  ASSERT_TRUE(harness.engine().WaitForSubmits(8));
  const HttpAnswer refused = harness.Complete(body(-1, 1));
  EXPECT_EQ(refused.status, 429);
  EXPECT_EQ(refused.headers.count("retry-after"), 1u);
  auto normal = std::async(std::launch::async, [&] { return harness.Complete(body(0, 2)); });
  ASSERT_TRUE(harness.engine().WaitForSubmits(10));
  EXPECT_EQ(harness.Complete(body(0, 1)).status, 429);
  harness.engine().RunFreely();
  EXPECT_EQ(low.get().status, 200);
  EXPECT_EQ(normal.get().status, 200);
}

}  // namespace
}  // namespace flotilla
