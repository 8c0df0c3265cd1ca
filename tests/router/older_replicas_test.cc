// Replicas of an earlier version beside newer ones, behind one router.
#include <gtest/gtest.h>

#include <array>
#include <future>

#include "tests/router/router_harness.h"

namespace flotilla {
namespace {

constexpr std::array<const char*, 2> kHealthy = {
    "flotilla_router_backend_healthy{replica=\"fake-0\"}",
    "flotilla_router_backend_healthy{replica=\"fake-1\"}"};

HarnessOptions OldAndNew() {
  HarnessOptions options = WithParsers();
  options.replicas = 2;
  options.discover = true;
  options.old_engines = 1;
  return options;
}

// A chat whose output is of two parts, where replicas take that.
int Ask(const RouterHarness& harness) {
  return Post(harness.port(), "/v1/chat/completions",
              R"({"model":"smol","messages":[{"role":"user","content":"Hi"}],"max_tokens":4,
                  "seed":1,"guided_regex":"a+"})")
      .status;
}

// Routers may be updated first: while an older replica serves, nobody gets what it would not take.
TEST(OlderReplicasTest, GetNoStructuralTags) {
  RouterHarness harness(OldAndNew());
  const auto sent = [&](size_t i) {
    const std::vector<v1::Submit> all = harness.engine(i).submits();
    return all.empty() ? v1::StructuredOutput::KIND_NOT_SET
                       : all.back().request().structured().kind_case();
  };
  for (const size_t first : {size_t{1}, size_t{0}}) {
    harness.Discover({first});
    EXPECT_TRUE(harness.WaitForMetric(kHealthy[1 - first], 0));
    EXPECT_TRUE(harness.WaitForMetric(kHealthy[first], 1));
    harness.Discover({0, 1});
    for (size_t i = 0; i < 2; ++i) EXPECT_TRUE(harness.WaitForMetric(kHealthy[i], 1)) << i;
    for (int i = 0; i < 2; ++i) EXPECT_EQ(Ask(harness), 200);
    for (size_t i = 0; i < 2; ++i) EXPECT_EQ(sent(i), v1::StructuredOutput::kRegex) << i;
  }
  harness.Discover({1});
  EXPECT_TRUE(harness.WaitForMetric(kHealthy[0], 0));
  EXPECT_EQ(Ask(harness), 200);
  EXPECT_EQ(sent(1), v1::StructuredOutput::kStructuralTag);
  // What was made for the newer one does not go on at the older one, either.
  const size_t old = harness.engine(0).submits().size(), young = harness.engine(1).submits().size();
  harness.engine(1).Hold();
  auto waiting = std::async(std::launch::async, [&] { return Ask(harness); });
  EXPECT_TRUE(harness.engine(1).WaitForSubmits(young + 1));
  harness.Discover({0, 1});
  EXPECT_TRUE(harness.WaitForMetric(kHealthy[0], 1));
  harness.engine(1).SetReachable(false);
  harness.engine(1).LoseRequests();
  harness.engine(1).BreakStream();
  EXPECT_TRUE(harness.WaitForMetric("flotilla_router_requests_parked", 1));
  harness.engine(1).RunFreely();
  harness.engine(1).SetReachable(true);
  EXPECT_EQ(waiting.get(), 200);
  EXPECT_EQ(harness.engine(0).submits().size(), old);
}

TEST(OlderReplicasTest, ServeOthersWhileStructuralTagsWaitForANewerOne) {
  HarnessOptions options = OldAndNew();
  options.max_inflight_per_replica = 1;
  options.admission_queue = 4;
  RouterHarness harness(options);
  harness.Discover({1});
  EXPECT_TRUE(harness.WaitForMetric(kHealthy[1], 1));
  harness.engine(1).Hold();
  auto runs = std::async(std::launch::async, [&] { return Ask(harness); });
  EXPECT_TRUE(harness.engine(1).WaitForSubmits(1));
  auto waits = std::async(std::launch::async, [&] { return Ask(harness); });
  EXPECT_TRUE(harness.WaitForMetric("flotilla_router_admission_queue_depth", 1));
  harness.Discover({0, 1});
  EXPECT_TRUE(harness.WaitForMetric(kHealthy[0], 1));
  EXPECT_EQ(harness.Complete(R"({"model":"smol","prompt":"Hi","max_tokens":4,"seed":1})").status,
            200);
  EXPECT_EQ(harness.engine(0).submits().size(), 1u);
  harness.engine(1).RunFreely();
  EXPECT_EQ(runs.get(), 200);
  EXPECT_EQ(waits.get(), 200);
  EXPECT_EQ(harness.engine(0).submits().size(), 1u);
}

}  // namespace
}  // namespace flotilla
