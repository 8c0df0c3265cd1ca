// A process's metrics: one prometheus-cpp registry, how metrics get into it, and a server that
// gives its text form to the launcher over a Unix socket. The launcher merges all processes into
// one /metrics (design: one scrape a pod).
//
// Names: flotilla_<process>_<what>_<unit>[_total]; never a label made from a client's bytes.
// Threads: the registry is thread-safe; MetricsServer runs one thread that sleeps in accept().
#pragma once

#include <prometheus/counter.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>

#include <atomic>
#include <memory>
#include <string>
#include <thread>

#include "common/base/status.h"
#include "common/base/unix_listener.h"

namespace flotilla {

struct MetricSpec {
  std::string name;
  std::string help;
  prometheus::Labels labels = {};
};
// The metric of this name and these labels in `registry`, which owns it; made by the first call.
prometheus::Counter& AddCounter(prometheus::Registry* registry, const MetricSpec& spec);
prometheus::Gauge& AddGauge(prometheus::Registry* registry, const MetricSpec& spec);
prometheus::Histogram& AddHistogram(prometheus::Registry* registry, const MetricSpec& spec,
                                    const prometheus::Histogram::BucketBoundaries& buckets);
// The same for metrics whose labels come later.
prometheus::Family<prometheus::Counter>& AddCounters(prometheus::Registry* registry,
                                                     const std::string& name,
                                                     const std::string& help);
prometheus::Family<prometheus::Gauge>& AddGauges(prometheus::Registry* registry,
                                                 const std::string& name, const std::string& help);

// A counter that is counted elsewhere, by its total so far, which never falls.
void SetTotal(prometheus::Counter* counter, uint64_t total);

// Text exposition format 0.0.4 of everything in `registry`.
std::string RenderMetrics(const prometheus::Registry& registry);

// build_info and the process_* family (cpu seconds, resident bytes, open fds, start time) of this
// process, labelled {process="…"}, so that the merged page stays unambiguous.
std::string RenderProcessMetrics(const std::string& process);

// Gives both.
class MetricsServer {
 public:
  // Listens on the Unix socket `path`; each connection gets one rendering and is closed.
  // An empty path means no server. FailedPrecondition: the socket can't be bound.
  static StatusOr<std::unique_ptr<MetricsServer>> Start(
      const std::string& path, const std::string& process,
      std::shared_ptr<prometheus::Registry> registry);
  ~MetricsServer();
  MetricsServer(const MetricsServer&) = delete;
  MetricsServer& operator=(const MetricsServer&) = delete;

 private:
  MetricsServer(UnixListener listener, std::string process,
                std::shared_ptr<prometheus::Registry> registry);
  void Run();

  UnixListener listener_;
  const std::string process_;
  const std::shared_ptr<prometheus::Registry> registry_;
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

}  // namespace flotilla
