#include "router/trace_exporter.h"

#include <unistd.h>

#include <array>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/core/tcp_stream.hpp>
#include <boost/beast/http.hpp>
#include <chrono>
#include <utility>

#include "common/base/log.h"
#include "router/otlp_spans.h"

namespace flotilla {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = beast::http;

constexpr uint64_t kMaxAnswerBytes = 64 << 10;

// One POST on a connection of its own, which ends at `timeout`. 0: no answer came.
class Delivery {
 public:
  Delivery(const TraceEndpoint& endpoint, std::string body) : endpoint_(endpoint) {
    request_.method(http::verb::post);
    request_.target(endpoint.target);
    request_.version(11);
    request_.set(http::field::host, endpoint.host + ":" + endpoint.port);
    request_.set(http::field::user_agent, "flotilla-router");
    request_.set(http::field::content_type, "application/json");
    request_.set(http::field::connection, "close");
    request_.body() = std::move(body);
    request_.prepare_payload();
    parser_.body_limit(kMaxAnswerBytes);
  }

  unsigned Run(std::chrono::milliseconds timeout) {
    stream_.expires_after(timeout);
    resolver_.async_resolve(endpoint_.host, endpoint_.port,
                            [this](const auto& error, const auto& found) {
                              if (error) return;
                              stream_.async_connect(found, [this](const auto& failed, const auto&) {
                                if (!failed) Write();
                              });
                            });
    io_.run_for(timeout);
    return status_;
  }

 private:
  void Write() {
    http::async_write(stream_, request_, [this](const auto& error, size_t) {
      if (error) return;
      http::async_read(stream_, buffer_, parser_, [this](const auto& failed, size_t) {
        if (!failed) status_ = parser_.get().result_int();
      });
    });
  }

  const TraceEndpoint& endpoint_;
  asio::io_context io_{1};
  asio::ip::tcp::resolver resolver_{io_};
  beast::tcp_stream stream_{io_};
  http::request<http::string_body> request_;
  beast::flat_buffer buffer_;
  http::response_parser<http::string_body> parser_;
  unsigned status_ = 0;
};

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
  const size_t colon = authority.rfind(':');
  TraceEndpoint endpoint;
  endpoint.host = authority.substr(0, colon);
  endpoint.port = colon == std::string::npos ? "4318" : authority.substr(colon + 1);
  endpoint.target = slash == std::string::npos ? "/v1/traces" : rest.substr(slash);
  if (endpoint.host.starts_with('[') && endpoint.host.ends_with(']'))
    endpoint.host = endpoint.host.substr(1, endpoint.host.size() - 2);
  const bool digits = endpoint.port.find_first_not_of("0123456789") == std::string::npos;
  if (endpoint.host.empty() || endpoint.port.empty() || !digits) return refuse();
  return endpoint;
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
  Delivery delivery(endpoint_, OtlpBody(spans, instance_));
  const unsigned status = delivery.Run(std::chrono::milliseconds(options_.timeout_ms));
  return status >= 200 && status < 300;
}

}  // namespace flotilla
