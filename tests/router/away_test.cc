// Replicas that have been without a process for too long: nobody is left there, and nobody is sent.
#include <gtest/gtest.h>

#include <future>
#include <thread>

#include "tests/router/begun_request.h"

namespace flotilla {
namespace {

HarnessOptions Away(size_t replicas) {
  HarnessOptions options = Replicas(replicas);
  options.engine.reattach_ms = 100;
  return options;
}

// The only one: as with a broken connection, clients wait for it, but not for ever.
TEST(AwayTest, OneThatRecoversForTooLongIsNotWaitedFor) {
  HarnessOptions options = Away(1);
  options.failover_wait_ms = 300;
  RouterHarness harness(options);
  Begun begun(&harness, kStream, 7);
  harness.engine().SetRecovering(true);
  const std::string body = begun.answer.get().body;
  EXPECT_NE(body.find("was lost; try again."), std::string::npos) << body;
  EXPECT_TRUE(harness.engine().WaitForAborts(1));
  EXPECT_EQ(Get(harness.port(), "/health/ready").status, 503);
  EXPECT_EQ(harness.Complete(kPlain).status, 503);
  EXPECT_EQ(harness.Metric("flotilla_router_rejections_total{reason=\"no_replica\"}"), 1);
  EXPECT_EQ(harness.engine().submits().size(), 1u);

  harness.engine().SetRecovering(false);
  harness.WaitAllReady();
  EXPECT_EQ(Get(harness.port(), "/health/ready").status, 200);
  harness.engine().RunFreely();
  EXPECT_EQ(harness.Complete(kPlain).status, 200);
}

TEST(AwayTest, OneThatIsWellAgainInTimeGoesOn) {
  HarnessOptions options = Away(1);
  RouterHarness harness(options);
  Begun begun(&harness, kStream, 7);
  harness.engine().SetRecovering(true);
  EXPECT_TRUE(harness.WaitForMetric("flotilla_router_requests_parked", 1));
  auto later = std::async(std::launch::async, [&] { return harness.Complete(kPlain); });
  EXPECT_TRUE(harness.WaitForMetric("flotilla_router_requests_parked", 2));
  harness.engine().RunFreely();
  harness.engine().SetRecovering(false);
  EXPECT_EQ(StreamText(Events(begun.answer.get().body)), ExpectedText(harness.engine()));
  EXPECT_EQ(later.get().status, 200);
  EXPECT_EQ(harness.engine().submits().size(), 3u);
}

// It has a record of the request still, and says so.
TEST(AwayTest, ARepeatOfAKeyedRequestIsNotSentThere) {
  RouterHarness harness(Away(2));
  harness.WaitAllReady();
  for (size_t i = 0; i < 2; ++i) harness.engine(i).Hold();
  const auto ask = [&] {
    HttpConnection connection(harness.port());
    connection.Send(PostText("/v1/completions", kPlain, "Idempotency-Key: k\r\n"));
    return connection.Read();
  };
  auto answer = std::async(std::launch::async, ask);
  const auto submits = [&](size_t i) { return harness.engine(i).submits().size(); };
  while (submits(0) + submits(1) < 1) std::this_thread::yield();
  const size_t home = submits(0) > 0 ? 0 : 1;
  harness.engine(home).SetRecovering(true);
  harness.engine(1 - home).RunFreely();
  const HttpAnswer first = answer.get();
  EXPECT_EQ(first.status, 200);
  const HttpAnswer repeat = ask();
  EXPECT_EQ(repeat.status, 200);
  EXPECT_EQ(TextOf(repeat), TextOf(first));
  EXPECT_EQ(submits(home), 1u);
}

// What one choice has is an answer, though another has nothing yet.
TEST(AwayTest, ADeadlineEndsChoicesAlike) {
  HarnessOptions options = Away(1);
  options.max_request_ms = 2000;
  RouterHarness harness(options);
  Begun begun(&harness, R"({"model":"smol","prompt":"Hi","max_tokens":30,"seed":1,"n":2})", 1, 2);
  harness.engine().Stop();
  const HttpAnswer answer = begun.answer.get();
  EXPECT_EQ(answer.status, 200) << answer.body;
  const boost::json::value root = ParseOrFail(answer.body);
  for (const auto& choice : root.at("choices").as_array())
    EXPECT_EQ(choice.at("finish_reason"), "deadline");
}

}  // namespace
}  // namespace flotilla
