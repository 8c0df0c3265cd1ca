// A router that is told to stop: what runs ends as it should, and who still comes is served for a
// while.
#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <thread>

#include "flotilla/v1/inference.grpc.pb.h"
#include "tests/router/router_harness.h"

namespace flotilla {
namespace {

constexpr const char* kBody = R"({"model":"smol","prompt":"Hi","max_tokens":2,"seed":1})";
constexpr const char* kStream =
    R"({"model":"smol","prompt":"Hi","max_tokens":50,"seed":1,"stream":true})";

// What has been generated when the router is told to stop is sent to its last byte.
TEST(DrainTest, DrainSendsAnswersToTheirEnd) {
  HarnessOptions options;
  options.engine.max_model_len = 1'000'000;
  RouterHarness harness(options);
  const std::string body =  // the answer is longer than what the kernel takes of it
      R"({"model":"smol","prompt":"Hi","max_tokens":12000,"logprobs":20,"ignore_eos":true})";
  HttpConnection slow(harness.port(), /*receive_buffer_bytes=*/4096);
  slow.Send(PostText("/v1/completions", body));
  ASSERT_TRUE(harness.WaitForMetricAtLeast("flotilla_router_stream_buffer_bytes", 1));
  std::thread drain([&] { harness.app().Drain(); });
  while (Get(harness.port(), "/health/ready").status != 503) {
  }
  const HttpAnswer answer = slow.Read();
  EXPECT_EQ(answer.status, 200);
  EXPECT_EQ(answer.body.back(), '}');
  drain.join();
}

TEST(DrainTest, DrainFinishesStreamsAndRefusesNewOnes) {
  RouterHarness harness;
  harness.engine().Hold();
  HttpConnection stream(harness.port()), later(harness.port()), idle(harness.port());
  idle.Send(GetText("/version"));
  EXPECT_EQ(idle.Read().status, 200);
  stream.Send(PostText("/v1/completions", kStream));
  later.Send(
      StrCat("POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
             "Expect: 100-continue\r\nContent-Length: ",
             std::string(kBody).size(), "\r\n\r\n"));
  EXPECT_EQ(later.Read().status, 100);  // so it is no longer idle
  ASSERT_TRUE(harness.engine().WaitForSubmits(1));
  std::thread drain([&] { harness.app().Drain(); });
  EXPECT_TRUE(idle.ReadsEof()) << "idle connections are closed at once";
  EXPECT_EQ(Get(harness.port(), "/health/ready").status, 503);
  later.Send(kBody);
  EXPECT_EQ(later.Read().status, 503);
  harness.engine().RunFreely();
  EXPECT_EQ(Events(stream.Read().body).back(), "[DONE]");
  drain.join();
}

// A balancer takes a while to know: who comes meanwhile is served, and nobody is cut off.
TEST(DrainTest, WhileItLingersRequestsAreServedAndConnectionsLeave) {
  HarnessOptions options;
  options.drain_grace_ms = options.drain_linger_ms = 600'000;
  RouterHarness harness(options);
  HttpConnection kept(harness.port());
  kept.Send(GetText("/version"));
  EXPECT_EQ(kept.Read().headers.count("connection"), 0u);
  std::thread drain([&] { harness.app().Drain(); });
  while (Get(harness.port(), "/health/ready").status != 503) {
  }
  EXPECT_EQ(harness.Complete(std::string(kBody)).status, 200);  // a new connection
  kept.Send(PostText("/v1/completions", kBody));
  const HttpAnswer answer = kept.Read();
  EXPECT_EQ(answer.status, 200);
  EXPECT_EQ(answer.headers.at("connection"), "close");
  EXPECT_TRUE(kept.ReadsEof());
  drain.join();  // nobody is left, so it does not last ten minutes
}

TEST(DrainTest, WhoStaysIdleIsClosedWhenItHasLingered) {
  HarnessOptions options;
  options.drain_linger_ms = 50;
  RouterHarness harness(options);
  HttpConnection idle(harness.port());
  idle.Send(GetText("/version"));
  EXPECT_EQ(idle.Read().status, 200);
  harness.app().Drain();
  EXPECT_TRUE(idle.ReadsEof());
}

TEST(DrainTest, WhatRunsWhenTheGraceEndsFailsAndIsAborted) {
  HarnessOptions options;
  options.drain_grace_ms = 50;
  RouterHarness harness(options);
  harness.engine().Hold();
  HttpConnection whole(harness.port()), stream(harness.port()), keyed(harness.port());
  stream.Send(PostText("/v1/completions", kStream));
  ASSERT_TRUE(harness.engine().WaitForSubmits(1));
  harness.engine().Release(1);
  EXPECT_THAT(stream.ReadUntil("data: "), testing::HasSubstr("200 OK"));
  whole.Send(PostText("/v1/completions", kBody));
  keyed.Send(PostText("/v1/completions", kBody, "Idempotency-Key: k\r\n"));
  const auto stub = v1::Inference::NewStub(grpc::CreateChannel(
      StrCat("127.0.0.1:", harness.app().grpc_port()), grpc::InsecureChannelCredentials()));
  grpc::ClientContext context;
  v1::GenerateRequest request;
  request.set_text("Hi");
  const auto call = stub->Generate(&context, request);
  ASSERT_TRUE(harness.engine().WaitForSubmits(4));
  std::thread drain([&] { harness.app().Drain(); });
  for (HttpConnection* each : {&whole, &keyed}) {
    const HttpAnswer answer = each->Read();
    EXPECT_EQ(answer.status, 503);
    EXPECT_EQ(answer.headers.at("retry-after"), "1");
    EXPECT_EQ(ErrorField(answer, "message"), "This router is shutting down; try again.");
  }
  EXPECT_THAT(stream.ReadUntil("\r\n0\r\n\r\n"),
              testing::HasSubstr(
                  R"(data: {"error":{"message":"This router is shutting down; try again.")"));
  v1::GenerateResponse response;
  EXPECT_FALSE(call->Read(&response));
  const grpc::Status status = call->Finish();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(status.error_message(), "This router is shutting down; try again.");
  drain.join();
  ASSERT_TRUE(harness.engine().WaitFor([&] { return !harness.engine().has_live(); }));
  EXPECT_EQ(harness.engine().aborts(), 3u) << "the keyed one is left there, where it goes on";
}

// Who does not read can't be told, and keeps nobody waiting.
TEST(DrainTest, WhoDoesNotReadIsCutOffSoonAfterTheGrace) {
  HarnessOptions options;
  options.drain_grace_ms = 50;
  options.engine.max_model_len = 1'000'000;
  RouterHarness harness(options);
  HttpConnection slow(harness.port(), /*receive_buffer_bytes=*/4096);
  slow.Send(PostText(
      "/v1/completions",
      R"({"model":"smol","prompt":"Hi","max_tokens":12000,"logprobs":20,"ignore_eos":true})"));
  ASSERT_TRUE(harness.WaitForMetricAtLeast("flotilla_router_stream_buffer_bytes", 1));
  harness.app().Drain();
  EXPECT_EQ(harness.Metric("flotilla_router_stream_buffer_bytes"), 0);
}

}  // namespace
}  // namespace flotilla
