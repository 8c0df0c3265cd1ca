// Idempotency-Key: where a request with a key goes, that it outlives its client, and what a key
// stands for. (That it is computed once is the replica's: keyed_results_test.cc.)
#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <map>
#include <set>

#include "flotilla/v1/inference.grpc.pb.h"
#include "tests/router/keys_file.h"
#include "tests/router/router_harness.h"

namespace flotilla {
namespace {

using ::testing::HasSubstr;

constexpr const char* kBody = R"({"model":"smol","prompt":"Hi","max_tokens":4})";

std::string KeyHeader(std::string_view key) { return StrCat("Idempotency-Key: ", key, "\r\n"); }

class IdempotencyTest : public ::testing::Test {
 protected:
  void Start(HarnessOptions options) { harness_ = std::make_unique<RouterHarness>(options); }
  HttpAnswer Send(std::string_view headers, std::string_view body = kBody) {
    HttpConnection connection(harness_->port());
    connection.Send(PostText("/v1/completions", body, headers));
    return connection.Read();
  }
  // Three replicas that run one request each; others wait.
  void StartWithQueue() {
    HarnessOptions options;
    options.replicas = 3;
    options.max_inflight_per_replica = 1;
    options.admission_queue = 100;
    Start(options);
    harness_->WaitAllReady();
  }
  double Queued() { return harness_->Metric("flotilla_router_admission_queue_depth"); }
  // On a connection of its own, the last of connections_.
  void SendOn(const std::string& headers, std::string_view body = kBody) {
    connections_.push_back(std::make_unique<HttpConnection>(harness_->port()));
    connections_.back()->Send(PostText("/v1/completions", body, headers));
  }
  // Two replicas that send nothing; one has a request with the key k, the first of connections_.
  // Its index.
  size_t StartWithOneThatRuns(HarnessOptions options = {}) {
    options.replicas = 2;
    Start(options);
    harness_->WaitAllReady();
    for (size_t i = 0; i < 2; ++i) harness_->engine(i).Hold();
    SendOn(KeyHeader("k"));
    while (Submits(0) + Submits(1) < 1) {
    }
    return Submits(0) > 0 ? 0 : 1;
  }
  v1::Submit Last(size_t engine = 0) { return harness_->engine(engine).submits().back(); }
  size_t Submits(size_t engine) { return harness_->engine(engine).submits().size(); }

  std::unique_ptr<RouterHarness> harness_;
  std::vector<std::unique_ptr<HttpConnection>> connections_;
};

TEST_F(IdempotencyTest, ARepeatIsTheSameForEveryRouter) {
  Start({});
  EXPECT_EQ(Send(KeyHeader("k")).status, 200);
  const v1::Submit first = Last();
  EXPECT_EQ(first.keyed().key().size(), 64u);
  EXPECT_EQ(first.keyed().digest().size(), 64u);
  EXPECT_TRUE(first.request().idempotency_key().empty()) << "the hash is enough";
  Start({});  // another router and replica
  EXPECT_EQ(Send(KeyHeader("k")).status, 200);
  EXPECT_EQ(Last().keyed().SerializeAsString(), first.keyed().SerializeAsString());
  EXPECT_EQ(Last().request().sampling().seed(), first.request().sampling().seed());
  EXPECT_EQ(Send(KeyHeader("k"), R"({"model":"smol","prompt":"Hi","max_tokens":5})").status, 200);
  EXPECT_EQ(Last().keyed().key(), first.keyed().key());
  EXPECT_NE(Last().keyed().digest(), first.keyed().digest());
  EXPECT_EQ(Send(KeyHeader("other")).status, 200);
  EXPECT_NE(Last().keyed().key(), first.keyed().key());
  EXPECT_NE(Last().request().sampling().seed(), first.request().sampling().seed());
  EXPECT_EQ(Send("").status, 200);
  EXPECT_FALSE(Last().has_keyed());
}

// How an answer is delivered, and when, is not what is asked.
TEST_F(IdempotencyTest, StreamAndPriorityDoNotCount) {
  Start({});
  EXPECT_EQ(Send(KeyHeader("k")).status, 200);
  const std::string digest = Last().keyed().digest();
  for (const char* more : {R"("stream":true)", R"("priority":5)"}) {
    const std::string body = StrCat(R"({"model":"smol","prompt":"Hi","max_tokens":4,)", more, "}");
    EXPECT_EQ(Send(KeyHeader("k"), body).status, 200) << body;
    EXPECT_EQ(Last().keyed().digest(), digest) << body;
  }
}

TEST_F(IdempotencyTest, EachPromptAndChoiceHasItsOwnKey) {
  Start({});
  const char* body = R"({"model":"smol","prompt":["a","b"],"max_tokens":4,"n":2})";
  EXPECT_EQ(Send(KeyHeader("k"), body).status, 200);
  std::set<std::string> keys, digests;
  for (const v1::Submit& submit : harness_->engine().submits()) {
    keys.insert(submit.keyed().key());
    digests.insert(submit.keyed().digest());
  }
  EXPECT_EQ(keys.size(), 4u);
  EXPECT_EQ(digests.size(), 1u) << "of the whole request";
}

TEST_F(IdempotencyTest, AKeyIsItsTenants) {
  const KeysFile file(KeyLine("a", "one") + KeyLine("b", "two"));
  HarnessOptions options;
  options.api_keys_file = file.path();
  Start(options);
  EXPECT_EQ(Send(KeyHeader("k") + "X-Api-Key: one\r\n").status, 200);
  const std::string key = Last().keyed().key();
  EXPECT_EQ(Send(KeyHeader("k") + "X-Api-Key: two\r\n").status, 200);
  EXPECT_NE(Last().keyed().key(), key);
}

TEST_F(IdempotencyTest, ARepeatGoesWhereTheFirstWent) {
  HarnessOptions options;
  options.replicas = 3;
  Start(options);
  harness_->WaitAllReady();
  std::vector<size_t> counts(3);
  for (int key = 0; key < 12; ++key) {
    for (int repeat = 0; repeat < 2; ++repeat)
      EXPECT_EQ(Send(KeyHeader(StrCat("k", key))).status, 200);
  }
  size_t used = 0;
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(Submits(i) % 2, 0u) << i;
    used += Submits(i) > 0;
  }
  EXPECT_GE(used, 2u) << "keys spread";
}

// They ran at the only home that was there.
TEST_F(IdempotencyTest, BothHomesAreAskedWhetherTheyHaveIt) {
  HarnessOptions options;
  options.replicas = 2;
  Start(options);
  harness_->WaitAllReady();
  EXPECT_EQ(Send(KeyHeader("k")).status, 200);
  const size_t home = Submits(0) > 0 ? 0 : 1;
  harness_->engine(home).SetDraining(true);
  const std::string healthy = "flotilla_router_backend_healthy{replica=\"fake-";
  ASSERT_TRUE(harness_->WaitForMetric(StrCat(healthy, home, "\"}"), 0));
  for (int i = 0; i < 6; ++i) EXPECT_EQ(Send(KeyHeader(StrCat("m", i))).status, 200);
  harness_->engine(home).SetDraining(false);
  ASSERT_TRUE(harness_->WaitForMetric(StrCat(healthy, home, "\"}"), 1));
  for (int i = 0; i < 6; ++i) EXPECT_EQ(Send(KeyHeader(StrCat("m", i))).status, 200);
  EXPECT_EQ(Submits(home), 1u) << "the other one had them";
  EXPECT_EQ(Submits(1 - home), 12u);
}

// Else it would be computed again at the other one.
TEST_F(IdempotencyTest, WhoDoesNotAnswerInTimeIsAskedAgain) {
  HarnessOptions options;
  options.replicas = 2;
  options.find_keyed_ms = 2000;  // also for those that are not held
  Start(options);
  harness_->WaitAllReady();
  EXPECT_EQ(Send(KeyHeader("k")).status, 200);
  const size_t home = Submits(0) > 0 ? 0 : 1;
  FakeEngineService& holder = harness_->engine(home);
  holder.SetDraining(true);
  ASSERT_TRUE(harness_->WaitForMetric(
      StrCat("flotilla_router_backend_healthy{replica=\"fake-", home, "\"}"), 0));
  const int asked = holder.searches();
  holder.HoldSearches(1);
  EXPECT_EQ(Send(KeyHeader("k")).status, 200);
  EXPECT_GE(holder.searches(), asked + 2);
  EXPECT_EQ(Submits(home), 2u);
  holder.HoldSearches(1000);
  EXPECT_EQ(Send(KeyHeader("k")).status, 200) << "it does not wait for ever";
  EXPECT_EQ(Submits(1 - home), 1u);
  EXPECT_EQ(holder.searches(), asked + 4);
}

// It takes nothing new, but this is nothing new.
TEST_F(IdempotencyTest, ARepeatGoesToTheReplicaThatRunsItThoughThatDrains) {
  const size_t home = StartWithOneThatRuns();
  harness_->engine(home).SetDraining(true);
  ASSERT_TRUE(harness_->WaitForMetric(
      StrCat("flotilla_router_backend_healthy{replica=\"fake-", home, "\"}"), 0));
  SendOn(KeyHeader("k"));
  EXPECT_TRUE(harness_->engine(home).WaitForSubmits(2));
  SendOn(KeyHeader("other"));
  EXPECT_TRUE(harness_->engine(1 - home).WaitForSubmits(1));
  for (size_t i = 0; i < 2; ++i) harness_->engine(i).RunFreely();
  const std::string text = TextOf(connections_[0]->Read());
  EXPECT_EQ(TextOf(connections_[1]->Read()), text);
  EXPECT_EQ(connections_[2]->Read().status, 200);
  EXPECT_EQ(Submits(1 - home), 1u);
}

// Another router may have it from the same replica.
TEST_F(IdempotencyTest, WhatMovesFromAReplicaThatRecoversIsNotAbortedThere) {
  const size_t home = StartWithOneThatRuns();
  harness_->engine(home).SetRecovering(true);
  harness_->engine(1 - home).RunFreely();
  EXPECT_EQ(connections_[0]->Read().status, 200);
  EXPECT_TRUE(harness_->engine(home).WaitFor([&] { return !harness_->engine(home).has_live(); }));
  EXPECT_EQ(harness_->engine(home).aborts(), 0u);
}

// Its replica is lost: those who repeat it later can be given all of it where it went on.
TEST_F(IdempotencyTest, WhatAResumeDoesNotTellIsComputedFromTheStart) {
  for (const bool logprobs : {false, true}) {
    HarnessOptions options;
    options.replicas = 2;
    Start(options);
    connections_.clear();
    const std::string body = StrCat(R"({"model":"smol","prompt":"Hi","max_tokens":30,"seed":1)",
                                    logprobs ? R"(,"logprobs":2})" : "}");
    const HttpAnswer whole = Send("", body);
    const size_t before[] = {Submits(0), Submits(1)};
    for (size_t i = 0; i < 2; ++i) harness_->engine(i).Hold();
    connections_.push_back(std::make_unique<HttpConnection>(harness_->port()));
    connections_[0]->Send(PostText("/v1/completions", body, KeyHeader("k")));
    while (Submits(0) + Submits(1) < 2) {
    }
    const size_t home = Submits(0) > before[0] ? 0 : 1;
    harness_->engine(1 - home).RunFreely();
    FakeEngineService& first = harness_->engine(home);
    first.Release(9);
    ASSERT_TRUE(first.WaitFor([&] { return first.permits() == 0; }));
    ASSERT_TRUE(harness_->WaitForMetric("flotilla_router_ttft_seconds_count", 2));
    first.Stop();
    const HttpAnswer got = connections_[0]->Read();
    ASSERT_EQ(got.status, 200);
    EXPECT_EQ(ParseOrFail(got.body).at("choices"), ParseOrFail(whole.body).at("choices"));
    const v1::Submit submit = Last(1 - home);
    EXPECT_TRUE(submit.has_keyed());
    EXPECT_TRUE(!logprobs || submit.resume_size() == 0);
  }
}

TEST_F(IdempotencyTest, ItGoesOnWhenItsClientLeaves) {
  Start({});
  harness_->engine().Hold();
  {
    HttpConnection connection(harness_->port());
    connection.Send(PostText("/v1/completions", kBody, KeyHeader("k")));
    ASSERT_TRUE(harness_->engine().WaitForSubmits(1));
  }
  ASSERT_TRUE(harness_->WaitForMetric("flotilla_router_client_disconnects_total", 1));
  EXPECT_EQ(harness_->engine().active(), 1u);
  EXPECT_EQ(harness_->engine().aborts(), 0u);
  {
    HttpConnection connection(harness_->port());
    connection.Send(PostText("/v1/completions", kBody));
    ASSERT_TRUE(harness_->engine().WaitForSubmits(2));
  }
  EXPECT_TRUE(harness_->engine().WaitForAborts(1)) << "others end with their clients";
}

TEST_F(IdempotencyTest, AbortEndsItAlsoWhenItsClientHasLeft) {
  Start({});
  harness_->engine().Hold();
  auto stub = v1::Inference::NewStub(grpc::CreateChannel(
      StrCat("127.0.0.1:", harness_->app().grpc_port()), grpc::InsecureChannelCredentials()));
  const auto abort = [&](const std::string& id) {
    grpc::ClientContext context;
    v1::AbortRequest request;
    request.set_request_id(id);
    v1::AbortResponse response;
    EXPECT_TRUE(stub->Abort(&context, request, &response).ok());
  };
  HttpConnection stays(harness_->port()), leaves(harness_->port());
  const auto send = [](HttpConnection* connection, std::string_view key, std::string_view id) {
    connection->Send(
        PostText("/v1/completions", kBody, StrCat(KeyHeader(key), "X-Request-Id: ", id, "\r\n")));
  };
  send(&stays, "k", "mine");
  send(&leaves, "m", "left");
  ASSERT_TRUE(harness_->engine().WaitForSubmits(2));
  leaves.Close();
  ASSERT_TRUE(harness_->WaitForMetric("flotilla_router_client_disconnects_total", 1));
  abort("left");
  EXPECT_TRUE(harness_->engine().WaitForAborts(1));
  abort("mine");
  EXPECT_TRUE(harness_->engine().WaitForAborts(2));
  EXPECT_EQ(stays.Read().status, 200);
}

// What nobody waits for any more is still computed, and its tenant's.
TEST_F(IdempotencyTest, ItKeepsItsPlaceWhenItsClientLeaves) {
  const KeysFile file(KeyLine("a", "one", "concurrency=1 tokens-per-minute=1000"));
  HarnessOptions options;
  options.api_keys_file = file.path();
  Start(options);
  harness_->engine().Hold();
  const std::string key = "X-Api-Key: one\r\n";
  {
    HttpConnection connection(harness_->port());
    connection.Send(PostText(
        "/v1/completions", R"({"model":"smol","prompt":"Hi","max_tokens":1500,"ignore_eos":true})",
        KeyHeader("k") + key));
    ASSERT_TRUE(harness_->engine().WaitForSubmits(1));
  }
  ASSERT_TRUE(harness_->WaitForMetric("flotilla_router_client_disconnects_total", 1));
  EXPECT_EQ(ErrorField(Send(key), "message"),
            "Your limit of 1 requests at once is reached; try again later.");
  harness_->engine().RunFreely();
  ASSERT_TRUE(harness_->engine().WaitFor([&] { return !harness_->engine().has_live(); }));
  while (ErrorField(Send(key), "message") !=
         "Your limit of 1000 tokens a minute is reached; try again later.") {
  }
}

// Another one has room, but a repeat would not look there. (Which are a key's homes is not known
// here, so there are many.)
TEST_F(IdempotencyTest, ItWaitsForItsHomes) {
  StartWithQueue();
  const auto arrived = [&] {
    return Submits(0) + Submits(1) + Submits(2) + static_cast<size_t>(Queued());
  };
  for (size_t i = 0; i < 3; ++i) harness_->engine(i).Hold();
  for (size_t i = 1; i < 3; ++i) {
    SendOn("");
    while (arrived() < i) {
    }
  }
  constexpr int kKeys = 12;
  for (int i = 0; i < 2 * kKeys; ++i) SendOn(KeyHeader(StrCat("k", i % kKeys)));
  while (arrived() < 2 + 2 * kKeys) {
  }
  for (size_t i = 0; i < 3; ++i) harness_->engine(i).RunFreely();
  for (const auto& connection : connections_) EXPECT_EQ(connection->Read().status, 200);
  std::map<std::string, std::set<size_t>> ran;
  for (size_t i = 0; i < 3; ++i) {
    for (const v1::Submit& submit : harness_->engine(i).submits()) {
      if (submit.has_keyed()) ran[submit.keyed().key()].insert(i);
    }
  }
  EXPECT_EQ(ran.size(), static_cast<size_t>(kKeys));
  for (const auto& [key, replicas] : ran) EXPECT_EQ(replicas.size(), 1u) << "a repeat finds it";
}

// Who waits for a home that is busy keeps no other replica from those behind it.
TEST_F(IdempotencyTest, ItHoldsUpNobodyElse) {
  StartWithQueue();
  for (size_t i = 0; i < 3; ++i) harness_->engine(i).Hold();
  for (size_t i = 1; i <= 3; ++i) {
    SendOn("");
    while (Submits(0) + Submits(1) + Submits(2) < i) {
    }
  }
  constexpr int kKeys = 40;  // a third of them, so some, have homes without the first replica
  for (int i = 0; i < kKeys; ++i) SendOn(KeyHeader(StrCat("k", i)));
  while (Queued() < kKeys) {
  }
  SendOn("");
  while (Queued() < kKeys + 1) {
  }
  harness_->engine(0).RunFreely();
  EXPECT_EQ(connections_.back()->Read().status, 200);
  EXPECT_EQ(Submits(1) + Submits(2), 2u) << "the others still run their first";
  EXPECT_GT(Queued(), 0) << "some wait for the others";
  for (size_t i = 1; i < 3; ++i) harness_->engine(i).RunFreely();
  connections_.pop_back();
  for (const auto& connection : connections_) EXPECT_EQ(connection->Read().status, 200);
}

TEST_F(IdempotencyTest, AnotherBodyUnderTheKeyIsA422) {
  Start({});
  harness_->engine().RefuseNext(1, 6 /* ALREADY_EXISTS */, "idempotency_key: it was used");
  const HttpAnswer answer = Send(KeyHeader("k"));
  EXPECT_EQ(answer.status, 422);
  EXPECT_EQ(ErrorField(answer, "type"), "invalid_request_error");
  EXPECT_THAT(ErrorField(answer, "message"), HasSubstr("it was used"));
}

constexpr const char* kTwoPrompts = R"({"model":"smol","prompt":["Hi","Ho"],"max_tokens":4})";

// Another request may have asked for the same, and is given it; not if the key is another's.
TEST_F(IdempotencyTest, WhatFailsInPartLeavesTheOtherPartToOthers) {
  Start({});
  harness_->engine().Hold();
  SendOn(KeyHeader("k"), kTwoPrompts);
  ASSERT_TRUE(harness_->engine().WaitForSubmits(2));
  harness_->engine().FailOne(10 /* ABORTED */, "idempotency_key: too large to be repeated");
  EXPECT_EQ(connections_[0]->Read().status, 409);
  EXPECT_TRUE(harness_->engine().WaitFor([&] { return !harness_->engine().has_live(); }));
  EXPECT_EQ(harness_->engine().aborts(), 0u);
  SendOn(KeyHeader("m"), kTwoPrompts);
  ASSERT_TRUE(harness_->engine().WaitForSubmits(4));
  harness_->engine().FailOne(6 /* ALREADY_EXISTS */, "idempotency_key: it was used");
  EXPECT_EQ(connections_[1]->Read().status, 422);
  EXPECT_TRUE(harness_->engine().WaitForAborts(1));
}

TEST_F(IdempotencyTest, ABadKeyIsRefused) {
  Start({});
  for (const std::string& key :
       {std::string(), std::string(256, 'x'), std::string("a b"), std::string("\xC3\xA9")}) {
    const HttpAnswer answer = Send(KeyHeader(key));
    EXPECT_EQ(answer.status, 400) << key;
    EXPECT_EQ(ErrorField(answer, "param"), "Idempotency-Key");
  }
  EXPECT_EQ(Submits(0), 0u);
}

TEST_F(IdempotencyTest, ARepeatNeedsNoRoom) {
  HarnessOptions options;
  options.max_inflight_per_replica = 1;
  const size_t home = StartWithOneThatRuns(options);
  HttpConnection other(harness_->port()), repeat(harness_->port());
  other.Send(PostText("/v1/completions", kBody));
  ASSERT_TRUE(harness_->engine(1 - home).WaitForSubmits(1));
  EXPECT_EQ(Send("").status, 429);
  repeat.Send(PostText("/v1/completions", kBody, KeyHeader("k")));
  EXPECT_TRUE(harness_->engine(home).WaitForSubmits(2));
  for (size_t i = 0; i < 2; ++i) harness_->engine(i).RunFreely();
  for (HttpConnection* connection : {connections_[0].get(), &other, &repeat})
    EXPECT_EQ(connection->Read().status, 200);
}

TEST_F(IdempotencyTest, TheSameByGrpc) {
  Start({});
  auto stub = v1::Inference::NewStub(grpc::CreateChannel(
      StrCat("127.0.0.1:", harness_->app().grpc_port()), grpc::InsecureChannelCredentials()));
  const auto generate = [&](const std::string& key) {
    grpc::ClientContext context;
    v1::GenerateRequest request;
    request.set_text("Hi");
    request.set_idempotency_key(key);
    request.mutable_stopping()->set_max_tokens(4);
    v1::GenerateResponse response;
    auto reader = stub->Generate(&context, request);
    while (reader->Read(&response)) {
    }
    return reader->Finish();
  };
  EXPECT_TRUE(generate("k").ok());
  const std::string keyed = Last().keyed().SerializeAsString();
  EXPECT_FALSE(keyed.empty());
  EXPECT_TRUE(generate("k").ok());
  EXPECT_EQ(Last().keyed().SerializeAsString(), keyed);
  EXPECT_EQ(generate(std::string(256, 'x')).error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  harness_->engine().RefuseNext(1, 6, "idempotency_key: it was used");
  EXPECT_EQ(generate("k").error_code(), grpc::StatusCode::ALREADY_EXISTS);
}

}  // namespace
}  // namespace flotilla
