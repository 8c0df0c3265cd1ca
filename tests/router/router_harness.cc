#include "tests/router/router_harness.h"

#include <boost/json/parse.hpp>
#include <boost/json/serialize.hpp>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <thread>
#include <utility>

#include "common/base/check.h"
#include "common/base/metrics.h"
#include "tests/support/patience.h"

namespace flotilla {
namespace {

template <typename Condition>
bool Eventually(const Condition& condition) {
  const auto limit = std::chrono::steady_clock::now() + kPatience;
  while (!condition()) {
    if (std::chrono::steady_clock::now() > limit) return false;
    std::this_thread::yield();
  }
  return true;
}

}  // namespace

HarnessOptions WithParsers() {
  HarnessOptions options;
  options.engine.shows_tools = true;
  options.parsers = {.tool_call_parser = "hermes", .reasoning_parser = "think"};
  return options;
}

std::string SchemaBehindThought(const v1::GenerateRequest& request) {
  const boost::json::value tag = ParseOrFail(request.structured().structural_tag());
  const boost::json::value& parts = tag.at("format").at("elements");
  EXPECT_EQ(parts.as_array().size(), 2u);
  EXPECT_EQ(parts.at(0).at("type"), "optional");
  EXPECT_EQ(parts.at(0).at("content").at("elements").at(0).at("value"), "<think>");
  EXPECT_EQ(parts.at(1).at("type"), "json_schema");
  return boost::json::serialize(parts.at(1).at("json_schema"));
}

RouterHarness::RouterHarness(HarnessOptions options) : options_(std::move(options)) {
  char folder[] = "/tmp/flotilla-router-XXXXXX";
  CHECK(mkdtemp(folder) != nullptr);
  folder_ = folder;
  RouterOptions router;
  router.http = options_.http;
  router.http.port = 0;
  router.grpc = options_.grpc;
  router.grpc.grpc_port = 0;
  router.answers = options_.answers;
  router.parsers = options_.parsers;
  router.api_keys_file = options_.api_keys_file;
  router.tls = options_.tls;
  router.sse_keepalive_ms = options_.sse_keepalive_ms;
  router.dispatcher.policy = options_.policy;
  router.dispatcher.backoff_min_ms = 10;
  router.dispatcher.backoff_max_ms = 50;
  router.drain_grace_ms = options_.drain_grace_ms;
  router.drain_linger_ms = options_.drain_linger_ms;
  router.dispatcher.max_requests = options_.max_requests;
  router.dispatcher.max_request_ms = options_.max_request_ms;
  router.dispatcher.failover_wait_ms = options_.failover_wait_ms;
  router.dispatcher.find_keyed_ms = options_.find_keyed_ms;
  router.dispatcher.max_failovers = options_.max_failovers;
  router.dispatcher.slow_start_ms = options_.slow_start_ms;
  router.dispatcher.model_memory_ms = options_.model_memory_ms;
  router.dispatcher.outlier_interval_ms = options_.outlier_interval_ms;
  router.dispatcher.max_inflight_per_replica = options_.max_inflight_per_replica;
  router.dispatcher.admission_queue = options_.admission_queue;
  router.dispatcher.admission_queue_per_tenant = options_.admission_queue_per_tenant;
  router.dispatcher.admission_queue_timeout_ms = options_.admission_queue_timeout_ms;
  router.dispatcher.max_replicas = options_.max_replicas;
  router.ui = options_.ui;
  router.traces = options_.traces;
  router.dispatcher.ui_requests = options_.ui_requests;
  router.dispatcher.log_slow_ms = options_.log_slow_ms;
  if (options_.discover) {
    router.dispatcher.replica_dns = {"replicas:1"};
    router.dispatcher.replica_dns_interval_ms = 5;
    router.dispatcher.resolve = [this](const DnsName&) { return Resolve(); };
  } else {
    for (size_t i = 0; i < options_.replicas; ++i) router.dispatcher.replicas.push_back(Address(i));
  }
  if (options_.start_engines) {
    for (size_t i = 0; i < options_.replicas; ++i) AddEngine();
  }
  app_ = std::make_unique<RouterApp>(router);
  CHECK_OK(app_->Start());
  if (options_.start_engines && !options_.discover) WaitAllReady();
}

std::string RouterHarness::Address(size_t engine) const {
  return StrCat("unix:", folder_, "/", engine, ".sock");
}

StatusOr<std::vector<std::string>> RouterHarness::Resolve() {
  std::lock_guard<std::mutex> lock(mutex_);
  // A status of its own: libabsl counts references where ThreadSanitizer does not look.
  if (resolver_says_ == absl::StatusCode::kOk) return discovered_;
  return Status(resolver_says_, "the resolver found nothing");
}

void RouterHarness::Discover(const std::vector<size_t>& engines) {
  std::lock_guard<std::mutex> lock(mutex_);
  resolver_says_ = absl::StatusCode::kOk;
  discovered_.clear();
  for (const size_t engine : engines) discovered_.push_back(Address(engine));
}

void RouterHarness::FailDiscovery() {
  std::lock_guard<std::mutex> lock(mutex_);
  resolver_says_ = absl::StatusCode::kUnavailable;
}

RouterHarness::~RouterHarness() {
  for (const auto& engine : engines_) engine->RunFreely();
  app_.reset();
  engines_.clear();
  std::filesystem::remove_all(folder_);
}

void RouterHarness::AddEngine() {
  const size_t i = engines_.size();
  FakeEngineServiceOptions options = options_.engine;
  options.address = Address(i);
  options.replica_id = options_.one_name ? "fake" : StrCat("fake-", i);
  if (i < options_.models.size()) options.model = options_.models[i];
  options.structural_tags = i >= options_.old_engines;
  engines_.push_back(std::make_unique<FakeEngineService>(options));
}

void RouterHarness::WaitAllReady() {
  for (size_t i = 0; i < engines_.size(); ++i) {
    const std::string line = StrCat("flotilla_router_backend_healthy{replica=\"fake-", i, "\"}");
    EXPECT_TRUE(WaitForMetric(line, 1));
  }
}

double RouterHarness::Metric(const std::string& line_start) {
  const std::string page = StrCat("\n", RenderMetrics(*app_->metrics_registry()));
  const size_t at = page.find(StrCat("\n", line_start, " "));
  if (at == std::string::npos) return 0;
  return std::strtod(page.c_str() + at + line_start.size() + 2, nullptr);
}

bool RouterHarness::WaitForMetric(const std::string& line_start, double value) {
  return Eventually([&] { return Metric(line_start) == value; });
}

bool RouterHarness::WaitForMetricAtLeast(const std::string& line_start, double value) {
  return Eventually([&] { return Metric(line_start) >= value; });
}

boost::json::value ParseOrFail(std::string_view text) {
  boost::json::error_code error;
  boost::json::value value = boost::json::parse({text.data(), text.size()}, error);
  EXPECT_FALSE(error) << error.message() << " in " << text;
  return value;
}

std::string ErrorField(const HttpAnswer& answer, std::string_view field) {
  const boost::json::value root = ParseOrFail(answer.body);
  const boost::json::object* object = root.if_object();
  const boost::json::value* error = object == nullptr ? nullptr : object->if_contains("error");
  if (error == nullptr) return "no error: " + answer.body;
  const boost::json::value* value = error->as_object().if_contains({field.data(), field.size()});
  if (value == nullptr) return "absent";
  return value->is_string() ? std::string(value->get_string()) : boost::json::serialize(*value);
}

std::string TextOf(const HttpAnswer& answer, size_t choice) {
  EXPECT_EQ(answer.status, 200) << answer.body;
  if (answer.status != 200) return "";
  const boost::json::value root = ParseOrFail(answer.body);
  return std::string(root.at("choices").at(choice).at("text").as_string());
}

std::string StreamText(const std::vector<std::string>& events) {
  std::string text;
  for (const std::string& event : events) {
    if (event == "[DONE]") break;
    const boost::json::value root = ParseOrFail(event);
    if (root.as_object().contains("error")) break;
    for (const boost::json::value& choice : root.at("choices").as_array()) {
      if (choice.at("index").as_int64() == 0) text += std::string(choice.at("text").as_string());
    }
  }
  return text;
}

}  // namespace flotilla
