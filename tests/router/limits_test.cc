// What the router holds at most for all clients together, and what it says when that is reached.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>

#include "tests/router/router_harness.h"

namespace flotilla {
namespace {

constexpr const char* kStream =
    R"({"model":"smol","prompt":"Hi","max_tokens":50,"seed":1,"stream":true})";

std::string PostHead(size_t length) {
  return StrCat("POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n",
                "Content-Length: ", length, "\r\n\r\n");
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
