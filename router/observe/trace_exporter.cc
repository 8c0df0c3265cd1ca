#include "router/observe/trace_exporter.h"

#include <unistd.h>

#include <array>
#include <chrono>
#include <utility>

#include "common/base/log.h"
#include "common/http/http_client.h"
#include "router/observe/otlp_spans.h"

namespace flotilla {
namespace {

constexpr size_t kMaxAnswerBytes = 64 << 10;
constexpr char kDefaultPort[] = ":4318";  // OTLP's over HTTP

std::string InstanceName() {
  std::array<char, 256> host = {};
  gethostname(host.data(), host.size() - 1);
  return StrCat(host.data(), ":", getpid());
}

}  // namespace

StatusOr<TraceEndpoint> ParseTraceEndpoint(const std::string& url) {
  constexpr std::string_view kScheme = "http://";
  const auto refuse = [&] {
    return absl::InvalidArgumentError(
        StrCat("--otlp-traces-endpoint: '", url,
               "' is no address such as http://collector:4318/v1/traces (only http)"));
  };
  if (!url.starts_with(kScheme)) return refuse();
  const std::string rest = url.substr(kScheme.size());
  const size_t slash = rest.find('/');
  const std::string authority = rest.substr(0, slash);
  // One within brackets is of the host.
  const bool has_port = authority.find(':', authority.rfind(']') + 1) != std::string::npos;
  StatusOr<TcpAddress> server = ParseTcpAddress(has_port ? authority : authority + kDefaultPort);
  if (!server.ok() || server->port == 0) return refuse();
  return TraceEndpoint{*std::move(server),
                       slash == std::string::npos ? "/v1/traces" : rest.substr(slash)};
}

Status TraceExporter::Start() {
  if (options_.endpoint.empty()) return OkStatus();
  ASSIGN_OR_RETURN(endpoint_, ParseTraceEndpoint(options_.endpoint));
  instance_ = InstanceName();
  thread_ = std::thread([this] { Run(); });
  return OkStatus();
}

void TraceExporter::Stop() {
  if (!thread_.joinable()) return;
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_one();
  thread_.join();
}

std::optional<TraceContext> TraceExporter::Begin(const std::string& traceparent) {
  if (options_.endpoint.empty()) return std::nullopt;
  return SampleTrace(traceparent, options_.sample_ratio);
}

void TraceExporter::End(const FinishedRequest& request, const TraceContext& trace) {
  std::string spans = OtlpSpans(request, trace);
  {
    const std::lock_guard lock(mutex_);
    if (queue_.size() < options_.max_queued) {
      queue_.push_back(std::move(spans));
      return;
    }
  }
  metrics_->Traces("queue_full", 1);
}

void TraceExporter::Run() {
  for (bool last = false; !last;) {
    std::vector<std::string> spans;
    {
      std::unique_lock lock(mutex_);
      wake_.wait_for(lock, std::chrono::milliseconds(options_.interval_ms),
                     [this] { return stopping_; });
      last = stopping_;
      spans.swap(queue_);
    }
    if (spans.empty()) continue;
    const bool sent = Send(spans);
    metrics_->Traces(sent ? "exported" : "failed", spans.size());
    if (sent == failing_) {
      failing_ = !sent;
      if (failing_)
        Log().warn("traces can't be delivered {}", Kv("endpoint", options_.endpoint));
      else
        Log().info("traces are delivered again {}", Kv("endpoint", options_.endpoint));
    }
  }
}

bool TraceExporter::Send(const std::vector<std::string>& spans) {
  size_t answer_bytes = 0;
  const auto on_body = [&](unsigned, std::string_view piece) {
    return (answer_bytes += piece.size()) <= kMaxAnswerBytes;
  };
  const HttpUrl server = {endpoint_.server.host, endpoint_.server.port};
  const StatusOr<unsigned> status = SendHttp(
      server, {.method = "POST", .target = endpoint_.target, .body = OtlpBody(spans, instance_)},
      on_body, {.timeout_ms = options_.timeout_ms});
  return status.ok() && *status >= 200 && *status < 300 && answer_bytes <= kMaxAnswerBytes;
}

}  // namespace flotilla
