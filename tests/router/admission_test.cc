// The admission queue in a whole router: who waits, who is next, and what those hear that may not.
#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <future>
#include <optional>

#include "flotilla/v1/inference.grpc.pb.h"
#include "tests/router/keys_file.h"
#include "tests/router/router_harness.h"

namespace flotilla {
namespace {

constexpr const char* kDepth = "flotilla_router_admission_queue_depth";
constexpr const char* kWaits = "flotilla_router_admission_wait_seconds_count";

std::string Rejections(std::string_view reason) {
  return StrCat("flotilla_router_rejections_total{reason=\"", reason, "\"}");
}

std::string Body(std::string_view more = "") {
  return StrCat(R"({"model":"smol","prompt":"Hi","max_tokens":4,"seed":1)", more, "}");
}

// One request at a time for each replica.
HarnessOptions Queue(uint32_t places) {
  HarnessOptions options;
  options.max_inflight_per_replica = 1;
  options.admission_queue = places;
  return options;
}

class AdmissionTest : public ::testing::Test {
 protected:
  // Its replicas hold what they get.
  void Start(const HarnessOptions& options) {
    harness_ = std::make_unique<RouterHarness>(options);
    for (size_t i = 0; i < options.replicas; ++i) engine(i).Hold();
  }
  // Of tenants "a" and "b", whose keys are their names.
  void StartWithKeys(HarnessOptions options) {
    keys_file_.emplace(KeyLine("a", "a") + KeyLine("b", "b"));
    options.api_keys_file = keys_file_->path();
    Start(options);
  }
  FakeEngineService& engine(size_t i = 0) { return harness_->engine(i); }

  // Sent, and given to the replica as its `submits`-th.
  void Run(std::string_view body, size_t submits) {
    SendLater(body);
    ASSERT_TRUE(engine().WaitForSubmits(submits));
  }
  // Sent, and the `depth`-th in the queue.
  void Wait(std::string_view body, double depth) {
    SendLater(body);
    ASSERT_TRUE(harness_->WaitForMetric(kDepth, depth));
  }
  void SendLater(std::string_view body) {
    answers_.push_back(
        std::async(std::launch::async, [this, text = RequestText(body)] { return Ask(text); }));
  }
  HttpAnswer Send(std::string_view body) { return Ask(RequestText(body)); }
  std::string RequestText(std::string_view body) const {
    return PostText("/v1/completions", body, header_);
  }
  HttpAnswer Ask(std::string_view request) {  // any thread
    HttpConnection connection(harness_->port());
    connection.Send(request);
    return connection.Read();
  }
  void AllAnswered() {
    for (size_t i = 0; i < num_engines_; ++i) engine(i).RunFreely();
    for (auto& answer : answers_) {
      const HttpAnswer got = answer.get();
      EXPECT_EQ(got.status, 200) << got.body;
    }
    EXPECT_TRUE(harness_->WaitForMetric(kDepth, 0)) << "of one that is not among answers_";
  }
  // With a 429 that says so, the first that was counted for this reason.
  void ExpectRefused(const HttpAnswer& answer, std::string_view message, std::string_view reason) {
    EXPECT_EQ(answer.status, 429);
    EXPECT_THAT(ErrorField(answer, "message"), testing::HasSubstr(message));
    EXPECT_EQ(harness_->Metric(Rejections(reason)), 1);
  }
  std::vector<int> Priorities() {
    std::vector<int> out;
    for (const v1::Submit& submit : engine().submits()) out.push_back(submit.request().priority());
    return out;
  }
  std::unique_ptr<v1::Inference::Stub> Stub() {
    return v1::Inference::NewStub(grpc::CreateChannel(
        StrCat("127.0.0.1:", harness_->app().grpc_port()), grpc::InsecureChannelCredentials()));
  }

  std::optional<KeysFile> keys_file_;
  std::string header_;
  std::unique_ptr<RouterHarness> harness_;
  std::vector<std::future<HttpAnswer>> answers_;
  size_t num_engines_ = 1;
};

TEST_F(AdmissionTest, AllAreAnsweredTheHighestPriorityFirst) {
  Start(Queue(10));
  Run(Body(), 1);
  Wait(Body(R"(,"priority":-1)"), 1);
  Wait(Body(R"(,"priority":2)"), 2);
  Wait(Body(R"(,"priority":7)"), 3);
  EXPECT_EQ(engine().submits().size(), 1u);
  AllAnswered();
  EXPECT_EQ(Priorities(), (std::vector<int>{0, 7, 2, -1}));
  EXPECT_EQ(harness_->Metric(kWaits), 3);
}

TEST_F(AdmissionTest, AFullQueueIsA429WhoseRetryAfterIsMeasured) {
  Start(Queue(1));
  Run(Body(), 1);
  Wait(Body(), 1);
  const HttpAnswer refused = Send(Body());
  ExpectRefused(refused, "All replicas are busy", "admission_full");
  EXPECT_GE(std::stoi(refused.headers.at("retry-after")), 1);
  EXPECT_EQ(ErrorField(refused, "type"), "rate_limit_error");

  grpc::ClientContext context;
  v1::GenerateRequest request;
  request.set_text("Hi");
  const auto stub = Stub();
  auto reader = stub->Generate(&context, request);
  v1::GenerateResponse response;
  EXPECT_FALSE(reader->Read(&response));
  EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  AllAnswered();
  EXPECT_EQ(Send(Body()).status, 200);
}

TEST_F(AdmissionTest, WithoutAQueueALimitRefusesAtOnce) {
  Start(Queue(0));
  Run(Body(), 1);
  EXPECT_EQ(Send(Body()).status, 429);
  EXPECT_EQ(harness_->Metric(Rejections("admission_full")), 1);
  AllAnswered();
}

TEST_F(AdmissionTest, WhoWaitsTooLongIsRefused) {
  HarnessOptions options = Queue(5);
  options.admission_queue_timeout_ms = 20;
  Start(options);
  Run(Body(), 1);
  ExpectRefused(Send(Body()), "All replicas were busy", "admission_timeout");
  // The first of its prompts ends the second, whose time is over too.
  EXPECT_EQ(Send(R"({"model":"smol","prompt":["a","b"],"max_tokens":4})").status, 429);
  EXPECT_EQ(harness_->Metric(kDepth), 0);
  AllAnswered();
}

TEST_F(AdmissionTest, ADeadlineIsKeptInTheQueue) {
  HarnessOptions options = Queue(5);
  options.max_request_ms = 30;
  Start(options);
  Run(Body(), 1);
  const HttpAnswer late = Send(Body(R"(,"n":2)"));
  EXPECT_EQ(late.status, 200);
  const boost::json::value answer = ParseOrFail(late.body);
  for (const auto& choice : answer.at("choices").as_array())
    EXPECT_EQ(choice.at("finish_reason").as_string(), "deadline");
  EXPECT_EQ(answer.at("usage").at("completion_tokens").as_int64(), 0);
  EXPECT_EQ(engine().submits().size(), 1u);
  AllAnswered();
}

TEST_F(AdmissionTest, AClientThatLeavesLeavesTheQueue) {
  Start(Queue(5));
  Run(Body(), 1);
  auto connection = std::make_unique<HttpConnection>(harness_->port());
  connection->Send(PostText("/v1/completions", Body(R"(,"priority":9)")));
  ASSERT_TRUE(harness_->WaitForMetric(kDepth, 1));
  connection.reset();
  ASSERT_TRUE(harness_->WaitForMetric(kDepth, 0));
  Wait(Body(R"(,"priority":3)"), 1);
  AllAnswered();
  EXPECT_EQ(Priorities(), (std::vector<int>{0, 3}));
}

TEST_F(AdmissionTest, AbortReachesTheQueue) {
  Start(Queue(5));
  Run(Body(), 1);
  header_ = "x-request-id: mine\r\n";
  auto waiting = std::async(std::launch::async, [this] { return Send(Body()); });
  ASSERT_TRUE(harness_->WaitForMetric(kDepth, 1));
  grpc::ClientContext context;
  v1::AbortRequest abort;
  abort.set_request_id("mine");
  v1::AbortResponse aborted;
  EXPECT_TRUE(Stub()->Abort(&context, abort, &aborted).ok());
  EXPECT_TRUE(aborted.found());
  EXPECT_EQ(waiting.get().status, 200);
  EXPECT_EQ(harness_->Metric(kDepth), 0);
  EXPECT_EQ(engine().submits().size(), 1u);
  AllAnswered();
}

TEST_F(AdmissionTest, AStreamThatWaitsGetsComments) {
  HarnessOptions options = Queue(5);
  options.sse_keepalive_ms = 1;
  Start(options);
  Run(Body(), 1);
  HttpConnection connection(harness_->port());
  connection.Send(PostText("/v1/completions", Body(R"(,"stream":true)")));
  EXPECT_FALSE(connection.ReadUntil(": keep-alive\n\n").empty());
  EXPECT_EQ(harness_->Metric(kDepth), 1);
  EXPECT_EQ(engine().submits().size(), 1u);
  AllAnswered();
  EXPECT_FALSE(connection.ReadUntil("[DONE]").empty());
}

TEST_F(AdmissionTest, WhileNoReplicaIsReadyTheyWaitInOrder) {
  Start(Queue(5));
  engine().SetDraining(true);
  ASSERT_TRUE(harness_->WaitForMetric("flotilla_router_backend_healthy{replica=\"fake-0\"}", 0));
  Wait(Body(R"(,"priority":-1)"), 1);
  Wait(Body(R"(,"priority":1)"), 2);
  EXPECT_EQ(harness_->Metric("flotilla_router_requests_parked"), 0);
  engine().SetDraining(false);
  AllAnswered();
  EXPECT_EQ(Priorities(), (std::vector<int>{1, -1}));
}

TEST_F(AdmissionTest, WhoWaitsInVainForAnyReplicaHearsThat) {
  HarnessOptions options = Queue(5);
  options.admission_queue_timeout_ms = 20;
  Start(options);
  engine().SetDraining(true);
  ASSERT_TRUE(harness_->WaitForMetric("flotilla_router_backend_healthy{replica=\"fake-0\"}", 0));
  EXPECT_EQ(Send(Body()).status, 503);
  EXPECT_EQ(harness_->Metric(Rejections("no_replica")), 1);
}

// The replica says how many it takes; here one.
TEST_F(AdmissionTest, AReplicasOwnBoundsCountToo) {
  HarnessOptions options;
  options.admission_queue = 5;
  options.engine.max_queued_requests = 1;
  Start(options);
  Run(Body(), 1);
  Wait(Body(), 1);
  AllAnswered();
  EXPECT_EQ(engine().submits().size(), 2u);
}

TEST_F(AdmissionTest, WhatHasBegunPassesByTheLimit) {
  HarnessOptions options = Queue(5);
  options.replicas = num_engines_ = 2;
  Start(options);
  Run(Body(), 1);
  engine(0).Release(2);
  ASSERT_TRUE(harness_->WaitForMetric("flotilla_router_ttft_seconds_count", 1));
  SendLater(Body());
  ASSERT_TRUE(engine(1).WaitForSubmits(1));
  Wait(Body(), 1);
  engine(0).Stop();
  ASSERT_TRUE(engine(1).WaitForSubmits(2));
  EXPECT_EQ(harness_->Metric(kDepth), 1);
  num_engines_ = 0;
  engine(1).RunFreely();
  AllAnswered();
}

TEST_F(AdmissionTest, ChoicesGoTogetherAndKeepThePlaceUntilTheLastEnds) {
  Start(Queue(5));
  Run(Body(R"(,"n":3)"), 3);
  Wait(Body(R"(,"n":2)"), 1);
  EXPECT_EQ(engine().submits().size(), 3u);
  AllAnswered();
  EXPECT_EQ(engine().submits().size(), 5u);
}

// While it is asked where it runs already, nobody takes its place or the room that it was told of.
TEST_F(AdmissionTest, AKeyedOneKeepsItsPlaceUntilItIsDispatched) {
  Start(Queue(2));
  Run(Body(), 1);
  for (const char* key : {"k", "m"}) {
    header_ = StrCat("Idempotency-Key: ", key, "\r\n");
    Wait(Body(), static_cast<double>(answers_.size()));
  }
  header_.clear();
  const int searches = engine().searches();
  engine().HoldSearches(1);
  engine().Release(4);
  ASSERT_TRUE(engine().WaitFor([&] { return engine().searches() > searches; }));
  ASSERT_EQ(answers_.front().get().status, 200);
  answers_.erase(answers_.begin());
  ExpectRefused(Send(Body()), "All replicas are busy", "admission_full");
  EXPECT_EQ(harness_->Metric(kDepth), 2);
  EXPECT_EQ(harness_->Metric(kWaits), 0) << "none has left";
  EXPECT_EQ(engine().searches(), searches + 1) << "there is room for one";
  engine().HoldSearches(0);
  ASSERT_TRUE(engine().WaitForSubmits(2));
  ASSERT_TRUE(harness_->WaitForMetric(kDepth, 1));
  AllAnswered();
  EXPECT_EQ(harness_->Metric(kWaits), 2);
  EXPECT_EQ(engine().submits().size(), 3u);
}

TEST_F(AdmissionTest, WhoLeavesWhileItIsSearchedForGivesItsRoomBack) {
  Start(Queue(2));
  Run(Body(), 1);
  HttpConnection connection(harness_->port());
  connection.Send(PostText("/v1/completions", Body(), "Idempotency-Key: k\r\n"));
  ASSERT_TRUE(harness_->WaitForMetric(kDepth, 1));
  Wait(Body(R"(,"priority":-1)"), 2);
  const int searches = engine().searches();
  engine().HoldSearches(1);
  engine().Release(4);
  ASSERT_TRUE(engine().WaitFor([&] { return engine().searches() > searches; }));
  EXPECT_EQ(harness_->Metric(kDepth), 2);
  connection.Close();
  ASSERT_TRUE(engine().WaitForSubmits(2));
  engine().HoldSearches(0);
  AllAnswered();
}

// As others that wait for a replica without a queue.
TEST_F(AdmissionTest, WithoutAQueueAKeyedOneThatWaitedForAReplicaWaitsOn) {
  Start(Queue(0));
  engine().SetDraining(true);
  ASSERT_TRUE(harness_->WaitForMetric("flotilla_router_backend_healthy{replica=\"fake-0\"}", 0));
  for (const char* key : {"k", "m"}) {
    header_ = StrCat("Idempotency-Key: ", key, "\r\n");
    SendLater(Body());
  }
  ASSERT_TRUE(harness_->WaitForMetric("flotilla_router_requests_parked", 2));
  engine().SetDraining(false);
  ASSERT_TRUE(engine().WaitForSubmits(1));
  const int searches = engine().searches();
  ASSERT_TRUE(engine().WaitFor([&] { return engine().searches() > searches + 1; }));
  EXPECT_EQ(engine().submits().size(), 1u);
  AllAnswered();
}

TEST_F(AdmissionTest, TenantsTakeTurnsAndHaveTheirOwnBound) {
  HarnessOptions options = Queue(5);
  options.admission_queue_per_tenant = 2;
  StartWithKeys(options);
  header_ = "x-api-key: a\r\n";
  Run(Body(), 1);
  Wait(Body(), 1);
  Wait(Body(), 2);
  ExpectRefused(Send(Body()), "your requests", "admission_tenant");
  header_ = "x-api-key: b\r\n";
  Wait(Body(), 3);
  AllAnswered();
  std::vector<std::string> tenants;
  for (const v1::Submit& submit : engine().submits()) tenants.push_back(submit.tenant());
  EXPECT_EQ(tenants, (std::vector<std::string>{"a", "a", "b", "a"}));
}

}  // namespace
}  // namespace flotilla
