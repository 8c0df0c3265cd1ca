// The header X-Request-Timeout-Ms: a deadline over HTTP.
#include "router/base/request_timeout.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>

#include "tests/router/router_harness.h"

namespace flotilla {
namespace {

constexpr const char* kDepth = "flotilla_router_admission_queue_depth";

struct Call {
  const char* path;
  const char* body;
};
constexpr Call kCompletion = {"/v1/completions",
                              R"({"model":"smol","prompt":"Hi","max_tokens":4,"seed":1})"};
constexpr Call kEmbedding = {"/v1/embeddings", R"({"model":"smol","input":"Hi"})"};
constexpr Call kCalls[] = {
    kCompletion,
    {"/v1/chat/completions",
     R"({"model":"smol","max_tokens":4,"messages":[{"role":"user","content":"Hi"}]})"},
    {"/v1/responses", R"({"model":"smol","max_output_tokens":16,"input":"Hi"})"},
    {"/v1/messages",
     R"({"model":"smol","max_tokens":4,"messages":[{"role":"user","content":"Hi"}]})"},
    kEmbedding,
};

std::string Header(std::string_view value) {
  return StrCat("X-Request-Timeout-Ms: ", value, "\r\n");
}

class RequestTimeoutTest : public testing::Test {
 protected:
  void Start(const HarnessOptions& options = {}) {
    harness_ = std::make_unique<RouterHarness>(options);
  }
  FakeEngineService& engine() { return harness_->engine(); }
  HttpAnswer Send(const Call& call, std::string_view headers) {  // any thread
    HttpConnection connection(harness_->port());
    connection.Send(PostText(call.path, call.body, headers));
    return connection.Read();
  }
  // What the last request's replica was told.
  int64_t LastDeadlineMs() { return engine().submits().back().request().deadline_ms(); }

  std::unique_ptr<RouterHarness> harness_;
};

TEST_F(RequestTimeoutTest, IsTheDeadlineOfEveryApi) {
  Start();
  for (const Call& call : kCalls) {
    EXPECT_EQ(Send(call, Header("1234567")).status, 200) << call.path;
    EXPECT_LE(LastDeadlineMs(), 1'234'567) << call.path;
    EXPECT_GT(LastDeadlineMs(), 1'000'000) << "less what is over";
  }
  EXPECT_EQ(engine().submits().size(), std::size(kCalls));
}

// What they call a timeout is their own patience, in seconds.
TEST_F(RequestTimeoutTest, WhatClientLibrariesAndProxiesSendIsNone) {
  Start();
  EXPECT_EQ(Send(kCompletion,
                 "x-stainless-read-timeout: 1\r\nx-envoy-expected-rq-timeout-ms: 1\r\n"
                 "x-request-timeout: 1\r\n")
                .status,
            200);
  EXPECT_GT(LastDeadlineMs(), 1'000'000);
}

TEST_F(RequestTimeoutTest, ABadOneIsRefusedAndNamed) {
  HarnessOptions options;
  options.max_request_ms = 5000;
  Start(options);
  for (const Call& call : kCalls) {
    for (const char* bad :
         {"", "0", "-1", "+1", "1.5", "1e3", "0x10", "soon", "5001", "99999999999999999999"}) {
      const HttpAnswer answer = Send(call, Header(bad));
      EXPECT_EQ(answer.status, 400) << call.path << " " << bad;
      EXPECT_THAT(ErrorField(answer, "message"),
                  testing::HasSubstr("'X-Request-Timeout-Ms' must be a whole number of "
                                     "milliseconds from 1 to 5000"));
    }
  }
  EXPECT_EQ(ErrorField(Send(kCompletion, Header("0")), "param"), kRequestTimeoutHeader);
  EXPECT_EQ(Send(kCompletion, Header("10") + Header("10")).status, 400) << "which of them?";
  EXPECT_TRUE(engine().submits().empty());
  EXPECT_EQ(Send(kCompletion, Header("5000")).status, 200);
}

TEST_F(RequestTimeoutTest, ItEndsARequestThatWaits) {
  HarnessOptions options;
  options.max_inflight_per_replica = 1;
  options.admission_queue = 5;
  Start(options);
  engine().Hold();
  auto running = std::async(std::launch::async, [&] { return Send(kCompletion, ""); });
  ASSERT_TRUE(engine().WaitForSubmits(1));
  const HttpAnswer late = Send(kCompletion, Header("30"));
  EXPECT_EQ(late.status, 200);
  EXPECT_EQ(ParseOrFail(late.body).at("choices").at(0).at("finish_reason"), "deadline");
  EXPECT_EQ(Send(kEmbedding, Header("30")).status, 504) << "there is no half of an embedding";
  EXPECT_TRUE(harness_->WaitForMetric(kDepth, 0));
  EXPECT_EQ(engine().submits().size(), 1u);
  engine().RunFreely();
  EXPECT_EQ(running.get().status, 200);
}

// Its replica ends it.
TEST_F(RequestTimeoutTest, ItEndsAStreamThatRuns) {
  Start();
  engine().Hold();
  HttpConnection connection(harness_->port());
  connection.Send(
      PostText("/v1/completions",
               R"({"model":"smol","prompt":"Hi","max_tokens":100,"seed":1,"stream":true})",
               Header("60000")));
  ASSERT_TRUE(engine().WaitForSubmits(1));
  EXPECT_LE(LastDeadlineMs(), 60'000);
  engine().Release(2);
  EXPECT_FALSE(connection.ReadUntil("\"text\"").empty());
  engine().EndLiveByDeadline();
  EXPECT_FALSE(connection.ReadUntil("\"finish_reason\":\"deadline\"").empty());
  EXPECT_FALSE(connection.ReadUntil("[DONE]").empty());
}

}  // namespace
}  // namespace flotilla
