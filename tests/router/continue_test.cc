// Streams that have begun and go on elsewhere: the client gets what it would have got, once.
#include <gtest/gtest.h>

#include <algorithm>
#include <future>

#include "tests/router/begun_request.h"

namespace flotilla {
namespace {

constexpr const char* kLogprobs =
    R"({"model":"smol","prompt":[1,2,3,4,5,6],"max_tokens":20,"seed":1,"logprobs":2,
        "prompt_logprobs":0,"return_token_ids":true})";
constexpr const char* kFailovers = "flotilla_router_failovers_total{reason=\"replica_lost\"}";
constexpr const char* kSpent = "flotilla_router_rejections_total{reason=\"max_failovers\"}";
constexpr const char* kHealthy0 = "flotilla_router_backend_healthy{replica=\"fake-0\"}";

TEST(ContinueTest, AnotherReplicaGoesOnByteForByteWhereverTheFirstDies) {
  int resumed = 0;
  for (int cut : {1, 2, 13, 29}) {
    RouterHarness harness(Replicas(2));
    Begun begun(&harness, kStream, cut);
    harness.engine(0).Stop();
    const std::vector<std::string> events = Events(begun.answer.get().body);
    EXPECT_EQ(events.back(), "[DONE]");
    EXPECT_EQ(StreamText(events), ExpectedText(harness.engine(0))) << "cut after " << cut;
    ASSERT_EQ(harness.engine(1).submits().size(), 1u);
    const v1::Submit submit = harness.engine(1).submits()[0];
    // Of what the router has the last piece comes again; with one there is nothing to resume.
    resumed += submit.resume_size();
    if (submit.resume_size() > 0) {
      EXPECT_LT(submit.resume(0).output_ids_size(), cut);
    }
  }
  EXPECT_GE(resumed, 1);
}

TEST(ContinueTest, LogprobsAndPromptLogprobsComeOnce) {
  RouterHarness harness(Replicas(2));
  const HttpAnswer whole = harness.Complete(kLogprobs);  // the policy's first is engine 0
  ASSERT_EQ(whole.status, 200);
  harness.Complete(kLogprobs);
  harness.engine(0).Hold();
  auto answer = std::async(std::launch::async, [&] { return harness.Complete(kLogprobs); });
  ASSERT_TRUE(harness.engine(0).WaitForSubmits(2));
  harness.engine(0).Release(9);
  FakeEngineService& engine = harness.engine(0);
  ASSERT_TRUE(engine.WaitFor([&] { return engine.permits() == 0; }));
  harness.engine(0).Stop();
  const HttpAnswer got = answer.get();
  ASSERT_EQ(got.status, 200);
  EXPECT_EQ(ParseOrFail(got.body).at("choices"), ParseOrFail(whole.body).at("choices"));
}

TEST(ContinueTest, ARestartedReplicaGoesOn) {
  RouterHarness harness;
  Begun begun(&harness, kStream, 7);
  harness.engine().Stop();
  harness.engine().Start();
  harness.engine().RunFreely();
  EXPECT_EQ(StreamText(Events(begun.answer.get().body)), ExpectedText(harness.engine()));
  ASSERT_EQ(harness.engine().submits().size(), 2u);
}

TEST(ContinueTest, ItWaitsForAReplicaPastTheTimeForReattaching) {
  HarnessOptions options;
  options.engine.reattach_ms = 20;
  RouterHarness harness(options);
  Begun begun(&harness, kStream, 7);
  harness.engine().Stop();
  ASSERT_TRUE(harness.WaitForMetric(kHealthy0, 0));
  EXPECT_EQ(begun.answer.wait_for(std::chrono::milliseconds(200)), std::future_status::timeout);
  harness.engine().Start();
  harness.engine().RunFreely();
  EXPECT_EQ(StreamText(Events(begun.answer.get().body)), ExpectedText(harness.engine()));
}

TEST(ContinueTest, SeveralChoicesGoOn) {
  constexpr const char* kBody = R"({"model":"smol","prompt":"Hi","max_tokens":20,"seed":1,"n":3})";
  RouterHarness whole;
  const HttpAnswer expected = whole.Complete(kBody);
  RouterHarness harness(Replicas(2));
  Begun begun(&harness, kBody, 5, 3);
  harness.engine(0).Stop();
  const HttpAnswer got = begun.answer.get();
  EXPECT_EQ(ParseOrFail(got.body).at("choices"), ParseOrFail(expected.body).at("choices"));
  EXPECT_EQ(harness.engine(1).submits().size(), 3u);
  EXPECT_EQ(harness.Metric(kFailovers), 3);
}

TEST(ContinueTest, OneKillAfterTheOther) {
  RouterHarness harness(Replicas(2));
  harness.engine(1).Hold();
  Begun begun(&harness, kStream, 4);
  harness.engine(0).Stop();
  for (int kill = 0; kill < 6; ++kill) {
    FakeEngineService& now = harness.engine(kill % 2 == 0 ? 1 : 0);
    FakeEngineService& before = harness.engine(kill % 2 == 0 ? 0 : 1);
    const size_t submits = before.submits().size();
    before.Start();
    before.Hold();
    ASSERT_TRUE(now.WaitFor([&] { return now.has_live(); })) << "kill " << kill;
    now.Release(3);
    ASSERT_TRUE(now.WaitFor([&] { return now.permits() == 0; }));
    EXPECT_EQ(before.submits().size(), submits);
    harness.WaitAllReady();  // else the one killed next may be back before it
    now.Stop();
  }
  harness.engine(0).RunFreely();
  harness.engine(1).RunFreely();
  EXPECT_EQ(StreamText(Events(begun.answer.get().body)), ExpectedText(harness.engine(0)));
}

// Though it gets a token from each of them.
TEST(ContinueTest, ARequestThatEndsItsReplicasDoesNotGoRoundForEver) {
  HarnessOptions options;
  options.max_failovers = 2;
  RouterHarness harness(options);
  Begun begun(&harness, kStream, 3);
  FakeEngineService& engine = harness.engine();
  const auto end_replica = [&] {
    engine.LoseRequests();
    engine.BreakStream();
  };
  for (uint32_t kill = 1; kill <= options.max_failovers; ++kill) {
    end_replica();
    ASSERT_TRUE(engine.WaitForSubmits(1 + kill));
    engine.Release(3);
    ASSERT_TRUE(harness.WaitForMetric("flotilla_router_failover_pause_seconds_count", kill));
  }
  end_replica();
  const std::string body = begun.answer.get().body;
  EXPECT_NE(body.find("3 times in all; it does not go on again"), std::string::npos) << body;
  EXPECT_EQ(body.find("[DONE]"), std::string::npos);
  EXPECT_EQ(harness.Metric(kSpent), 1);
  EXPECT_EQ(harness.Metric(kFailovers), 2);
}

TEST(ContinueTest, NeitherDoesOneThatFailsOnEach) {
  HarnessOptions options = Replicas(2);
  options.max_failovers = 1;
  RouterHarness harness(options);
  harness.engine(1).Hold();
  Begun begun(&harness, kPlain, 3);
  harness.engine(0).FailLive(13, "step failed");
  ASSERT_TRUE(harness.engine(1).WaitForSubmits(1));
  harness.engine(1).FailLive(13, "step failed");
  const HttpAnswer answer = begun.answer.get();
  EXPECT_EQ(answer.status, 503);
  EXPECT_NE(answer.body.find("2 times in all"), std::string::npos) << answer.body;
  EXPECT_EQ(harness.Metric(kSpent), 1);
}

TEST(ContinueTest, MovesFromReplicasThatDrainAreNotCounted) {
  HarnessOptions options = Replicas(2);
  options.max_failovers = 0;
  RouterHarness harness(options);
  Begun begun(&harness, kStream, 3);
  harness.engine(0).SetDraining(true);
  ASSERT_TRUE(harness.WaitForMetric(kHealthy0, 0));
  harness.engine(0).Stop();
  EXPECT_EQ(StreamText(Events(begun.answer.get().body)), ExpectedText(harness.engine(0)));
  EXPECT_EQ(harness.Metric(kFailovers), 1);
}

TEST(ContinueTest, NorIsARestartAfterADrain) {
  HarnessOptions options;
  options.max_failovers = 0;
  RouterHarness harness(options);
  Begun begun(&harness, kStream, 3);
  harness.engine().SetDraining(true);
  ASSERT_TRUE(harness.WaitForMetric(kHealthy0, 0));
  harness.engine().Stop();
  harness.engine().SetDraining(false);
  harness.engine().Start();
  harness.engine().RunFreely();
  EXPECT_EQ(StreamText(Events(begun.answer.get().body)), ExpectedText(harness.engine()));
}

TEST(ContinueTest, AReplicaThatRecoversForLongGivesItAway) {
  RouterHarness harness(Replicas(2));
  Begun begun(&harness, kStream, 7);
  harness.engine(0).SetRecovering(true);
  EXPECT_EQ(StreamText(Events(begun.answer.get().body)), ExpectedText(harness.engine(0)));
  EXPECT_TRUE(harness.engine(0).WaitForAborts(1));
  EXPECT_EQ(harness.engine(1).submits().size(), 1u);
  EXPECT_EQ(harness.Metric(kFailovers), 1);
}

// Nor to one that recovers itself: it goes on wherever there is one first.
TEST(ContinueTest, ButNotToAnUnequalOne) {
  RouterHarness harness(Replicas(2));
  Begun begun(&harness, kStream, 7);
  harness.engine(1).SetFingerprint("other");
  harness.engine(1).BreakStream();
  ASSERT_TRUE(harness.engine(1).WaitForConnections(2));
  harness.engine(0).SetRecovering(true);
  EXPECT_EQ(begun.answer.wait_for(std::chrono::milliseconds(1500)), std::future_status::timeout);
  harness.engine(1).SetRecovering(true);
  harness.engine(1).SetFingerprint("fp-fake");
  harness.engine(1).BreakStream();
  ASSERT_TRUE(harness.engine(1).WaitForConnections(3));
  EXPECT_EQ(begun.answer.wait_for(std::chrono::milliseconds(1500)), std::future_status::timeout);
  EXPECT_EQ(harness.engine(1).submits().size(), 0u);
  harness.engine(1).SetRecovering(false);
  EXPECT_EQ(StreamText(Events(begun.answer.get().body)), ExpectedText(harness.engine(0)));
  EXPECT_EQ(harness.engine(1).submits().size(), 1u);
}

TEST(ContinueTest, SeveralChoicesOfOneThatRecoversStayTogether) {
  constexpr const char* kBody = R"({"model":"smol","prompt":"Hi","max_tokens":20,"seed":1,"n":3})";
  RouterHarness harness(Replicas(3));
  Begun begun(&harness, kBody, 5, 3);
  harness.engine(0).SetRecovering(true);
  EXPECT_EQ(begun.answer.get().status, 200);
  EXPECT_EQ(harness.engine(1).submits().size() * harness.engine(2).submits().size(), 0u);
}

TEST(ContinueTest, AnUnequalReplicaIsNoneAndTheErrorSaysSo) {
  HarnessOptions options = Replicas(2);
  options.failover_wait_ms = 300;
  options.engine.reattach_ms = 20;
  RouterHarness harness(options);
  harness.engine(1).SetFingerprint("other");
  harness.engine(1).BreakStream();
  ASSERT_TRUE(harness.engine(1).WaitForConnections(2));
  harness.WaitAllReady();
  Begun begun(&harness, kStream, 7);
  harness.engine(0).Stop();
  const std::string body = begun.answer.get().body;
  EXPECT_NE(body.find("would go on differently"), std::string::npos) << body;
  EXPECT_EQ(body.find("[DONE]"), std::string::npos) << "nobody may take it for complete";
  EXPECT_TRUE(harness.engine(1).submits().empty());
}

TEST(ContinueTest, AReplicaThatAnswersDifferentlyAfterAllEndsTheStream) {
  RouterHarness harness(Replicas(2));
  harness.engine(1).SetScript({11, 12, 13});
  Begun begun(&harness, kStream, 7);
  harness.engine(0).Stop();
  const std::string body = begun.answer.get().body;
  EXPECT_NE(body.find("went on differently"), std::string::npos) << body;
  EXPECT_EQ(body.find("[DONE]"), std::string::npos);
}

TEST(ContinueTest, ASilentReplicaIsLeftAtOnce) {
  HarnessOptions options = Replicas(2);
  options.engine.heartbeat_ms = 1000;
  options.engine.reattach_ms = 60'000;
  RouterHarness harness(options);
  Begun begun(&harness, kStream, 7);
  harness.engine(0).SetReachable(false);  // the handshake would hang
  harness.engine(0).SetSilent(true);
  EXPECT_EQ(StreamText(Events(begun.answer.get().body)), ExpectedText(harness.engine(0)));
}

TEST(ContinueTest, ARefusalDoesNotEndAStreamThatHasBegun) {
  RouterHarness harness(Replicas(2));
  harness.engine(1).RefuseNext(1, 8, "queue full");
  Begun begun(&harness, kStream, 7);
  harness.engine(0).Stop();
  EXPECT_EQ(StreamText(Events(begun.answer.get().body)), ExpectedText(harness.engine(0)));
  EXPECT_EQ(harness.engine(1).submits().size(), 2u);
}

// As when a grammar takes too many steps: another replica would come to the same end.
TEST(ContinueTest, AFaultOfTheRequestItselfEndsItAtOnce) {
  RouterHarness harness(Replicas(2));
  Begun begun(&harness, kPlain, 7);
  harness.engine(0).FailLive(3, "structured: too complex");
  const HttpAnswer answer = begun.answer.get();
  EXPECT_EQ(answer.status, 400);
  EXPECT_EQ(ErrorField(answer, "message"), "structured: too complex");
  EXPECT_EQ(harness.engine(0).submits().size() + harness.engine(1).submits().size(), 1u);
}

// Another replica may be smaller than the one that was lost.
TEST(ContinueTest, WhatAReplicaRefusesForItselfMayBeRightOnAnother) {
  RouterHarness harness(Replicas(2));
  harness.engine(1).RefuseNext(1, 3, "prompt: too long for this replica");
  Begun begun(&harness, kStream, 7);
  harness.engine(0).Stop();
  EXPECT_EQ(StreamText(Events(begun.answer.get().body)), ExpectedText(harness.engine(0)));
  EXPECT_EQ(harness.engine(1).submits().size(), 2u);
}

TEST(ContinueTest, AReplicaLostWhileItsLargeResultIsFetchedIsLostOnce) {
  HarnessOptions options;
  options.engine.large_result_over = 1;
  options.engine.reattach_ms = 20;
  RouterHarness harness(options);
  FakeEngineService& engine = harness.engine();
  const auto ask = [&] {
    return harness.Complete(
        R"({"model":"smol","prompt":[1,2,3,4],"max_tokens":8,"seed":1,"prompt_logprobs":1})");
  };
  const HttpAnswer whole = ask();
  engine.HoldLargeResults(true);
  engine.Hold();
  auto answer = std::async(std::launch::async, ask);
  ASSERT_TRUE(engine.WaitForSubmits(2));
  engine.Release(1);
  ASSERT_TRUE(engine.WaitFor([&] { return engine.large_fetches() == 2; }));
  engine.SetReachable(false);
  engine.BreakStream();
  ASSERT_TRUE(harness.WaitForMetric("flotilla_router_requests_parked", 1));
  engine.SetLargeResultsLost(true);
  engine.HoldLargeResults(false);
  ASSERT_TRUE(engine.WaitFor([&] { return engine.large_answers() == 2; }));
  engine.SetLargeResultsLost(false);
  engine.RunFreely();
  engine.SetReachable(true);
  EXPECT_EQ(ParseOrFail(answer.get().body).at("choices"), ParseOrFail(whole.body).at("choices"));
  EXPECT_EQ(engine.submits().size(), 3u) << "once more, not twice";
}

TEST(ContinueTest, AClientThatLeavesMeanwhileIsForgotten) {
  HarnessOptions options;
  options.engine.reattach_ms = 20;
  RouterHarness harness(options);
  harness.engine().Hold();
  HttpConnection connection(harness.port());
  connection.Send(
      StrCat("POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: "
             "application/json\r\nContent-Length: ",
             std::string(kStream).size(), "\r\n\r\n", kStream));
  ASSERT_TRUE(harness.engine().WaitForSubmits(1));
  harness.engine().Release(3);
  ASSERT_NE(connection.ReadUntil("\n\n"), "");
  harness.engine().Stop();
  ASSERT_TRUE(harness.WaitForMetric(kHealthy0, 0));
  connection.Close();
  ASSERT_TRUE(harness.WaitForMetric("flotilla_router_requests_in_flight", 0));
  harness.engine().Start();
  harness.WaitAllReady();
  EXPECT_EQ(harness.engine().submits().size(), 1u);
}

TEST(ContinueTest, ANewRequestWaitsForAReplicaToComeBack) {
  RouterHarness harness;
  harness.engine().Stop();
  ASSERT_TRUE(harness.WaitForMetric(kHealthy0, 0));
  auto answer = std::async(std::launch::async, [&] {
    return harness.Complete(R"({"model":"smol","prompt":"Hi","max_tokens":4})");
  });
  ASSERT_TRUE(harness.WaitForMetric("flotilla_router_requests_in_flight", 1));
  harness.engine().Start();
  EXPECT_EQ(answer.get().status, 200);
  EXPECT_EQ(harness.Metric("flotilla_router_retries_total{reason=\"replica_lost\"}"), 0)
      << "it was never with another";
}

TEST(ContinueTest, IfNoneComesBackANewRequestIsRefused) {
  HarnessOptions options;
  options.failover_wait_ms = 100;
  RouterHarness harness(options);
  harness.engine().Stop();
  ASSERT_TRUE(harness.WaitForMetric(kHealthy0, 0));
  const HttpAnswer answer =
      harness.Complete(R"({"model":"smol","prompt":"Hi","max_tokens":4,"n":2})");
  EXPECT_EQ(answer.status, 503);
  EXPECT_TRUE(answer.headers.contains("retry-after"));
  EXPECT_GE(harness.Metric("flotilla_router_rejections_total{reason=\"no_replica\"}"), 1);
}

TEST(ContinueTest, ADeadlineHoldsWhileNoReplicaIsThere) {
  HarnessOptions options;
  options.engine.reattach_ms = 20;
  options.max_request_ms = 1000;
  RouterHarness harness(options);
  Begun begun(&harness, R"({"model":"smol","prompt":"Hi","max_tokens":30,"seed":1})", 3);
  harness.engine().Stop();
  const HttpAnswer answer = begun.answer.get();
  ASSERT_EQ(answer.status, 200);
  EXPECT_EQ(ParseOrFail(answer.body).at("choices").at(0).at("finish_reason").as_string(),
            "deadline");
  const HttpAnswer later = harness.Complete(kPlain);
  EXPECT_EQ(later.status, 503) << "nothing, for want of a replica, is no answer";
  EXPECT_EQ(harness.Metric("flotilla_router_rejections_total{reason=\"no_replica\"}"), 1);
}

}  // namespace
}  // namespace flotilla
