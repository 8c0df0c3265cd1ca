#include "router/base/router_metrics.h"

#include "common/base/metrics.h"

namespace flotilla {
namespace {

const prometheus::Histogram::BucketBoundaries kSeconds = {.001, .005, .01, .02, .04, .06, .08, .1,
                                                          .25,  .5,   .75, 1,   2.5, 5,   7.5, 10,
                                                          20,   40,   80,  160, 640, 2560};

}  // namespace

RouterMetrics::RouterMetrics(prometheus::Registry* registry)
    : requests_(AddCounters(registry, "flotilla_router_requests_total",
                            "Requests answered, by route and its status code, HTTP's or gRPC's.")),
      rejections_(AddCounters(registry, "flotilla_router_rejections_total",
                              "Requests refused for a limit or for want of a replica, by reason.")),
      traces_(AddCounters(registry, "flotilla_router_traces_total",
                          "Requests whose spans were exported, could not be (failed), or found no "
                          "room to wait (queue_full); with --otlp-traces-endpoint.")),
      retries_(AddCounters(registry, "flotilla_router_retries_total",
                           "Requests given to another replica before their first token.")),
      failovers_(
          AddCounters(registry, "flotilla_router_failovers_total",
                      "Requests that another replica, or a restarted one, went on with after "
                      "their first token, by reason.")),
      discoveries_(AddCounters(registry, "flotilla_router_discoveries_total",
                               "Answers to --replica-dns and of --replica-service, by result.")),
      healthy_(AddGauges(registry, "flotilla_router_backend_healthy",
                         "1 while the replica takes requests.")),
      active_(AddGauges(registry, "flotilla_router_backend_requests_active",
                        "Requests of this router that the replica has.")),
      circuits_(AddGauges(registry, "flotilla_router_circuit_state",
                          "Circuit breaker of the replica: 0 closed, 1 half open, 2 open.")),
      index_pages_(AddGauges(registry, "flotilla_router_cache_index_pages",
                             "Pages that the replica has cached, as far as the router knows; only "
                             "with --policy prefix_aware.")),
      index_left_out_(AddCounters(registry, "flotilla_router_cache_index_left_out_total",
                                  "Times that a page was not noted because of "
                                  "--max-cache-index-pages.")),
      duration_(AddHistogram(registry,
                             {"flotilla_router_request_duration_seconds",
                              "From the request's last byte to the answer's end, of HTTP's POST "
                              "and gRPC."},
                             kSeconds)),
      ttft_(AddHistogram(registry,
                         {"flotilla_router_ttft_seconds",
                          "From the request's last byte to the first piece of the answer."},
                         kSeconds)),
      failover_pause_(AddHistogram(registry,
                                   {"flotilla_router_failover_pause_seconds",
                                    "From the loss of a request with its replica to its next "
                                    "token."},
                                   kSeconds)),
      admission_wait_(AddHistogram(registry,
                                   {"flotilla_router_admission_wait_seconds",
                                    "In the admission queue, of requests that a replica took from "
                                    "there."},
                                   kSeconds)),
      in_flight_(AddGauge(registry, {"flotilla_router_requests_in_flight",
                                     "Requests that wait for their answer or its end."})),
      parked_(AddGauge(registry, {"flotilla_router_requests_parked",
                                  "Requests that wait for a replica to be there."})),
      admission_queue_(AddGauge(
          registry, {"flotilla_router_admission_queue_depth", "Requests in the admission queue."})),
      replicas_(AddGauge(registry, {"flotilla_router_replicas",
                                    "Replicas that the router knows, healthy or not."})),
      replicas_left_out_(AddGauge(
          registry, {"flotilla_router_replicas_left_out", "Addresses beyond --max-replicas."})),
      body_bytes_(AddGauge(
          registry,
          {"flotilla_router_http_buffered_body_bytes",
           "Memory for bodies of HTTP requests that are not answered yet, or still worked on."})),
      answer_bytes_(AddGauge(registry, {"flotilla_router_buffered_answer_bytes",
                                        "Memory for answers, or parts of them, that are kept "
                                        "before their clients get them."})),
      stream_buffer_(AddGauge(registry, {"flotilla_router_stream_buffer_bytes",
                                         "Bytes of answers that clients have not taken yet."})),
      disconnects_(AddCounter(registry, {"flotilla_router_client_disconnects_total",
                                         "Clients that went away before the answer's end."})),
      ejections_(AddCounter(registry, {"flotilla_router_ejections_total",
                                       "Times that a replica got nothing for a while because it "
                                       "was much slower than the others."})),
      retries_denied_(AddCounter(registry, {"flotilla_router_retries_denied_total",
                                            "Refused requests that were not given to another "
                                            "replica because too many were already."})),
      routed_prompt_tokens_(AddCounter(registry, {"flotilla_router_routed_prompt_tokens_total",
                                                  "Tokens of prompts given to a replica, with "
                                                  "--policy prefix_aware."})),
      routed_cached_tokens_(AddCounter(
          registry, {"flotilla_router_routed_cached_tokens_total",
                     "Of these, tokens that the replica had cached when it was chosen."})) {
  // All reasons from the start: a rate needs the 0 before the first.
  for (const char* reason :
       {"no_replica",       "replica_full",      "draining",      "slow_client",
        "max_connections",  "timeout",           "header_limit",  "body_limit",
        "body_memory",      "answer_limit",      "answer_memory", "max_requests",
        "bad_request",      "api_key",           "tenant_limit",  "admission_full",
        "admission_tenant", "admission_timeout", "tls_handshake", "plain_http",
        "reset_flood",      "max_failovers"})
    rejections_.Add({{"reason", reason}});
  for (const char* outcome : {"exported", "failed", "queue_full"})
    traces_.Add({{"outcome", outcome}});
  for (const char* result : {"found", "nothing", "failed"}) discoveries_.Add({{"result", result}});
  for (const char* reason : {"refused", "replica_lost"}) {
    retries_.Add({{"reason", reason}});
    failovers_.Add({{"reason", reason}});
  }
}

void RouterMetrics::Request(const std::string& route, const std::string& code,
                            std::optional<double> seconds) {
  if (seconds.has_value()) duration_.Observe(*seconds);
  const std::lock_guard lock(mutex_);
  CounterLocked(route, code).Increment();
}

prometheus::Counter& RouterMetrics::CounterLocked(const std::string& route,
                                                  const std::string& code) {
  prometheus::Counter*& counter = by_route_[route][code];
  if (counter == nullptr) counter = &requests_.Add({{"route", route}, {"code", code}});
  return *counter;
}

void RouterMetrics::Expect(const std::string& route, std::initializer_list<const char*> codes) {
  const std::lock_guard lock(mutex_);
  for (const char* code : codes) CounterLocked(route, code);
}

void RouterMetrics::Backend(const std::string& replica, bool healthy, size_t active, int circuit) {
  const std::lock_guard lock(mutex_);
  auto found = backends_.find(replica);
  if (found == backends_.end()) {
    const prometheus::Labels labels = {{"replica", replica}};
    const BackendGauges gauges = {healthy_.Add(labels), active_.Add(labels), circuits_.Add(labels)};
    found = backends_.emplace(replica, gauges).first;
  }
  found->second.healthy.Set(healthy ? 1 : 0);
  found->second.active.Set(static_cast<double>(active));
  found->second.circuit.Set(circuit);
}

void RouterMetrics::ForgetBackend(const std::string& replica) {
  const std::lock_guard lock(mutex_);
  const auto found = backends_.find(replica);
  if (found != backends_.end()) {
    healthy_.Remove(&found->second.healthy);
    active_.Remove(&found->second.active);
    circuits_.Remove(&found->second.circuit);
    backends_.erase(found);
  }
  index_pages_.Remove(&index_pages_.Add({{"replica", replica}}));
  index_left_out_.Remove(&index_left_out_.Add({{"replica", replica}}));
}

}  // namespace flotilla
