// The operator's page: its files, who may have them, and what it is told of the fleet.
#include "router/handlers/operator_page.h"

#include <gtest/gtest.h>

#include <boost/json/value.hpp>

#include "tests/router/keys_file.h"
#include "tests/router/router_harness.h"

namespace flotilla {
namespace {

HttpAnswer GetWith(uint16_t port, std::string_view path, std::string_view headers) {
  HttpConnection connection(port);
  connection.Send(StrCat("GET ", path, " HTTP/1.1\r\nHost: x\r\n", headers, "\r\n"));
  return connection.Read();
}

boost::json::object Fleet(uint16_t port, std::string_view headers = "") {
  const HttpAnswer answer = GetWith(port, kUiFleetPath, headers);
  EXPECT_EQ(answer.status, 200) << answer.body;
  EXPECT_EQ(answer.headers.at("content-type"), "application/json");
  EXPECT_EQ(answer.headers.at("cache-control"), "no-store");
  return ParseOrFail(answer.body).as_object();
}

// Until so many requests have finished; the last that came.
boost::json::object FleetWithFinished(uint16_t port, size_t count) {
  while (true) {
    boost::json::object fleet = Fleet(port);
    if (fleet.at("requests").as_array().size() >= count) return fleet;
  }
}

constexpr std::string_view kRequest = R"({"model":"smol","prompt":"Hi there","max_tokens":3)";

// --- Files ---------------------------------------------------------------------------------------

TEST(OperatorPageTest, EveryFileHasItsTypeAndRunsNothingElse) {
  RouterHarness harness;
  size_t bytes = 0;
  for (const UiFile& file : UiFiles()) {
    const HttpAnswer answer = Get(harness.port(), StrCat("/ui/", file.name));
    ASSERT_EQ(answer.status, 200) << file.name;
    EXPECT_EQ(answer.body, file.bytes);
    const std::string& type = answer.headers.at("content-type");
    const std::string_view ending = file.name.substr(file.name.find('.'));
    EXPECT_EQ(type, ending == ".html"  ? "text/html; charset=utf-8"
                    : ending == ".css" ? "text/css; charset=utf-8"
                    : ending == ".svg" ? "image/svg+xml"
                                       : "text/javascript; charset=utf-8");
    const std::string& policy = answer.headers.at("content-security-policy");
    EXPECT_TRUE(policy.starts_with("default-src 'none'; script-src 'self';")) << policy;
    EXPECT_NE(policy.find("frame-ancestors 'none'"), policy.npos);
    EXPECT_EQ(policy.find("unsafe"), policy.npos);
    EXPECT_EQ(policy.find("http"), policy.npos);
    EXPECT_EQ(answer.headers.at("x-content-type-options"), "nosniff");
    EXPECT_EQ(answer.headers.at("cache-control"), "no-cache");
    EXPECT_TRUE(ending != ".html" || answer.body.find("://") == answer.body.npos)
        << "no other site";
    bytes += file.bytes.size();
  }
  EXPECT_EQ(UiFiles().size(), 8u);
  EXPECT_LT(bytes, 60'000u) << "the page is small";
  EXPECT_EQ(Get(harness.port(), "/ui/").body, Get(harness.port(), "/ui/index.html").body);
}

TEST(OperatorPageTest, ABrowserThatHasTheFileGetsNoBody) {
  RouterHarness harness;
  HttpConnection connection(harness.port());
  connection.Send("GET /ui/style.css HTTP/1.1\r\nHost: x\r\n\r\n");
  const std::string etag = connection.Read().headers.at("etag");
  EXPECT_EQ(etag.size(), 18u);
  connection.Send(StrCat("GET /ui/style.css HTTP/1.1\r\nHost: x\r\nIf-None-Match: \"x\", W/", etag,
                         "\r\n\r\n"));
  const HttpAnswer same = connection.Read(/*to_head=*/true);
  EXPECT_EQ(same.status, 304);
  EXPECT_EQ(same.headers.at("etag"), etag);
  EXPECT_FALSE(same.headers.contains("content-length"));
  // The connection is where it should be: the next answer begins with its status line.
  connection.Send(
      StrCat("GET /ui/main.js HTTP/1.1\r\nHost: x\r\nIf-None-Match: ", etag, "\r\n\r\n"));
  EXPECT_EQ(connection.Read().status, 200) << "another file's";
}

TEST(OperatorPageTest, ThereIsNothingBesidesTheFiles) {
  RouterHarness harness;
  const HttpAnswer moved = Get(harness.port(), "/ui");
  EXPECT_EQ(moved.status, 308);
  EXPECT_EQ(moved.headers.at("location"), "ui/") << "also behind a prefix";
  for (const char* path : {"/ui/nothing", "/ui/../main.cc", "/ui/style.css/", "/uix", "/ui//"})
    EXPECT_EQ(Get(harness.port(), path).status, 404) << path;
  EXPECT_EQ(Post(harness.port(), "/ui/", "{}").status, 405);
  EXPECT_GT(harness.Metric("flotilla_router_requests_total{code=\"404\",route=\"other\"}"), 0);
  EXPECT_GT(harness.Metric("flotilla_router_requests_total{code=\"405\",route=\"/ui/{file}\"}"), 0);
}

TEST(OperatorPageTest, ItCanBeOff) {
  HarnessOptions options;
  options.ui = false;
  RouterHarness harness(options);
  for (const char* path : {"/ui", "/ui/", "/ui/main.js", kUiFleetPath})
    EXPECT_EQ(Get(harness.port(), path).status, 404) << path;
}

// --- The fleet -----------------------------------------------------------------------------------

TEST(FleetJsonTest, ReplicasAreAsTheirLastFramesSaid) {
  HarnessOptions options;
  options.replicas = 2;
  RouterHarness harness(options);
  harness.engine(0).Hold();
  harness.engine(0).SetExtraLoad(777);
  harness.engine(1).SetDraining(true);
  HttpConnection connection(harness.port());
  connection.Send(PostText("/v1/completions", StrCat(kRequest, "}")));
  ASSERT_TRUE(harness.engine(0).WaitForSubmits(1));
  harness.engine(0).Release(1);  // the first token
  boost::json::object fleet;
  const auto of = [&](size_t replica) { return fleet.at("replicas").at(replica).as_object(); };
  do {
    fleet = Fleet(harness.port());
  } while (of(0).at("generated_tokens") != 1 || of(0).at("requests_running") != 1 ||
           of(1).at("draining") != true);
  EXPECT_EQ(fleet.at("requests_active"), 1);
  EXPECT_EQ(fleet.at("requests_parked"), 0);
  EXPECT_EQ(fleet.at("draining"), false);
  EXPECT_EQ(of(0).at("replica"), "fake-0");
  EXPECT_EQ(of(0).at("model"), "smol");
  EXPECT_EQ(of(0).at("state"), "ready");
  EXPECT_EQ(of(0).at("circuit"), "closed");
  EXPECT_EQ(of(0).at("requests_active"), 1);
  EXPECT_EQ(of(0).at("requests_waiting"), 0);
  EXPECT_EQ(of(0).at("queued_tokens"), 777);
  EXPECT_EQ(of(0).at("running_tokens"),
            harness.engine(0).submits()[0].request().token_ids().ids_size());
  EXPECT_EQ(of(0).at("unreported_tokens"), 0);
  EXPECT_EQ(of(0).at("kv_pages_total"), FakeEngineService::kTotalPages);
  EXPECT_EQ(of(0).at("kv_pages_free"), FakeEngineService::kTotalPages - 1);
  EXPECT_GT(of(0).at("first_token_seconds").to_number<double>(), 0);
  EXPECT_EQ(of(1).at("requests_active"), 0);
  harness.engine(0).RunFreely();
  EXPECT_EQ(connection.Read().status, 200);
  harness.engine(1).Stop();
  do {
    fleet = Fleet(harness.port());
  } while (of(1).at("state") == "ready");
  EXPECT_EQ(of(0).at("state"), "ready");
}

TEST(FleetJsonTest, ReplicasOfOneNameHaveTheirAddressesBesideIt) {
  HarnessOptions options;
  options.replicas = 2;
  options.one_name = true;
  options.start_engines = false;
  RouterHarness harness(options);
  harness.AddEngine();
  const auto name = [&](size_t replica) {
    return std::string(Fleet(harness.port()).at("replicas").at(replica).at("replica").as_string());
  };
  while (name(0) != "fake") {
  }
  harness.AddEngine();
  while (!name(1).starts_with("fake (unix:/")) {
  }
  EXPECT_TRUE(name(1).ends_with("/1.sock)"));
  EXPECT_TRUE(name(0).starts_with("fake (unix:/"));
  EXPECT_TRUE(name(0).ends_with("/0.sock)"));
}

TEST(FleetJsonTest, AFinishedRequestHasItsTokensAndStages) {
  RouterHarness harness;
  HttpConnection connection(harness.port());
  connection.Send(
      PostText("/v1/completions", StrCat(kRequest, "}"), "X-Request-Id: from-a-test\r\n"));
  EXPECT_EQ(connection.Read().body.find("\"timing\""), std::string::npos) << "not asked for";
  const boost::json::object fleet = Fleet(harness.port());
  ASSERT_EQ(fleet.at("requests").as_array().size(), 1u);
  const boost::json::object& request = fleet.at("requests").at(0).as_object();
  EXPECT_EQ(request.at("number"), 1);
  EXPECT_EQ(request.at("request_id"), "from-a-test");
  EXPECT_EQ(request.at("replica"), "fake-0");
  EXPECT_EQ(request.at("outcome"), "length");
  const int prompt = harness.engine().submits()[0].request().token_ids().ids_size();
  EXPECT_EQ(request.at("prompt_tokens"), prompt);
  EXPECT_EQ(request.at("completion_tokens"), 3);
  EXPECT_EQ(request.at("cached_tokens"), prompt / 2);
  const double total = request.at("total_seconds").to_number<double>();
  EXPECT_GT(request.at("first_token_seconds").to_number<double>(), 0);
  EXPECT_LE(request.at("first_token_seconds").to_number<double>(), total);
  const boost::json::object& timing = request.at("timing").as_object();
  EXPECT_DOUBLE_EQ(timing.at("total_seconds").to_number<double>(), total);
  EXPECT_NEAR(timing.at("queue_seconds").to_number<double>(), 3e-6, 1e-9);
  EXPECT_NEAR(timing.at("decode_seconds").to_number<double>(), 5e-6, 1e-9);
  EXPECT_EQ(timing.at("wait_reason"), "next_step");
}

TEST(FleetJsonTest, WhoAsksForTheTimingHasItToo) {
  RouterHarness harness;
  const HttpAnswer answer = harness.Complete(StrCat(kRequest, R"(,"return_timing":true})"));
  EXPECT_NE(answer.body.find("\"timing\""), std::string::npos);
}

TEST(FleetJsonTest, AnEndOfAnyKindIsTold) {
  HarnessOptions options;
  options.failover_wait_ms = 0;
  RouterHarness harness(options);
  harness.engine().RefuseNext(1, static_cast<int>(absl::StatusCode::kInvalidArgument), "no");
  EXPECT_EQ(harness.Complete(StrCat(kRequest, "}")).status, 400);
  harness.engine().Hold();
  HttpConnection connection(harness.port());
  connection.Send(PostText("/v1/completions", StrCat(kRequest, "}")));
  ASSERT_TRUE(harness.engine().WaitForSubmits(2));
  connection.Close();
  const boost::json::object fleet = FleetWithFinished(harness.port(), 2);
  EXPECT_EQ(fleet.at("requests").at(0).at("outcome"), "error");
  EXPECT_TRUE(fleet.at("requests").at(0).at("timing").is_null());
  EXPECT_EQ(fleet.at("requests").at(1).at("outcome"), "aborted");
  EXPECT_TRUE(fleet.at("requests").at(1).at("first_token_seconds").is_null());
  harness.engine().RunFreely();
  Post(harness.port(), "/v1/embeddings", R"({"model":"smol","input":"Hi"})");
  EXPECT_EQ(FleetWithFinished(harness.port(), 3).at("requests").at(2).at("outcome"), "embedded");
  EXPECT_FALSE(harness.engine().submits().back().request().has_output()) << "engines refuse that";
}

TEST(FleetJsonTest, TheLastRequestsAreKept) {
  HarnessOptions options;
  options.ui_requests = 2;
  RouterHarness harness(options);
  for (int i = 0; i < 3; ++i) harness.Complete(StrCat(kRequest, "}"));
  const boost::json::array requests = Fleet(harness.port()).at("requests").as_array();
  ASSERT_EQ(requests.size(), 2u);
  EXPECT_EQ(requests[0].at("number"), 2);
  EXPECT_EQ(requests[1].at("number"), 3);
}

TEST(FleetJsonTest, NoneAreKeptIfNoneAreWanted) {
  HarnessOptions options;
  options.ui_requests = 0;
  options.log_slow_ms = 0;
  RouterHarness harness(options);
  harness.Complete(StrCat(kRequest, "}"));
  EXPECT_TRUE(Fleet(harness.port()).at("requests").as_array().empty());
  EXPECT_FALSE(harness.engine().submits()[0].request().output().return_timing());
}

TEST(FleetJsonTest, ATenantSeesItsOwnRequests) {
  const KeysFile file(KeyLine("a", "one") + KeyLine("b", "two"));
  HarnessOptions options;
  options.api_keys_file = file.path();
  RouterHarness harness(options);
  HttpConnection connection(harness.port());
  connection.Send(PostText("/v1/completions", StrCat(kRequest, "}"), "X-Api-Key: one\r\n"));
  EXPECT_EQ(connection.Read().status, 200);
  EXPECT_EQ(Fleet(harness.port(), "X-Api-Key: one\r\n").at("requests").as_array().size(), 1u);
  EXPECT_TRUE(Fleet(harness.port(), "X-Api-Key: two\r\n").at("requests").as_array().empty());
  EXPECT_EQ(Fleet(harness.port(), "X-Api-Key: two\r\n").at("replicas").as_array().size(), 1u);
  EXPECT_EQ(Get(harness.port(), kUiFleetPath).status, 401);
}

}  // namespace
}  // namespace flotilla
