// The metrics of a plan link, by the proxy at its head's end.
//
// Threads: any (prometheus-cpp). Ownership: the registry owns the figures and outlives this.
#pragma once

#include <string>

#include "common/base/metrics.h"

namespace flotilla {

struct PlanLinkMetrics {
  PlanLinkMetrics(prometheus::Registry* registry, uint32_t rank) {
    const prometheus::Labels labels = {{"rank", std::to_string(rank)}};
    connected = &AddGauge(registry,
                          {"flotilla_worker_plan_link_connected",
                           "1 while this rank, of another host, has its plans from here.", labels});
    plans = &AddCounter(registry, {"flotilla_worker_plan_link_plans_total",
                                   "Plans sent to this rank, of another host.", labels});
    bytes = &AddCounter(registry, {"flotilla_worker_plan_link_bytes_total",
                                   "Bytes of plans sent to this rank, of another host.", labels});
  }
  prometheus::Gauge* connected;
  prometheus::Counter* plans;
  prometheus::Counter* bytes;
};

}  // namespace flotilla
