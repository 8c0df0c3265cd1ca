#include "deploy/launcher/process_metrics.h"

#include <map>

#include "common/base/metrics.h"

namespace flotilla {

ProcessMetrics::ProcessMetrics()
    : registry_(std::make_shared<prometheus::Registry>()),
      up_(&AddGauges(registry_.get(), "flotilla_launcher_process_up",
                     "1 while the process runs, 0 while it is down.")),
      restarts_(&AddCounters(registry_.get(), "flotilla_launcher_process_restarts_total",
                             "Times the process was started again after it ended.")) {}

ManagedProcess::Wiring ProcessMetrics::Wire(EventLoop* loop, const LogMux* logs,
                                            const std::string& process, const std::string& replica,
                                            const std::string& socket) {
  std::map<std::string, std::string> labels = {{"process", process}};
  MetricsSource source{socket, {}};
  if (!replica.empty()) {
    labels["replica"] = replica;
    source.labels.emplace_back("replica", replica);
  }
  AddSource(std::move(source));
  return {loop, logs, &up_->Add(labels), &restarts_->Add(labels)};
}

}  // namespace flotilla
