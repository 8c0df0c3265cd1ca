// What happens to requests when replicas break, refuse, vanish and come back; and which replica
// gets which request.
#include <gtest/gtest.h>

#include <algorithm>
#include <future>
#include <sstream>

#include "common/base/metrics.h"
#include "tests/router/router_harness.h"

namespace flotilla {
namespace {

constexpr const char* kBody = R"({"model":"smol","prompt":"Hi","max_tokens":4,"seed":1})";
constexpr const char* kStream =
    R"({"model":"smol","prompt":"Hi","max_tokens":30,"seed":1,"stream":true})";

std::string PostStream() {
  return StrCat(
      "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
      "Content-Length: ",
      std::string(kStream).size(), "\r\n\r\n", kStream);
}

std::string ExpectedStream(FakeEngineService& engine) {
  return GetTestModel().tokenizer->Decode(engine.AnswerIds(engine.submits()[0].request()), true);
}

HarnessOptions Two(const std::string& policy = "round_robin") {
  HarnessOptions options;
  options.replicas = 2;
  options.policy = policy;
  return options;
}

TEST(RoutingTest, RoundRobinSplitsEvenlyAndFetchesTheTokenizerOnce) {
  RouterHarness harness(Two());
  for (int i = 0; i < 20; ++i) EXPECT_EQ(harness.Complete(kBody).status, 200);
  EXPECT_EQ(harness.engine(0).submits().size(), 10u);
  EXPECT_EQ(harness.engine(1).submits().size(), 10u);
  EXPECT_EQ(harness.engine(0).fetches() + harness.engine(1).fetches(), 1);
}

// All that name a digest wait for the first one's file; that it fails is the first one's alone.
TEST(RoutingTest, AReplicaThatCantGiveTheTokenizerKeepsNobodyElseAway) {
  HarnessOptions options = Two();
  options.start_engines = false;
  RouterHarness harness(options);
  harness.AddEngine();
  FakeEngineService& bad = harness.engine(0);
  bad.SetFilesFail(true);
  ASSERT_TRUE(bad.WaitFor([&] { return bad.has_fetches(); }));
  harness.AddEngine();
  ASSERT_TRUE(harness.engine(1).WaitForConnections(1));
  bad.SetFilesFail(false);
  ASSERT_TRUE(harness.WaitForMetric("flotilla_router_backend_healthy{replica=\"fake-1\"}", 1));
  EXPECT_EQ(harness.engine(1).hellos().size(), 1u);
}

TEST(RoutingTest, ShortestQueueAvoidsABusyReplica) {
  RouterHarness harness(Two("shortest_queue"));
  harness.engine(0).SetExtraLoad(100'000);
  // The first request after the frame; its own answer comes behind that frame at the latest.
  harness.Complete(kBody);
  harness.Complete(kBody);
  const size_t before = harness.engine(0).submits().size();
  for (int i = 0; i < 20; ++i) EXPECT_EQ(harness.Complete(kBody).status, 200);
  EXPECT_EQ(harness.engine(0).submits().size(), before);
  EXPECT_GE(harness.engine(1).submits().size(), 20u);
}

TEST(RoutingTest, ShortestQueueCountsWhatItHasJustSent) {
  HarnessOptions options = Two("shortest_queue");
  options.engine.heartbeat_ms = 5000;
  RouterHarness harness(options);
  harness.engine(0).Hold();
  harness.engine(1).Hold();
  std::vector<std::future<HttpAnswer>> answers;
  for (int i = 0; i < 10; ++i)
    answers.push_back(std::async(std::launch::async, [&] { return harness.Complete(kBody); }));
  EXPECT_TRUE(harness.engine(0).WaitForSubmits(5));
  EXPECT_TRUE(harness.engine(1).WaitForSubmits(5)) << "no frame came between, yet they alternate";
  harness.engine(0).RunFreely();
  harness.engine(1).RunFreely();
  for (auto& answer : answers) EXPECT_EQ(answer.get().status, 200);
}

TEST(RoutingTest, ADrainingReplicaGetsNothingNewButFinishes) {
  RouterHarness harness(Two());
  harness.engine(0).Hold();
  auto running = std::async(std::launch::async, [&] { return harness.Complete(kBody); });
  ASSERT_TRUE(harness.engine(0).WaitForSubmits(1));
  harness.engine(0).SetDraining(true);
  ASSERT_TRUE(harness.WaitForMetric("flotilla_router_backend_healthy{replica=\"fake-0\"}", 0));
  for (int i = 0; i < 4; ++i) EXPECT_EQ(harness.Complete(kBody).status, 200);
  EXPECT_EQ(harness.engine(0).submits().size(), 1u);
  harness.engine(0).RunFreely();
  EXPECT_EQ(running.get().status, 200);
}

TEST(RoutingTest, AReplicaThatRecoversGetsNothingNewWhileThereIsAnother) {
  RouterHarness harness(Two());
  harness.engine(0).SetRecovering(true);
  ASSERT_TRUE(harness.WaitForMetric("flotilla_router_backend_healthy{replica=\"fake-0\"}", 0));
  for (int i = 0; i < 4; ++i) EXPECT_EQ(harness.Complete(kBody).status, 200);
  EXPECT_EQ(harness.engine(1).submits().size(), 4u);
  harness.engine(1).Stop();
  ASSERT_TRUE(harness.WaitForMetric("flotilla_router_backend_healthy{replica=\"fake-1\"}", 0));
  EXPECT_EQ(harness.Complete(kBody).status, 200) << "it will be back";
  harness.engine(1).Start();
  ASSERT_TRUE(harness.WaitForMetric("flotilla_router_backend_healthy{replica=\"fake-1\"}", 1));
  harness.engine(0).SetRecovering(false);
  ASSERT_TRUE(harness.WaitForMetric("flotilla_router_backend_healthy{replica=\"fake-0\"}", 1));
  for (int i = 0; i < 4; ++i) EXPECT_EQ(harness.Complete(kBody).status, 200);
  EXPECT_EQ(harness.engine(0).submits().size(), 3u);
}

TEST(RoutingTest, AReplicaThatNeverCameIsUnhealthyUnderItsAddress) {
  HarnessOptions options;
  options.start_engines = false;
  RouterHarness harness(options);
  const auto series = [&] {
    const std::string page = RenderMetrics(*harness.app().metrics_registry());
    std::vector<std::string> lines;
    std::istringstream stream(page);
    for (std::string line; std::getline(stream, line);) {
      if (line.starts_with("flotilla_router_backend_healthy{")) lines.push_back(line);
    }
    return lines;
  };
  ASSERT_EQ(series().size(), 1u);
  EXPECT_NE(series()[0].find("unix:"), std::string::npos);
  EXPECT_TRUE(series()[0].ends_with(" 0"));
  harness.AddEngine();
  harness.WaitAllReady();
  ASSERT_EQ(series().size(), 1u) << "the address's series is gone";
  EXPECT_NE(series()[0].find("fake-0"), std::string::npos);
}

TEST(RoutingTest, AnotherModelOnTheReplicaReplacesTheOldOne) {
  RouterHarness harness;
  EXPECT_EQ(harness.Complete(kBody).status, 200);
  harness.engine().Stop();
  harness.engine().SetModel("other");
  harness.engine().Start();
  ASSERT_TRUE(harness.engine().WaitForConnections(2));
  ASSERT_TRUE(harness.WaitForMetric("flotilla_router_backend_healthy{replica=\"fake-0\"}", 1));
  EXPECT_EQ(harness.Complete(kBody).status, 404);
  EXPECT_EQ(harness.Complete(R"({"model":"other","prompt":"Hi"})").status, 200);
}

TEST(ReattachTest, ABrokenStreamGoesOnByteForByte) {
  RouterHarness harness;
  harness.engine().Hold();
  HttpConnection connection(harness.port());
  connection.Send(PostStream());
  ASSERT_TRUE(harness.engine().WaitForSubmits(1));
  harness.engine().Release(7);
  ASSERT_NE(connection.ReadUntil("\n\n"), "");
  harness.engine().BreakStream();
  ASSERT_TRUE(harness.engine().WaitForConnections(2));
  const v1::Hello hello = harness.engine().hellos()[1];
  ASSERT_EQ(hello.reattach_size(), 1);
  EXPECT_LE(hello.reattach(0).token_offset(0), 7u);
  EXPECT_EQ(hello.router_id(), harness.engine().hellos()[0].router_id());
  EXPECT_EQ(hello.fingerprint(), "fp-fake");
  harness.engine().RunFreely();
  const std::string rest = connection.ReadUntil("data: [DONE]");
  EXPECT_NE(rest, "");
  EXPECT_EQ(harness.engine().submits().size(), 1u) << "it was not submitted again";
}

TEST(ReattachTest, TheWholeTextIsRightWhereverTheStreamBreaks) {
  for (int cut : {1, 2, 13, 29}) {
    RouterHarness harness;
    harness.engine().Hold();
    auto answer = std::async(std::launch::async, [&] { return harness.Complete(kStream); });
    ASSERT_TRUE(harness.engine().WaitForSubmits(1));
    harness.engine().Release(cut);
    harness.engine().BreakStream();
    harness.engine().RunFreely();
    const std::vector<std::string> events = Events(answer.get().body);
    EXPECT_EQ(events.back(), "[DONE]");
    EXPECT_EQ(StreamText(events), ExpectedStream(harness.engine())) << "cut after " << cut;
  }
}

TEST(ReattachTest, PromptLogprobsAreNotDoubled) {
  RouterHarness harness;
  harness.engine().Hold();
  auto answer = std::async(std::launch::async, [&] {
    return harness.Complete(R"({"model":"smol","prompt":[1,2,3,4,5,6,7,8,9,10,11,12],"seed":1,
                                "max_tokens":3,"prompt_logprobs":0})");
  });
  ASSERT_TRUE(harness.engine().WaitForSubmits(1));
  harness.engine().Release(2);
  harness.engine().BreakStream();
  ASSERT_TRUE(harness.engine().WaitForConnections(2));
  harness.engine().RunFreely();
  const boost::json::value root = ParseOrFail(answer.get().body);
  EXPECT_EQ(root.at("choices").at(0).at("prompt_logprobs").as_array().size(), 12u);
}

TEST(ReattachTest, ASilentReplicaCountsAsBroken) {
  HarnessOptions options;
  options.engine.heartbeat_ms = 30;
  RouterHarness harness(options);
  harness.engine().SetSilent(true);
  auto answer = std::async(std::launch::async, [&] { return harness.Complete(kBody); });
  EXPECT_TRUE(harness.engine().WaitForConnections(2));
  harness.engine().SetSilent(false);
  EXPECT_EQ(answer.get().status, 200);
}

TEST(ReattachTest, ARequestAbortedWhileTheStreamWasDownIsNotResumed) {
  RouterHarness harness;
  harness.engine().Hold();
  HttpConnection connection(harness.port());
  connection.Send(PostStream());
  ASSERT_TRUE(harness.engine().WaitForSubmits(1));
  harness.engine().SetReachable(false);
  harness.engine().BreakStream();
  ASSERT_TRUE(harness.WaitForMetric("flotilla_router_backend_healthy{replica=\"fake-0\"}", 0));
  connection.Close();
  ASSERT_TRUE(harness.WaitForMetric("flotilla_router_requests_in_flight", 0));
  harness.engine().SetReachable(true);
  EXPECT_TRUE(harness.engine().WaitForAborts(1));
  EXPECT_EQ(harness.engine().hellos().back().reattach_size(), 0);
}

TEST(RetryTest, ALostRequestWithoutTokensStartsOnAnotherReplica) {
  RouterHarness harness(Two());
  harness.engine(0).Hold();
  auto answer = std::async(std::launch::async, [&] { return harness.Complete(kBody); });
  ASSERT_TRUE(harness.engine(0).WaitForSubmits(1));
  harness.engine(0).Stop();
  const HttpAnswer got = answer.get();
  EXPECT_EQ(got.status, 200);
  ASSERT_EQ(harness.engine(1).submits().size(), 1u);
  v1::GenerateRequest before = harness.engine(0).submits()[0].request();
  v1::GenerateRequest after = harness.engine(1).submits()[0].request();
  before.clear_deadline_ms();  // of which some is over
  after.clear_deadline_ms();
  EXPECT_EQ(after.SerializeAsString(), before.SerializeAsString());
  EXPECT_EQ(harness.Metric("flotilla_router_retries_total{reason=\"replica_lost\"}"), 1);
  harness.engine(0).Start();
}

TEST(RetryTest, TheOnlyReplicaRunsItAgainAfterARestart) {
  RouterHarness harness;
  harness.engine().Hold();
  auto answer = std::async(std::launch::async, [&] { return harness.Complete(kBody); });
  ASSERT_TRUE(harness.engine().WaitForSubmits(1));
  harness.engine().Stop();
  harness.engine().Start();
  harness.engine().RunFreely();
  EXPECT_EQ(answer.get().status, 200);
  EXPECT_EQ(harness.engine().submits().size(), 2u);
}

// It came back as another process, and is of no use: what it ran goes on elsewhere all the same.
TEST(RetryTest, AReplicaWithoutATokenizerLosesWhatItNoLongerKnows) {
  RouterHarness harness(Two());
  harness.engine(0).Hold();
  auto answer = std::async(std::launch::async, [&] { return harness.Complete(kBody); });
  ASSERT_TRUE(harness.engine(0).WaitForSubmits(1));
  harness.engine(0).SetOffersTokenizer(false);
  harness.engine(0).LoseRequests();
  harness.engine(0).BreakStream();
  EXPECT_EQ(answer.get().status, 200);
  ASSERT_EQ(harness.engine(1).submits().size(), 1u);
  const v1::Submit before = harness.engine(0).submits()[0], after = harness.engine(1).submits()[0];
  EXPECT_EQ(before.request().deadline_ms() - after.request().deadline_ms(),
            after.arrival_unix_ms() - before.arrival_unix_ms())
      << "the deadline is as late as it was";
}

TEST(RetryTest, NoReattachInTimeIsAnError) {
  HarnessOptions options;
  options.engine.reattach_ms = 100;
  options.failover_wait_ms = 0;
  RouterHarness harness(options);
  harness.engine().Hold();
  auto answer = std::async(std::launch::async, [&] { return harness.Complete(kBody); });
  ASSERT_TRUE(harness.engine().WaitForSubmits(1));
  harness.engine().SetReachable(false);
  harness.engine().BreakStream();
  const HttpAnswer got = answer.get();
  EXPECT_EQ(got.status, 503);
  EXPECT_TRUE(got.headers.contains("retry-after"));
}

TEST(RetryTest, WithoutAFailoverWaitABrokenConnectionIsNotWaitedForEither) {
  HarnessOptions options;
  options.engine.reattach_ms = 60'000;
  options.failover_wait_ms = 0;
  RouterHarness harness(options);
  harness.engine().Hold();
  HttpConnection stream(harness.port());
  stream.Send(PostStream());
  ASSERT_TRUE(harness.engine().WaitForSubmits(1));
  harness.engine().Release(1);
  EXPECT_NE(stream.ReadUntil("data: "), "");
  harness.engine().SetReachable(false);
  harness.engine().BreakStream();
  EXPECT_NE(stream.ReadUntil("\r\n0\r\n\r\n").find("was lost; try again."), std::string::npos);
}

// Neither addresses, files, nor what a connection's end said.
TEST(RetryTest, ErrorsNameNothingInternal) {
  HarnessOptions options;
  options.engine.reattach_ms = 50;
  options.failover_wait_ms = 0;
  RouterHarness harness(options);
  std::vector<HttpAnswer> answers;
  harness.engine().Hold();
  auto running = std::async(std::launch::async, [&] { return harness.Complete(kBody); });
  ASSERT_TRUE(harness.engine().WaitForSubmits(1));
  harness.engine().Stop();
  answers.push_back(running.get());
  answers.push_back(harness.Complete(kBody));
  answers.push_back(Get(harness.port(), "/health/ready"));
  answers.push_back(harness.Complete(R"({"model":"other","prompt":"Hi"})"));
  answers.push_back(harness.Complete("{"));
  for (const HttpAnswer& answer : answers) {
    EXPECT_GE(answer.status, 400);
    for (const char* word : {"unix:", "/tmp", ".sock", "fake-0", "127.0.0.1", ".cc", "grpc"})
      EXPECT_EQ(answer.body.find(word), std::string::npos) << word << " in " << answer.body;
  }
}

TEST(RetryTest, ARefusedRequestGoesToAnotherReplicaOnce) {
  RouterHarness harness(Two());
  harness.engine(0).RefuseNext(1, 8, "queue full");
  EXPECT_EQ(harness.Complete(kBody).status, 200);
  EXPECT_EQ(harness.engine(1).submits().size(), 1u);
  EXPECT_EQ(harness.Metric("flotilla_router_retries_total{reason=\"refused\"}"), 1);
}

TEST(RetryTest, WhenAllAreFullTheClientIsToldWhenToComeBack) {
  RouterHarness harness(Two());
  harness.engine(0).RefuseNext(1, 8, "queue full");
  harness.engine(1).RefuseNext(1, 8, "queue full");
  const HttpAnswer answer = harness.Complete(kBody);
  EXPECT_EQ(answer.status, 429);
  EXPECT_EQ(answer.headers.at("retry-after"), "3");
  EXPECT_EQ(ErrorField(answer, "type"), "rate_limit_error");
  EXPECT_EQ(harness.engine(0).submits().size() + harness.engine(1).submits().size(), 2u);
  EXPECT_EQ(harness.Metric("flotilla_router_rejections_total{reason=\"replica_full\"}"), 1);
}

TEST(RetryTest, WhatADrainingReplicaRefusesWaitsForOneThatTakesIt) {
  RouterHarness harness;
  harness.engine().RefuseNext(1, 14, "the replica is draining");
  EXPECT_EQ(harness.Complete(kBody).status, 200);
  EXPECT_EQ(harness.engine().submits().size(), 2u);
}

TEST(RetryTest, OtherErrorsAreTheClients) {
  RouterHarness harness(Two());
  harness.engine(0).RefuseNext(1, 13, "step failed");
  const HttpAnswer internal = harness.Complete(kBody);
  EXPECT_EQ(internal.status, 500);
  EXPECT_EQ(ErrorField(internal, "message"), "step failed");
  harness.engine(1).RefuseNext(1, 3, "bad field");
  EXPECT_EQ(harness.Complete(kBody).status, 400);
}

TEST(RetryTest, OneFailedPromptEndsTheBatch) {
  RouterHarness harness(Two());
  harness.engine(0).Hold();
  harness.engine(1).RefuseNext(1, 13, "step failed");
  const HttpAnswer answer =
      harness.Complete(R"({"model":"smol","prompt":["a","b"],"max_tokens":4})");
  EXPECT_EQ(answer.status, 500);
  EXPECT_TRUE(harness.engine(0).WaitForAborts(1));
}

}  // namespace
}  // namespace flotilla
