#include "worker_proc/runner/worker_metrics.h"

#include <string>

#include "common/base/check.h"
#include "common/base/metrics.h"
#include "shm/ring_metrics.h"

namespace flotilla {

WorkerMetrics::WorkerMetrics(prometheus::Registry* registry, uint32_t rank) {
  const std::string label = std::to_string(rank);
  for (size_t mode = 0; mode < kModes; ++mode) {
    if (static_cast<ForwardMode>(mode) == ForwardMode::kIdle) continue;  // nothing runs
    step_seconds_[mode] = &AddHistogram(
        registry,
        {"flotilla_worker_step_seconds",
         "A step on this rank, by what its rows were.",
         {{"mode", ForwardModeName(static_cast<ForwardMode>(mode))}, {"rank", label}}},
        {1e-3, 3e-3, 0.01, 0.02, 0.03, 0.05, 0.1, 0.2, 0.3, 0.5, 1, 2, 5, 10, 30});
  }
  const auto memory = [&](const char* kind) {
    return &AddGauge(registry, {"flotilla_worker_memory_bytes",
                                "Memory of this rank, by what it is for.",
                                {{"kind", kind}, {"rank", label}}});
  };
  weights_bytes_ = memory("weights");
  activations_bytes_ = memory("activations");
  kv_cache_bytes_ = memory("kv_cache");
  packed_weight_bytes_ =
      &AddGauge(registry, {"flotilla_worker_packed_weight_bytes",
                           "Weights that this start of the rank packed; the rest it read as an "
                           "earlier one had packed them.",
                           {{"rank", label}}});
  const auto counter = [&](const char* name, const char* help) {
    return &AddCounter(registry, {name, help, {{"rank", label}}});
  };
  tokens_ = counter("flotilla_worker_tokens_total", "Input tokens that went through the model.");
  plan_misses_ = counter("flotilla_worker_plan_misses_total",
                         "Steps whose plan was not prepared before; 0 but with "
                         "--disable-precompile.");
  const auto steps = [&](const char* graph) {
    return &AddCounter(registry,
                       {"flotilla_worker_graph_steps_total",
                        "Steps of a rank whose device has graphs, by what was replayed of them.",
                        {{"graph", graph}, {"rank", label}}});
  };
  eager_steps_ = steps("none");
  piecewise_steps_ = steps("piecewise");
  full_steps_ = steps("full");
  graph_tokens_ = counter("flotilla_worker_graph_tokens_total", "Tokens of steps from graphs.");
  padding_tokens_ = counter("flotilla_worker_graph_padding_tokens_total",
                            "Tokens that graphs computed besides, to fill their size.");
  steps_ahead_ = counter("flotilla_worker_steps_ahead_total",
                         "Steps that the rank's device was given while it ran the one before.");
  rejected_frames_ = &AddCounter(registry, RejectedFramesSpec("step", {{"rank", label}}));
  if (rank == 0) result_ring_fill_ = &AddGauge(registry, RingFillRatioSpec("result"));
}

void WorkerMetrics::ObserveStep(ForwardMode mode, double seconds) {
  if (mode != ForwardMode::kIdle) step_seconds_[static_cast<size_t>(mode)]->Observe(seconds);
}

void WorkerMetrics::SetGraphSteps(const GraphSteps& total) {
  SetTotal(eager_steps_, total.eager);
  SetTotal(piecewise_steps_, total.piecewise);
  SetTotal(full_steps_, total.full);
  SetTotal(graph_tokens_, total.tokens);
  SetTotal(padding_tokens_, total.padding_tokens);
}

void WorkerMetrics::SetResultRingFill(double ratio) {
  CHECK(result_ring_fill_ != nullptr);
  result_ring_fill_->Set(ratio);
}

void WorkerMetrics::SetMemory(const BackendMemory& memory) {
  weights_bytes_->Set(static_cast<double>(memory.weights));
  activations_bytes_->Set(static_cast<double>(memory.activations));
  kv_cache_bytes_->Set(static_cast<double>(memory.kv_cache));
  packed_weight_bytes_->Set(static_cast<double>(memory.packed));
}

}  // namespace flotilla
