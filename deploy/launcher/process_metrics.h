// What the launcher counts of each process (flotilla_<process>_restarts_total and
// …_heartbeat_age_seconds, flotilla_launcher_process_up), and the list of all processes' metrics
// sockets, from which /metrics is gathered.
//
// Threads: Wire() by the main thread before the server starts; afterwards everything is const or
// thread-safe. Ownership: the registry owns the metrics it hands out.
#pragma once

#include <prometheus/registry.h>

#include <memory>
#include <string>
#include <vector>

#include "deploy/launcher/managed_process.h"
#include "deploy/launcher/metrics_merge.h"

namespace flotilla {

// Where one process gives its metrics, and the labels that its samples get if they lack them.
struct MetricsSource {
  std::string socket;
  MetricLabels labels;
};

class ProcessMetrics {
 public:
  ProcessMetrics();

  // A process's gauges, and its socket as a source. `process`: "router", "worker-0", …; `replica`
  // is empty for the router.
  ManagedProcess::Wiring Wire(EventLoop* loop, const LogMux* logs, const std::string& process,
                              const std::string& replica, const std::string& socket);
  void AddSource(MetricsSource source) { sources_.push_back(std::move(source)); }

  const std::vector<MetricsSource>& sources() const { return sources_; }
  const std::shared_ptr<prometheus::Registry>& registry() const { return registry_; }

 private:
  std::shared_ptr<prometheus::Registry> registry_;
  prometheus::Family<prometheus::Gauge>* up_;
  std::vector<MetricsSource> sources_;
};

}  // namespace flotilla
