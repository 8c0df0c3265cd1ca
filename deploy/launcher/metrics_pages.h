// One /metrics for all processes of a launcher: asks every process's metrics socket at the time of
// the scrape and merges the pages. /metrics, and /metrics/vllm or /metrics?names=vllm for the
// schedulers' under vLLM's names.
//
// Threads: any. Errors: a process that does not answer within kSourceTimeoutNs is left out of that
// scrape.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "deploy/launcher/process_metrics.h"

namespace flotilla {

inline constexpr int64_t kSourceTimeoutNs = 500'000'000;
inline constexpr char kMetricsPagesHint[] =
    "here are /metrics, /metrics/vllm, /metrics?names=vllm, /health/live and /health/ready\n";

// The page that a GET's target names; nothing if there is no such page. Other parameters are
// ignored.
std::optional<std::string> MergedMetrics(const std::vector<MetricsSource>& sources,
                                         const std::string& target);

}  // namespace flotilla
