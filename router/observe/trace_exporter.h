// Sends spans of requests to an OpenTelemetry collector, OTLP over HTTP as JSON.
//
// Requests never wait for it: their spans go into a queue of bounded length, from which one thread
// sends once a second; what has no room, or can't be delivered at the first attempt, is counted and
// dropped. Threads: Begin and End the io thread, Start and Stop the owner's. Errors: Start,
// InvalidArgument (endpoint).
#pragma once

#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "common/base/status.h"
#include "common/base/tcp_address.h"
#include "router/base/router_metrics.h"
#include "router/observe/request_tracer.h"

namespace flotilla {

struct TraceOptions {
  std::string endpoint;     // "http://collector:4318/v1/traces"; empty: nothing is traced
  double sample_ratio = 1;  // of requests that come without a traceparent
  size_t max_queued = 4096;
  int64_t interval_ms = 1000;
  int64_t timeout_ms = 5000;  // of one delivery
};

struct TraceEndpoint {
  TcpAddress server;
  std::string target;
};
StatusOr<TraceEndpoint> ParseTraceEndpoint(const std::string& url);

class TraceExporter final : public RequestTracer {
 public:
  TraceExporter(TraceOptions options, RouterMetrics* metrics)
      : options_(std::move(options)), metrics_(metrics) {}
  ~TraceExporter() override { Stop(); }

  // Nothing without an endpoint.
  Status Start();
  // Sends what is there, within one delivery's time.
  void Stop();

  std::optional<TraceContext> Begin(const std::string& traceparent) override;
  void End(const FinishedRequest& request, const TraceContext& trace) override;

 private:
  void Run();
  bool Send(const std::vector<std::string>& spans);

  const TraceOptions options_;
  RouterMetrics* const metrics_;
  TraceEndpoint endpoint_;
  std::string instance_;
  std::thread thread_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::vector<std::string> queue_;
  bool stopping_ = false;
  bool failing_ = false;  // the log has said so
};

}  // namespace flotilla
