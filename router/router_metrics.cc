#include "router/router_metrics.h"

#include "common/base/metrics.h"

namespace flotilla {
namespace {

const prometheus::Histogram::BucketBoundaries kSeconds = {.001, .005, .01, .02, .04, .06, .08, .1,
                                                          .25,  .5,   .75, 1,   2.5, 5,   7.5, 10,
                                                          20,   40,   80,  160, 640, 2560};

}  // namespace

RouterMetrics::RouterMetrics(prometheus::Registry* registry)
    : requests_(AddCounters(registry, "flotilla_router_requests_total",
                            "Requests answered, by route and status code.")),
      rejections_(AddCounters(registry, "flotilla_router_rejections_total",
                              "Requests refused for a limit or for want of a replica, by reason.")),
      retries_(AddCounters(registry, "flotilla_router_retries_total",
                           "Requests given to another replica before their first token.")),
      failovers_(
          AddCounters(registry, "flotilla_router_failovers_total",
                      "Requests that another replica, or a restarted one, went on with after "
                      "their first token, by reason.")),
      discoveries_(AddCounters(registry, "flotilla_router_discoveries_total",
                               "Answers to --replica-dns, by result.")),
      healthy_(AddGauges(registry, "flotilla_router_backend_healthy",
                         "1 while the replica takes requests.")),
      active_(AddGauges(registry, "flotilla_router_backend_requests_active",
                        "Requests of this router that the replica has.")),
      duration_(AddHistogram(registry,
                             {"flotilla_router_request_duration_seconds",
                              "From the request's last byte to the answer's end."},
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
      in_flight_(AddGauge(registry, {"flotilla_router_requests_in_flight",
                                     "Requests that wait for their answer or its end."})),
      replicas_(AddGauge(registry, {"flotilla_router_replicas",
                                    "Replicas that the router knows, healthy or not."})),
      replicas_left_out_(AddGauge(
          registry, {"flotilla_router_replicas_left_out", "Addresses beyond --max-replicas."})),
      body_bytes_(
          AddGauge(registry, {"flotilla_router_http_buffered_body_bytes",
                              "Memory for bodies of HTTP requests that are not answered yet."})),
      stream_buffer_(AddGauge(registry, {"flotilla_router_stream_buffer_bytes",
                                         "Bytes of answers that clients have not taken yet."})),
      disconnects_(AddCounter(registry, {"flotilla_router_client_disconnects_total",
                                         "Clients that went away before the answer's end."})) {
  // All reasons from the start: a rate needs the 0 before the first.
  for (const char* reason :
       {"no_replica", "replica_full", "draining", "slow_client", "max_connections", "timeout",
        "header_limit", "body_limit", "body_memory", "max_requests", "bad_request", "api_key",
        "tenant_limit"})
    rejections_.Add({{"reason", reason}});
  for (const char* result : {"found", "nothing", "failed"}) discoveries_.Add({{"result", result}});
  for (const char* reason : {"refused", "replica_lost"}) {
    retries_.Add({{"reason", reason}});
    failovers_.Add({{"reason", reason}});
  }
}

void RouterMetrics::Request(const std::string& route, const std::string& code, double seconds) {
  requests_.Add({{"route", route}, {"code", code}}).Increment();
  duration_.Observe(seconds);
}

}  // namespace flotilla
