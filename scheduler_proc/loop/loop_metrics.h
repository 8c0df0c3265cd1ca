// The scheduler's metrics (flotilla_scheduler_…, labels {model, replica}) and its two log lines of
// requirement 001: one a prefill step, one every decode_log_interval decode steps.
//
// Threads: On… by the loop only; the registry is scraped from any. Times: CLOCK_MONOTONIC ns.
#pragma once

#include <array>
#include <map>
#include <memory>
#include <string>

#include "common/base/metrics.h"
#include "scheduler_proc/core/scheduler.h"

namespace flotilla {

class LoopMetrics {
 public:
  struct Options {
    std::string model;
    std::string replica;
    uint32_t decode_log_interval = 40;  // decode steps; 0: never
    uint32_t page_size = 16;
  };
  LoopMetrics(const Options& options, prometheus::Registry* registry);

  // A plan was published; stats before and after planning it.
  void OnPlan(const StepPlan& plan, const SchedulerStats& before, const SchedulerStats& after,
              int64_t now_ns);
  void OnResult(const StepResult& result, const SchedulerStats& stats);
  // last_token_ns: 0 for the request's first token.
  void OnToken(int64_t arrival_ns, int64_t last_token_ns, int64_t now_ns);
  void OnFinished(const ReqOutput& output, int64_t arrival_ns, int64_t now_ns);
  void OnRejected(absl::StatusCode code);                     // any thread
  void OnRejectedResult() { rejected_results_.Increment(); }  // a frame of rank 0
  void OnServing(bool serving, uint32_t num_pages);
  // After every turn that changed something.
  void OnStats(const SchedulerStats& stats);
  void OnFlight(int64_t covered_ns) { flight_.Set(static_cast<double>(covered_ns) * 1e-9); }

 private:
  // Adds the prefix and the two labels that all have.
  MetricSpec Spec(const char* name, const char* help, prometheus::Labels labels) const;
  prometheus::Counter& Counter(const char* name, const char* help, prometheus::Labels extra = {});
  prometheus::Gauge& Gauge(const char* name, const char* help, prometheus::Labels extra = {});
  prometheus::Histogram& Histogram(const char* name, const char* help,
                                   const std::vector<double>& buckets,
                                   prometheus::Labels extra = {});
  prometheus::Counter& Rejections(const char* reason);
  prometheus::Counter& Finished(Finish finish);
  void LogPrefill(const StepPlan& plan, uint64_t new_tokens, uint64_t cached,
                  const SchedulerStats& stats);
  void LogDecode(const SchedulerStats& stats, int64_t now_ns);

  const Options options_;
  prometheus::Registry* const registry_;
  SchedulerStats counted_;  // what the counters hold already
  uint32_t decode_steps_ = 0;
  int64_t last_decode_log_ns_ = 0;
  uint64_t last_decode_log_tokens_ = 0;
  bool cuda_graph_ = false;  // the last result's
  int64_t last_end_ns_ = 0;  // of the step before, if the next followed at once
  // Of the plans that may be in flight, by step_id.
  std::array<const char*, 4> modes_ = {"decode", "decode", "decode", "decode"};

  prometheus::Gauge &running_, &waiting_, &usage_, &unaccounted_, &flight_;
  prometheus::Gauge* serving_ = nullptr;
  prometheus::Counter &prompt_tokens_, &generated_, &cached_, &queries_, &hits_, &draft_tokens_,
      &accepted_, &retractions_;
  prometheus::Counter& rejected_results_;
  prometheus::Histogram &ttft_, &inter_token_, &e2e_, &queue_time_, &prefill_time_, &decode_time_;
  prometheus::Histogram &request_prompt_, &request_generated_, &gap_, &batch_tokens_;
  std::map<std::string, prometheus::Histogram*> step_seconds_;
  std::array<prometheus::Histogram*, static_cast<size_t>(WaitReason::kNumReasons)> wait_time_;
};

}  // namespace flotilla
