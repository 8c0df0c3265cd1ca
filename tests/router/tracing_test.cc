// Traces of requests: whose they are, what their spans say, and that requests never wait for them.
#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <boost/json.hpp>
#include <future>
#include <set>

#include "common/base/clock.h"
#include "flotilla/v1/inference.grpc.pb.h"
#include "router/base/trace_context.h"
#include "router/observe/otlp_spans.h"
#include "tests/router/router_harness.h"
#include "tests/support/collector.h"

namespace flotilla {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr char kTrace[] = "4bf92f3577b34da6a3ce929d0e0e4736";
constexpr char kSpan[] = "00f067aa0ba902b7";

TEST(TraceparentTest, ReadsWhatTheStandardAllows) {
  const auto sampled = ParseTraceparent(StrCat("00-", kTrace, "-", kSpan, "-01"));
  ASSERT_TRUE(sampled.has_value());
  EXPECT_EQ(*sampled, (TraceContext{kTrace, kSpan, true}));
  EXPECT_FALSE(ParseTraceparent(StrCat("00-", kTrace, "-", kSpan, "-00"))->sampled);
  EXPECT_TRUE(ParseTraceparent(StrCat("00-", kTrace, "-", kSpan, "-0f"))->sampled);
  EXPECT_TRUE(ParseTraceparent(StrCat("cc-", kTrace, "-", kSpan, "-01-what.the.future")));
}

TEST(TraceparentTest, PassesOverWhatIsNone) {
  const std::string good = StrCat("00-", kTrace, "-", kSpan, "-01");
  for (size_t length = 0; length < good.size(); ++length)
    EXPECT_FALSE(ParseTraceparent(good.substr(0, length))) << length;
  for (size_t at = 0; at < good.size(); ++at) {
    for (const char c : {'G', 'A', '_', ' ', '\0'}) {
      std::string bad = good;
      bad[at] = c;
      EXPECT_FALSE(ParseTraceparent(bad)) << bad;
    }
  }
  EXPECT_FALSE(ParseTraceparent(good + "-more")) << "of version 00 there is no more";
  EXPECT_FALSE(ParseTraceparent("cc" + good.substr(2) + "more"));
  EXPECT_FALSE(ParseTraceparent("ff" + good.substr(2)));
  EXPECT_FALSE(ParseTraceparent(StrCat("00-", std::string(32, '0'), "-", kSpan, "-01")));
  EXPECT_FALSE(ParseTraceparent(StrCat("00-", kTrace, "-", std::string(16, '0'), "-01")));
}

TEST(SampleTraceTest, TheCallerDecidesElseTheRatio) {
  const std::string yes = StrCat("00-", kTrace, "-", kSpan, "-01");
  const std::string no = StrCat("00-", kTrace, "-", kSpan, "-00");
  EXPECT_EQ(SampleTrace(yes, 0)->trace_id, kTrace);
  EXPECT_FALSE(SampleTrace(no, 1));
  EXPECT_FALSE(SampleTrace("", 0));
  std::set<std::string> ids;
  int traced = 0;
  for (int i = 0; i < 2000; ++i) {
    const auto trace = SampleTrace("", 0.5);
    if (!trace) continue;
    ++traced;
    EXPECT_EQ(trace->trace_id.size(), 32u);
    EXPECT_EQ(trace->parent_span_id, "");
    ids.insert(trace->trace_id);
  }
  EXPECT_NEAR(traced, 1000, 150);
  EXPECT_EQ(ids.size(), static_cast<size_t>(traced));
}

FinishedRequest Finished() {
  FinishedRequest request;
  request.request_id = "req_\"1\"";
  request.model = "smol";
  request.replica = "r0";
  request.outcome = "stop";
  request.arrival_unix_ms = 1'700'000'000'000;
  request.arrival_ns = 1000 * kNsPerMs;
  request.first_token_ns = 1030 * kNsPerMs;
  request.end_ns = 1100 * kNsPerMs;
  request.usage.set_prompt_tokens(7);
  request.usage.set_completion_tokens(9);
  request.usage.set_cached_tokens(3);
  // A clock of another host: 1 ms router, 4 ms until it was scheduled, 24 ms prefill.
  request.timing.set_arrival_ns(500'001 * kNsPerMs);
  request.timing.set_queued_ns(500'002 * kNsPerMs);
  request.timing.set_first_scheduled_ns(500'005 * kNsPerMs);
  request.timing.set_first_token_ns(500'029 * kNsPerMs);
  request.timing.set_finished_ns(500'095 * kNsPerMs);
  request.timing.set_wait_reason("pages");
  return request;
}

boost::json::array SpansOf(const FinishedRequest& request, const TraceContext& trace) {
  return boost::json::parse("[" + OtlpSpans(request, trace) + "]").as_array();
}

int64_t NanosOf(const boost::json::value& span, const char* field) {
  return std::stoll(std::string(span.at(field).as_string()));
}

TEST(OtlpSpansTest, StagesFollowEachOtherWithinTheRequest) {
  const auto spans = SpansOf(Finished(), {kTrace, kSpan, true});
  ASSERT_EQ(spans.size(), 6u);
  const boost::json::value& whole = spans[0];
  EXPECT_EQ(whole.at("name"), "flotilla.request");
  EXPECT_EQ(whole.at("traceId"), kTrace);
  EXPECT_EQ(whole.at("parentSpanId"), kSpan);
  EXPECT_EQ(whole.at("kind"), 2);
  EXPECT_EQ(NanosOf(whole, "startTimeUnixNano"), 1'700'000'000'000 * kNsPerMs);
  EXPECT_EQ(NanosOf(whole, "endTimeUnixNano"), 1'700'000'000'100 * kNsPerMs);
  const std::pair<const char*, int64_t> stages[] = {
      {"router", 2}, {"queue", 4}, {"prefill", 24}, {"decode", 66}, {"deliver", 4}};
  int64_t at = NanosOf(whole, "startTimeUnixNano");
  std::set<std::string> ids = {std::string(whole.at("spanId").as_string())};
  for (size_t i = 0; i < 5; ++i) {
    const boost::json::value& stage = spans[i + 1];
    EXPECT_EQ(stage.at("name"), stages[i].first);
    EXPECT_EQ(stage.at("parentSpanId"), whole.at("spanId"));
    EXPECT_EQ(NanosOf(stage, "startTimeUnixNano"), at) << stages[i].first;
    at = NanosOf(stage, "endTimeUnixNano");
    EXPECT_EQ(at - NanosOf(stage, "startTimeUnixNano"), stages[i].second * kNsPerMs)
        << stages[i].first;
    ids.insert(std::string(stage.at("spanId").as_string()));
  }
  EXPECT_EQ(at, NanosOf(whole, "endTimeUnixNano"));
  EXPECT_EQ(ids.size(), 6u);
  const std::string text = OtlpSpans(Finished(), {kTrace, "", true});
  EXPECT_THAT(text,
              HasSubstr(R"({"key":"flotilla.request_id","value":{"stringValue":"req_\"1\""}})"));
  EXPECT_THAT(text, HasSubstr(R"({"key":"gen_ai.usage.output_tokens","value":{"intValue":"9"}})"));
  EXPECT_THAT(text, HasSubstr(R"({"key":"flotilla.wait_reason","value":{"stringValue":"pages"}})"));
  EXPECT_THAT(text.substr(0, text.find("\"name\"")), Not(HasSubstr("parentSpanId")));
}

TEST(OtlpSpansTest, OnOneHostStagesAreWhereTheyWere) {
  FinishedRequest request = Finished();
  request.timing.set_arrival_ns(1001 * kNsPerMs);
  request.timing.set_first_scheduled_ns(1003 * kNsPerMs);
  request.timing.set_first_token_ns(1020 * kNsPerMs);  // seen 10 ms later
  request.timing.set_finished_ns(1099 * kNsPerMs);
  const auto spans = SpansOf(request, {kTrace, "", true});
  ASSERT_EQ(spans.size(), 6u);
  const int64_t begin = NanosOf(spans[0], "startTimeUnixNano");
  const int64_t ends[] = {1, 3, 20, 99, 100};
  for (size_t i = 0; i < 5; ++i)
    EXPECT_EQ(NanosOf(spans[i + 1], "endTimeUnixNano") - begin, ends[i] * kNsPerMs) << i;
}

TEST(OtlpSpansTest, WhateverTheReplicaSaysStagesLieWithinTheRequest) {
  FinishedRequest request = Finished();
  request.timing.set_arrival_ns(-5'000 * kNsPerMs);
  request.timing.set_finished_ns(INT64_MAX / 2);
  const auto spans = SpansOf(request, {kTrace, "", true});
  for (const auto& span : spans) {
    EXPECT_GE(NanosOf(span, "startTimeUnixNano"), NanosOf(spans[0], "startTimeUnixNano"));
    EXPECT_LE(NanosOf(span, "endTimeUnixNano"), NanosOf(spans[0], "endTimeUnixNano"));
    EXPECT_LE(NanosOf(span, "startTimeUnixNano"), NanosOf(span, "endTimeUnixNano"));
  }
}

TEST(OtlpSpansTest, ARequestWithoutStagesIsOneSpanAndFailuresAreMarked) {
  FinishedRequest request = Finished();
  request.timing.Clear();
  request.outcome = "deadline";
  const auto spans = SpansOf(request, {kTrace, "", true});
  ASSERT_EQ(spans.size(), 1u);
  EXPECT_EQ(spans[0].at("status").at("code"), 2);
}

TEST(TraceEndpointTest, HasAHostAndDefaults) {
  const auto endpoint = ParseTraceEndpoint("http://collector");
  ASSERT_TRUE(endpoint.ok());
  EXPECT_EQ(endpoint->server.host, "collector");
  EXPECT_EQ(endpoint->server.port, 4318);
  EXPECT_EQ(endpoint->target, "/v1/traces");
  EXPECT_EQ(ParseTraceEndpoint("http://[::1]:9/x")->server.host, "::1");
  EXPECT_EQ(ParseTraceEndpoint("http://[::1]/x")->server.port, 4318);
  EXPECT_EQ(ParseTraceEndpoint("http://h:9/x/y")->target, "/x/y");
  for (const char* url : {"", "https://h", "h:4318", "http://", "http://:9",
                          "http://h:", "http://h:x", "http://h:0", "http://h:65536"}) {
    const auto refused = ParseTraceEndpoint(url);
    ASSERT_FALSE(refused.ok()) << url;
    EXPECT_THAT(std::string(refused.status().message()), HasSubstr("--otlp-traces-endpoint"));
  }
}

constexpr char kBody[] = R"({"model":"smol","prompt":"Hi","max_tokens":4)";

HarnessOptions Traced(const std::string& endpoint) {
  HarnessOptions options;
  options.traces.endpoint = endpoint;
  options.traces.interval_ms = 10;
  options.ui_requests = 0;  // traces don't need the page's list
  return options;
}

HttpAnswer CompleteTraced(RouterHarness* harness, std::string_view rest, std::string_view flags) {
  HttpConnection connection(harness->port());
  connection.Send(PostText("/v1/completions", StrCat(kBody, rest),
                           StrCat("traceparent: 00-", kTrace, "-", kSpan, "-", flags, "\r\n")));
  return connection.Read();
}

TEST(TracingTest, SpansOfARequestAndItsChoicesGoToTheCollector) {
  testing::Collector collector;
  RouterHarness harness(Traced(collector.url()));
  EXPECT_EQ(CompleteTraced(&harness, R"(,"n":3})", "01").status, 200);
  const boost::json::array spans = collector.WaitForSpans("flotilla.request", 3);
  std::set<int64_t> choices;
  for (const auto& span : spans) {
    EXPECT_EQ(span.at("traceId"), kTrace);
    EXPECT_EQ(span.at("parentSpanId"), kSpan);
    choices.insert(testing::IntAttribute(span, "flotilla.choice"));
  }
  EXPECT_EQ(choices, (std::set<int64_t>{0, 1, 2}));
  EXPECT_TRUE(harness.WaitForMetric("flotilla_router_traces_total{outcome=\"exported\"}", 3));
}

TEST(TracingTest, AClientThatDidNotAskForTimingGetsNone) {
  testing::Collector collector;
  RouterHarness harness(Traced(collector.url()));
  EXPECT_THAT(harness.Complete(StrCat(kBody, "}")).body, Not(HasSubstr("timing")));
  collector.WaitForSpans("flotilla.request", 1);
}

TEST(TracingTest, WhoDecidedAgainstItIsNotTraced) {
  testing::Collector collector;
  RouterHarness harness(Traced(collector.url()));
  EXPECT_EQ(CompleteTraced(&harness, "}", "00").status, 200);
  EXPECT_EQ(harness.Complete(StrCat(kBody, "}")).status, 200);
  const auto spans = collector.WaitForSpans("flotilla.request", 1);
  EXPECT_EQ(spans.size(), 1u);
  EXPECT_NE(spans[0].at("traceId"), kTrace);
}

TEST(TracingTest, TheSameByGrpc) {
  testing::Collector collector;
  RouterHarness harness(Traced(collector.url()));
  auto stub = v1::Inference::NewStub(grpc::CreateChannel(
      StrCat("127.0.0.1:", harness.app().grpc_port()), grpc::InsecureChannelCredentials()));
  grpc::ClientContext context;
  context.AddMetadata("traceparent", StrCat("00-", kTrace, "-", kSpan, "-01"));
  v1::GenerateRequest request;
  request.set_text("Hi");
  request.mutable_stopping()->set_max_tokens(4);
  v1::GenerateResponse response;
  auto reader = stub->Generate(&context, request);
  while (reader->Read(&response)) EXPECT_FALSE(response.has_timing());
  EXPECT_TRUE(reader->Finish().ok());
  const auto spans = collector.WaitForSpans("flotilla.request", 1);
  ASSERT_EQ(spans.size(), 1u);
  EXPECT_EQ(spans[0].at("parentSpanId"), kSpan);
}

TEST(TracingTest, ADeadCollectorCostsSpansAndNothingElse) {
  std::string url;
  {
    const testing::Collector gone;
    url = gone.url();
  }
  RouterHarness harness(Traced(url));
  for (int i = 0; i < 5; ++i) EXPECT_EQ(harness.Complete(StrCat(kBody, "}")).status, 200);
  EXPECT_TRUE(harness.WaitForMetric("flotilla_router_traces_total{outcome=\"failed\"}", 5));
}

TEST(TracingTest, ACollectorThatNeverAnswersFillsTheQueueOnly) {
  testing::Collector collector(testing::Collector::kSilent);
  HarnessOptions options = Traced(collector.url());
  options.traces.max_queued = 2;
  options.traces.timeout_ms = 3000;
  RouterHarness harness(options);
  for (int i = 0; i < 20; ++i) EXPECT_EQ(harness.Complete(StrCat(kBody, "}")).status, 200);
  EXPECT_GT(harness.Metric("flotilla_router_traces_total{outcome=\"queue_full\"}"), 0);
}

}  // namespace
}  // namespace flotilla
