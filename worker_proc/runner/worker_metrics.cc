#include "worker_proc/runner/worker_metrics.h"

#include <string>

namespace flotilla {

WorkerMetrics::WorkerMetrics(prometheus::Registry* registry, uint32_t rank) {
  const std::string label = std::to_string(rank);
  auto& steps = prometheus::BuildHistogram()
                    .Name("flotilla_worker_step_seconds")
                    .Help("Time of one step on this rank, by what its rows were")
                    .Register(*registry);
  for (size_t mode = 0; mode < kModes; ++mode) {
    step_seconds_[mode] =
        &steps.Add({{"mode", ForwardModeName(static_cast<ForwardMode>(mode))}, {"rank", label}},
                   prometheus::Histogram::BucketBoundaries{1e-3, 3e-3, 0.01, 0.02, 0.03, 0.05, 0.1,
                                                           0.2, 0.3, 0.5, 1, 2, 5, 10, 30});
  }
  auto& memory = prometheus::BuildGauge()
                     .Name("flotilla_worker_memory_bytes")
                     .Help("Memory of this rank by what it is for")
                     .Register(*registry);
  weights_bytes_ = &memory.Add({{"kind", "weights"}, {"rank", label}});
  activations_bytes_ = &memory.Add({{"kind", "activations"}, {"rank", label}});
  kv_cache_bytes_ = &memory.Add({{"kind", "kv_cache"}, {"rank", label}});
  const auto counter = [&](const char* name, const char* help) {
    return &prometheus::BuildCounter().Name(name).Help(help).Register(*registry).Add(
        {{"rank", label}});
  };
  tokens_ = counter("flotilla_worker_tokens_total", "Input tokens that went through the model");
  plan_misses_ = counter("flotilla_worker_plan_misses_total",
                         "Steps that needed something which was not prepared at start");
  rejected_frames_ =
      counter("flotilla_worker_rejected_frames_total", "Frames of the step ring that were refused");
}

void WorkerMetrics::ObserveStep(ForwardMode mode, double seconds) {
  step_seconds_[static_cast<size_t>(mode)]->Observe(seconds);
}

void WorkerMetrics::SetMemory(const BackendMemory& memory) {
  weights_bytes_->Set(static_cast<double>(memory.weights));
  activations_bytes_->Set(static_cast<double>(memory.activations));
  kv_cache_bytes_->Set(static_cast<double>(memory.kv_cache));
}

}  // namespace flotilla
