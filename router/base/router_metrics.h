// The router's metrics (flotilla_router_…; docs/metrics.md).
//
// Labels are routes, codes, reasons and replica ids: never a client's bytes.
// Threads: any.
#pragma once

#include <prometheus/counter.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>

#include <initializer_list>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>

#include "common/base/metrics.h"

namespace flotilla {

class RouterMetrics {
 public:
  explicit RouterMetrics(prometheus::Registry* registry);

  // `route` is one of the router's own paths or "other"; `code` an HTTP status or the number of a
  // gRPC code.
  // seconds: of what clients wait for; a probe has none.
  void Request(const std::string& route, const std::string& code, std::optional<double> seconds);
  // `route` has a series of each of the codes, 0 as yet: a rate does not see what a series appears
  // with.
  void Expect(const std::string& route, std::initializer_list<const char*> codes);
  void Ttft(double seconds) { ttft_.Observe(seconds); }
  void Rejection(const std::string& reason) { rejections_.Add({{"reason", reason}}).Increment(); }
  void Retry(const std::string& reason) { retries_.Add({{"reason", reason}}).Increment(); }
  void Failover(const std::string& reason) { failovers_.Add({{"reason", reason}}).Increment(); }
  // From the loss of a request to its next token for the client.
  void FailoverPause(double seconds) { failover_pause_.Observe(seconds); }
  void Traces(const char* outcome, size_t count) {
    traces_.Add({{"outcome", outcome}}).Increment(static_cast<double>(count));
  }
  void ClientDisconnect() { disconnects_.Increment(); }
  void BodyBytes(double delta) { body_bytes_.Increment(delta); }
  void AnswerBytes(double delta) { answer_bytes_.Increment(delta); }
  void InFlight(double delta) { in_flight_.Increment(delta); }
  size_t in_flight() const { return static_cast<size_t>(in_flight_.Value()); }
  void StreamBuffer(double delta_bytes) { stream_buffer_.Increment(delta_bytes); }
  // circuit: 0 closed, 1 half open, 2 open.
  void Backend(const std::string& replica, bool healthy, size_t active, int circuit);
  void ForgetBackend(const std::string& replica);
  void Replicas(size_t known, size_t left_out) {
    replicas_.Set(static_cast<double>(known));
    replicas_left_out_.Set(static_cast<double>(left_out));
  }
  // By a policy that knows what is cached.
  void Routed(uint64_t prompt_tokens, uint64_t cached_tokens) {
    routed_prompt_tokens_.Increment(static_cast<double>(prompt_tokens));
    routed_cached_tokens_.Increment(static_cast<double>(cached_tokens));
  }
  void Ejection() { ejections_.Increment(); }
  void RetryDenied() { retries_denied_.Increment(); }
  void Parked(size_t requests) { parked_.Set(static_cast<double>(requests)); }
  void AdmissionDepth(size_t requests) { admission_queue_.Set(static_cast<double>(requests)); }
  void AdmissionWait(double seconds) { admission_wait_.Observe(seconds); }
  void CacheIndex(const std::string& replica, size_t pages, uint64_t left_out) {
    index_pages_.Add({{"replica", replica}}).Set(static_cast<double>(pages));
    SetTotal(&index_left_out_.Add({{"replica", replica}}), left_out);
  }
  void Discovery(const std::string& result) { discoveries_.Add({{"result", result}}).Increment(); }

 private:
  // What every request needs: a look for labels among prometheus-cpp's costs a microsecond.
  struct BackendGauges {
    prometheus::Gauge& healthy;
    prometheus::Gauge& active;
    prometheus::Gauge& circuit;
  };

  // There from its first use on.
  prometheus::Counter& CounterLocked(const std::string& route, const std::string& code);

  std::mutex mutex_;
  std::unordered_map<std::string, BackendGauges> backends_;  // guarded by mutex_
  std::unordered_map<std::string, std::unordered_map<std::string, prometheus::Counter*>>
      by_route_;  // guarded by mutex_; then by code
  prometheus::Family<prometheus::Counter>& requests_;
  prometheus::Family<prometheus::Counter>& rejections_;
  prometheus::Family<prometheus::Counter>& traces_;
  prometheus::Family<prometheus::Counter>& retries_;
  prometheus::Family<prometheus::Counter>& failovers_;
  prometheus::Family<prometheus::Counter>& discoveries_;
  prometheus::Family<prometheus::Gauge>& healthy_;
  prometheus::Family<prometheus::Gauge>& active_;
  prometheus::Family<prometheus::Gauge>& circuits_;
  prometheus::Family<prometheus::Gauge>& index_pages_;
  prometheus::Family<prometheus::Counter>& index_left_out_;
  prometheus::Histogram& duration_;
  prometheus::Histogram& ttft_;
  prometheus::Histogram& failover_pause_;
  prometheus::Histogram& admission_wait_;
  prometheus::Gauge& in_flight_;
  prometheus::Gauge& parked_;
  prometheus::Gauge& admission_queue_;
  prometheus::Gauge& replicas_;
  prometheus::Gauge& replicas_left_out_;
  prometheus::Gauge& body_bytes_;
  prometheus::Gauge& answer_bytes_;
  prometheus::Gauge& stream_buffer_;
  prometheus::Counter& disconnects_;
  prometheus::Counter& ejections_;
  prometheus::Counter& retries_denied_;
  prometheus::Counter& routed_prompt_tokens_;
  prometheus::Counter& routed_cached_tokens_;
};

}  // namespace flotilla
