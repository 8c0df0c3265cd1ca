#include "router/router_metrics.h"

namespace flotilla {
namespace {

const prometheus::Histogram::BucketBoundaries kSeconds = {.001, .005, .01, .02, .04, .06, .08, .1,
                                                          .25,  .5,   .75, 1,   2.5, 5,   7.5, 10,
                                                          20,   40,   80,  160, 640, 2560};

prometheus::Family<prometheus::Counter>& Counters(prometheus::Registry* registry, const char* name,
                                                  const char* help) {
  return prometheus::BuildCounter().Name(name).Help(help).Register(*registry);
}

prometheus::Family<prometheus::Gauge>& Gauges(prometheus::Registry* registry, const char* name,
                                              const char* help) {
  return prometheus::BuildGauge().Name(name).Help(help).Register(*registry);
}

prometheus::Histogram& Seconds(prometheus::Registry* registry, const char* name, const char* help) {
  return prometheus::BuildHistogram().Name(name).Help(help).Register(*registry).Add({}, kSeconds);
}

}  // namespace

RouterMetrics::RouterMetrics(prometheus::Registry* registry)
    : requests_(Counters(registry, "flotilla_router_requests_total",
                         "Requests answered, by route and status code.")),
      rejections_(Counters(registry, "flotilla_router_rejections_total",
                           "Requests refused for a limit or for want of a replica, by reason.")),
      retries_(Counters(registry, "flotilla_router_retries_total",
                        "Requests given to another replica before their first token.")),
      healthy_(Gauges(registry, "flotilla_router_backend_healthy",
                      "1 while the replica takes requests.")),
      active_(Gauges(registry, "flotilla_router_backend_requests_active",
                     "Requests of this router that the replica has.")),
      duration_(Seconds(registry, "flotilla_router_request_duration_seconds",
                        "From the request's last byte to the answer's end.")),
      ttft_(Seconds(registry, "flotilla_router_ttft_seconds",
                    "From the request's last byte to the first piece of the answer.")),
      in_flight_(Gauges(registry, "flotilla_router_requests_in_flight",
                        "Requests that wait for their answer or its end.")
                     .Add({})),
      disconnects_(Counters(registry, "flotilla_router_client_disconnects_total",
                            "Clients that went away before the answer's end.")
                       .Add({})) {}

void RouterMetrics::Request(const std::string& route, const std::string& code, double seconds) {
  requests_.Add({{"route", route}, {"code", code}}).Increment();
  duration_.Observe(seconds);
}

}  // namespace flotilla
