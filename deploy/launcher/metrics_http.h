// One /metrics for all processes of a launcher: a small HTTP/1.1 server that asks every process's
// metrics socket at the time of the scrape and merges the pages. GET /metrics, and
// /metrics/vllm or /metrics?names=vllm for the schedulers' under vLLM's names.
//
// Threads: one of its own, which sleeps in accept; a scrape is answered before the next is taken.
// Ownership: `metrics` outlives it. Errors: Start fails if the port can't be bound; a process that
// does not answer within kSourceTimeoutNs is left out of that scrape.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "common/base/status.h"
#include "common/base/unique_fd.h"
#include "deploy/launcher/process_metrics.h"

namespace flotilla {

inline constexpr int64_t kSourceTimeoutNs = 500'000'000;

// What each socket gives until it closes, asked all at once; empty where nothing came in time.
std::vector<std::string> GatherPages(const std::vector<MetricsSource>& sources, int64_t timeout_ns);

class MetricsHttpServer {
 public:
  // Port 0: any free one. Error AlreadyExists: the port is taken.
  static StatusOr<std::unique_ptr<MetricsHttpServer>> Start(const std::string& host, uint16_t port,
                                                            const ProcessMetrics* metrics);
  ~MetricsHttpServer();
  MetricsHttpServer(const MetricsHttpServer&) = delete;
  uint16_t port() const { return port_; }

 private:
  MetricsHttpServer(UniqueFd listener, uint16_t port, const ProcessMetrics* metrics);
  void Run();
  std::string Respond(const std::string& request) const;

  UniqueFd listener_;
  const uint16_t port_;
  const ProcessMetrics* const metrics_;
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

}  // namespace flotilla
