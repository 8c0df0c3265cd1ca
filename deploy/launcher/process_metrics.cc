#include "deploy/launcher/process_metrics.h"

#include <algorithm>

#include "common/base/metrics.h"

namespace flotilla {

ProcessMetrics::ProcessMetrics()
    : registry_(std::make_shared<prometheus::Registry>()),
      up_(&AddGauges(registry_.get(), "flotilla_launcher_process_up",
                     "1 while the process runs, 0 while it is down.")) {}

ManagedProcess::Wiring ProcessMetrics::Wire(EventLoop* loop, const LogMux* logs,
                                            const std::string& process, const std::string& replica,
                                            const std::string& socket) {
  // "worker-0" is rank 0 of flotilla_worker_…
  const size_t dash = std::min(process.find('-'), process.size());
  const std::string prefix = "flotilla_" + process.substr(0, dash);
  prometheus::Labels labels;
  if (dash < process.size()) labels["rank"] = process.substr(dash + 1);
  MetricsSource source{socket, {}};
  if (!replica.empty()) {
    labels["replica"] = replica;
    source.labels.emplace_back("replica", replica);
  }
  AddSource(std::move(source));
  ManagedProcess::Wiring wiring{loop, logs};
  wiring.restarts = &AddCounter(
      registry_.get(),
      {prefix + "_restarts_total", "Times the process was started again after it ended.", labels});
  if (!replica.empty())
    wiring.heartbeat_age = &AddGauge(
        registry_.get(), {prefix + "_heartbeat_age_seconds",
                          "Since its loop last told that it makes progress, or since its start; "
                          "looked at twice a second.",
                          labels});
  labels.erase("rank");
  labels["process"] = process;
  // There from its first start on: what was never up is not down.
  wiring.up = [up = up_, labels](bool is_up) { up->Add(labels).Set(is_up ? 1 : 0); };
  return wiring;
}

}  // namespace flotilla
