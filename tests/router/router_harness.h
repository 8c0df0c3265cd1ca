// A router on free ports over fake engines on Unix sockets in a temporary folder.
//
// Threads: the test's. Ready when the constructor returns, unless told not to wait.
#pragma once

#include <gtest/gtest.h>

#include <boost/json/value.hpp>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "router/router_app.h"
#include "tests/fakes/fake_engine_service.h"
#include "tests/router/http_client.h"

namespace flotilla {

struct HarnessOptions {
  size_t replicas = 1;
  std::string policy = "round_robin";
  FakeEngineServiceOptions engine;
  HttpOptions http;
  GrpcOptions grpc;
  AnswerLimits answers;
  ParserChoice parsers;
  std::string api_keys_file;
  TlsPaths tls;
  int64_t sse_keepalive_ms = 15'000;
  uint32_t drain_grace_ms = 10'000;
  uint32_t drain_linger_ms = 0;
  uint32_t max_requests = 4096;
  int64_t max_request_ms = 3'600'000;
  int64_t failover_wait_ms = 30'000;
  int64_t find_keyed_ms = 60'000;  // as long as a test holds searches
  uint32_t max_failovers = 16;
  int64_t slow_start_ms = 0;
  int64_t model_memory_ms = 600'000;
  int64_t outlier_interval_ms = 10'000;
  uint32_t max_inflight_per_replica = 0;
  uint32_t admission_queue = 0;
  uint32_t admission_queue_per_tenant = 0;
  int64_t admission_queue_timeout_ms = 30'000;
  bool start_engines = true;  // false: the addresses lead nowhere until AddEngine
  // The router finds by --replica-dns those that Discover names, at first none; no --replica.
  bool discover = false;
  uint32_t max_replicas = 1024;
  bool ui = true;
  uint32_t ui_requests = 64;
  uint32_t log_slow_ms = 2500;
  TraceOptions traces;
  std::vector<std::string> models = {};  // by engine; default: the engine's option
  size_t old_engines = 0;                // so many of the first know no structural tags
  bool one_name = false;                 // all engines are called "fake"
};

// Answers are read for Hermes' calls and for thoughts, of which the model's template says nothing;
// it shows tools.
HarnessOptions WithParsers();
// The schema of an output that may begin with a thought (WithParsers); "" if it has to be none.
std::string SchemaBehindThought(const v1::GenerateRequest& request);

class RouterHarness {
 public:
  explicit RouterHarness(HarnessOptions options = {});
  ~RouterHarness();

  void AddEngine();
  // What the name resolves to from now on.
  void Discover(const std::vector<size_t>& engines);
  void FailDiscovery();
  FakeEngineService& engine(size_t i = 0) { return *engines_[i]; }
  RouterApp& app() { return *app_; }
  uint16_t port() const { return app_->http_port(); }
  // Until every engine takes requests.
  void WaitAllReady();

  HttpAnswer Complete(std::string_view body) { return Post(port(), "/v1/completions", body); }
  // The value of one line of the metrics page, "name{labels}"; 0 if there is none.
  double Metric(const std::string& line_start);
  // Until the metric has that value; false after 20 s.
  bool WaitForMetric(const std::string& line_start, double value);
  // The same for one that may have passed it.
  bool WaitForMetricAtLeast(const std::string& line_start, double value);

 private:
  std::string Address(size_t engine) const;
  StatusOr<std::vector<std::string>> Resolve();

  const HarnessOptions options_;
  std::mutex mutex_;
  // Guarded by mutex_: what the resolver finds, if it finds anything (kOk).
  std::vector<std::string> discovered_;
  absl::StatusCode resolver_says_ = absl::StatusCode::kNotFound;
  std::string folder_;
  std::vector<std::unique_ptr<FakeEngineService>> engines_;
  std::unique_ptr<RouterApp> app_;
};

boost::json::value ParseOrFail(std::string_view text);
// The error object's field as a string; "null" for null.
std::string ErrorField(const HttpAnswer& answer, std::string_view field);
// choices[i].text
std::string TextOf(const HttpAnswer& answer, size_t choice = 0);
// Text of choice 0 over all chunks of a stream.
std::string StreamText(const std::vector<std::string>& events);

}  // namespace flotilla
