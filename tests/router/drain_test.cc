// A router that is told to stop: what runs ends as it should, and who still comes is served for a
// while.
#include <gtest/gtest.h>

#include <thread>

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

}  // namespace
}  // namespace flotilla
