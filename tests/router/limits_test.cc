// What the router holds at most for all clients together, and what it says when that is reached.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "tests/router/router_harness.h"

namespace flotilla {
namespace {

constexpr const char* kStream =
    R"({"model":"smol","prompt":"Hi","max_tokens":50,"seed":1,"stream":true})";

constexpr std::string_view kVersion = "GET /version HTTP/1.1\r\nHost: x\r\n\r\n";

std::string PostHead(size_t length) {
  return StrCat("POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n",
                "Content-Length: ", length, "\r\n\r\n");
}

TEST(LimitsTest, TooManyConnections) {
  HarnessOptions options;
  options.http.max_connections = 2;
  options.http.least_wait_ms = 60'000;
  RouterHarness harness(options);
  HttpConnection first(harness.port()), second(harness.port());
  first.Send(kVersion);
  second.Send(kVersion);
  EXPECT_EQ(first.Read().status, 200);
  EXPECT_EQ(second.Read().status, 200);
  HttpConnection third(harness.port());
  const HttpAnswer answer = third.Read();
  EXPECT_EQ(answer.status, 503);
  EXPECT_TRUE(answer.headers.contains("retry-after"));
  EXPECT_EQ(harness.Metric("flotilla_router_rejections_total{reason=\"max_connections\"}"), 1);
}

TEST(LimitsTest, ANewConnectionTakesThePlaceOfTheOneThatWaitsLongestForItsClient) {
  HarnessOptions options;
  options.http.max_connections = 2;
  options.http.least_wait_ms = 0;
  RouterHarness harness(options);
  HttpConnection half(harness.port()), kept(harness.port());
  half.Send(kVersion.substr(0, 10));
  kept.Send(kVersion);
  EXPECT_EQ(kept.Read().status, 200);
  HttpConnection third(harness.port());
  third.Send(kVersion);
  EXPECT_EQ(third.Read().status, 200);
  EXPECT_TRUE(half.ReadsEof());
  kept.Send(kVersion);
  EXPECT_EQ(kept.Read().status, 200) << "half of a request came before its last answer";
  EXPECT_EQ(harness.Metric("flotilla_router_rejections_total{reason=\"max_connections\"}"), 1);
}

TEST(LimitsTest, WhoIsBeingAnsweredMakesNoRoom) {
  HarnessOptions options;
  options.http.max_connections = 1;
  options.http.least_wait_ms = 0;
  RouterHarness harness(options);
  harness.engine().Hold();
  HttpConnection first(harness.port());
  first.Send(PostText("/v1/completions", R"({"model":"smol","prompt":"Hello","max_tokens":4})"));
  EXPECT_TRUE(harness.engine().WaitForSubmits(1));
  EXPECT_EQ(HttpConnection(harness.port()).Read().status, 503);
  harness.engine().RunFreely();
  EXPECT_EQ(first.Read().status, 200);
}

TEST(LimitsTest, BodiesTogetherAreBoundedUntilTheirAnswersBegin) {
  HarnessOptions options;
  options.http.max_body_bytes = 1 << 20;
  options.http.max_buffered_body_bytes = (1 << 20) + 1000;
  RouterHarness harness(options);
  auto waiting = std::make_unique<HttpConnection>(harness.port());
  waiting->Send(PostHead(1 << 20));  // and no body
  ASSERT_TRUE(harness.WaitForMetric("flotilla_router_http_buffered_body_bytes", 1 << 20));
  const HttpAnswer refused = harness.Complete(
      StrCat(R"({"model":"smol","max_tokens":1,"prompt":")", std::string(2000, 'a'), "\"}"));
  EXPECT_EQ(refused.status, 503);
  EXPECT_EQ(refused.headers.at("retry-after"), "1");
  EXPECT_EQ(harness.Metric("flotilla_router_rejections_total{reason=\"body_memory\"}"), 1);
  EXPECT_EQ(harness.Complete(R"({"model":"smol","prompt":"a","max_tokens":1})").status, 200)
      << "a small one still fits";
  waiting.reset();
  EXPECT_TRUE(harness.WaitForMetric("flotilla_router_http_buffered_body_bytes", 0));
}

// All the room that large ones may have is taken by who sends a header and no body.
TEST(LimitsTest, WhoHoldsRoomWithoutSendingKeepsNobodyOut) {
  HarnessOptions options;
  options.http.max_body_bytes = 1 << 20;
  options.http.max_buffered_body_bytes = 4 << 20;
  RouterHarness harness(options);
  std::vector<std::unique_ptr<HttpConnection>> idle;
  for (int i = 0; i < 8; ++i) {
    idle.push_back(std::make_unique<HttpConnection>(harness.port()));
    idle.back()->Send(PostHead(1 << 20));
  }
  ASSERT_TRUE(harness.WaitForMetric("flotilla_router_rejections_total{reason=\"body_memory\"}", 5));
  EXPECT_EQ(harness.Metric("flotilla_router_http_buffered_body_bytes"), 3 << 20);
  EXPECT_EQ(harness.Complete(R"({"model":"smol","prompt":"a","max_tokens":1})").status, 200);
  // Once it has kept a large one waiting for a second, one of them loses its room.
  const std::string large =
      StrCat(R"({"model":"smol","max_tokens":1,"prompt":")", std::string(600'000, 'a'), "\"}");
  HttpAnswer answer = harness.Complete(large);
  for (int i = 0; i < 400 && answer.status == 503; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    answer = harness.Complete(large);
  }
  EXPECT_EQ(answer.status, 400) << "it is read, and longer than the model takes";
  EXPECT_EQ(idle[0]->Read().status, 408);
  EXPECT_EQ(harness.Metric("flotilla_router_rejections_total{reason=\"timeout\"}"), 1);
}

// The time is over while reading it waits for --max-body-bytes-per-s.
TEST(LimitsTest, ABodyHasItsTimeAlsoWhenItsReadingPauses) {
  HarnessOptions options;
  options.http.max_body_bytes_per_s = 300'000;
  options.http.body_timeout_ms = 50;
  RouterHarness harness(options);
  HttpConnection connection(harness.port());
  connection.Send(StrCat(PostHead(400'000), std::string(200'000, ' ')));
  EXPECT_EQ(connection.Read().status, 408);
}

// Until it is here it may become as large as any.
TEST(LimitsTest, AChunkedBodyCountsAsWhatItIs) {
  HarnessOptions options;
  options.http.max_body_bytes = 1 << 20;
  options.http.max_buffered_body_bytes = (1 << 20) + 1000;
  RouterHarness harness(options);
  harness.engine().Hold();
  const std::string body = R"({"model":"smol","prompt":"a","max_tokens":1})";
  char size[8];
  std::snprintf(size, sizeof(size), "%zx", body.size());
  HttpConnection connection(harness.port());
  connection.Send(
      StrCat("POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
             "Transfer-Encoding: chunked\r\n\r\n",
             size, "\r\n", body, "\r\n0\r\n\r\n"));
  ASSERT_TRUE(harness.engine().WaitForSubmits(1));
  EXPECT_EQ(harness.Metric("flotilla_router_http_buffered_body_bytes"),
            static_cast<double>(body.size()));
  harness.engine().RunFreely();
  EXPECT_EQ(connection.Read().status, 200);
}

TEST(LimitsTest, RequestsInFlightAreBounded) {
  HarnessOptions options;
  options.max_requests = 2;
  RouterHarness harness(options);
  harness.engine().Hold();
  std::vector<std::future<HttpAnswer>> running;
  for (int i = 0; i < 2; ++i)
    running.push_back(std::async(std::launch::async, [&] { return harness.Complete(kStream); }));
  ASSERT_TRUE(harness.engine().WaitForSubmits(2));
  const HttpAnswer refused = harness.Complete(kStream);
  EXPECT_EQ(refused.status, 429);
  EXPECT_EQ(refused.headers.at("retry-after"), "1");
  EXPECT_THAT(ErrorField(refused, "message"), testing::HasSubstr("already has 2 requests"));
  EXPECT_EQ(harness.Metric("flotilla_router_rejections_total{reason=\"max_requests\"}"), 1);
  harness.engine().RunFreely();
  for (auto& answer : running) EXPECT_EQ(answer.get().status, 200);
  EXPECT_EQ(harness.Complete(kStream).status, 200);
}

TEST(LimitsTest, NoDeadlineIsLaterThanTheLimit) {
  HarnessOptions options;
  options.max_request_ms = 5000;
  RouterHarness harness(options);
  harness.Complete(kStream);
  const int64_t deadline_ms = harness.engine().submits()[0].request().deadline_ms();
  EXPECT_GE(deadline_ms, 1);
  EXPECT_LE(deadline_ms, 5000) << "less what is over";
}

}  // namespace
}  // namespace flotilla
