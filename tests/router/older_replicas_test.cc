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

// Routers may be updated first: while an older replica serves, nobody gets what it would not take.
TEST(OlderReplicasTest, GetNoStructuralTags) {
  HarnessOptions options = WithParsers();
  options.replicas = 2;
  options.discover = true;
  options.old_engines = 1;
  RouterHarness harness(options);
  const auto ask = [&] {
    return Post(harness.port(), "/v1/chat/completions",
                R"({"model":"smol","messages":[{"role":"user","content":"Hi"}],"max_tokens":4,
                    "seed":1,"guided_regex":"a+"})")
        .status;
  };
  const auto sent = [&](size_t i) {
    const std::vector<v1::Submit> all = harness.engine(i).submits();
    return all.empty() ? v1::StructuredOutput::KIND_NOT_SET
                       : all.back().request().structured().kind_case();
  };
  for (const std::vector<size_t>& order : {std::vector<size_t>{1, 0}, {0, 1}}) {
    for (const size_t engine : order) {
      harness.Discover({engine});
      EXPECT_TRUE(harness.WaitForMetric(kHealthy[engine], 1));
    }
    harness.Discover({0, 1});
    for (size_t i = 0; i < 2; ++i) EXPECT_TRUE(harness.WaitForMetric(kHealthy[i], 1)) << i;
    for (int i = 0; i < 2; ++i) EXPECT_EQ(ask(), 200);
    for (size_t i = 0; i < 2; ++i) EXPECT_EQ(sent(i), v1::StructuredOutput::kRegex) << i;
  }
  harness.Discover({1});
  EXPECT_TRUE(harness.WaitForMetric("flotilla_router_replicas", 1));
  EXPECT_EQ(ask(), 200);
  EXPECT_EQ(sent(1), v1::StructuredOutput::kStructuralTag);
  // What was made for the newer one does not go on at the older one, either.
  const size_t old = harness.engine(0).submits().size(), young = harness.engine(1).submits().size();
  harness.engine(1).Hold();
  auto waiting = std::async(std::launch::async, ask);
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

}  // namespace
}  // namespace flotilla
