// The worker's metrics, each labelled with its rank.
//
// Threads: any (prometheus-cpp). Ownership: the registry owns the figures and outlives this.
#pragma once

#include <prometheus/counter.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>

#include "common/base/metrics.h"
#include "worker_proc/model/backend.h"

namespace flotilla {

class WorkerMetrics {
 public:
  WorkerMetrics(prometheus::Registry* registry, uint32_t rank);

  void ObserveStep(ForwardMode mode, double seconds);
  void SetMemory(const BackendMemory& memory);
  void AddTokens(uint32_t tokens) { tokens_->Increment(tokens); }
  void AddStepAhead() { steps_ahead_->Increment(); }
  void AddRejectedFrame() { rejected_frames_->Increment(); }
  void SetPlanMisses(uint64_t total) { SetTotal(plan_misses_, total); }
  void SetGraphSteps(const GraphSteps& total);
  // Of the result ring, by its writer.
  void SetResultRingFill(double ratio);

 private:
  static constexpr size_t kModes = 4;
  prometheus::Histogram* step_seconds_[kModes];
  prometheus::Gauge* weights_bytes_;
  prometheus::Gauge* activations_bytes_;
  prometheus::Gauge* kv_cache_bytes_;
  prometheus::Gauge* packed_weight_bytes_;
  prometheus::Counter* tokens_;
  prometheus::Counter* steps_ahead_;
  prometheus::Counter* rejected_frames_;
  prometheus::Counter* plan_misses_;
  prometheus::Counter* eager_steps_;
  prometheus::Counter* piecewise_steps_;
  prometheus::Counter* full_steps_;
  prometheus::Counter* graph_tokens_;
  prometheus::Counter* padding_tokens_;
  prometheus::Gauge* result_ring_fill_ = nullptr;  // rank 0
};

}  // namespace flotilla
