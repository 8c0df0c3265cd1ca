// The share of their remaining max_new_tokens for which pages are kept free, for all that run and
// for each request that is admitted. Learned: few requests use all they ask for, so the ratio falls
// a little with each step that decodes; a retraction shows that it fell too far and raises it to
// what would have sufficed.
//
// It starts at initial() = init_new_token_ratio · schedule_conservativeness (at most 1), falls in
// new_token_ratio_decay_steps steps to min_new_token_ratio_factor of that, and starts again when
// nothing is left to do.
//
// Threads: one. Errors: none.
// Source: SGLang's new_token_ratio, its retract_decode and --schedule-conservativeness.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>

#include "scheduler_proc/core/req.h"
#include "scheduler_proc/core/scheduler.h"

namespace flotilla {

class NewTokenRatio {
 public:
  // Steps of decoding that those who stay after a retraction should manage without another.
  static constexpr uint32_t kRetractDecodeSteps = 20;

  explicit NewTokenRatio(const SchedulerConfig& config)
      : initial_(std::min(1.0, config.init_new_token_ratio * config.schedule_conservativeness)),
        least_(std::min(1.0, initial_ * config.min_new_token_ratio_factor)),
        decay_((initial_ - least_) / config.new_token_ratio_decay_steps),
        value_(initial_) {}

  double value() const { return value_; }
  double initial() const { return initial_; }
  void Reset() { value_ = initial_; }
  void OnDecode() { value_ = std::max(least_, value_ - decay_); }
  // `running` are those that stay.
  void OnRetract(std::span<Req* const> running) {
    double produced = 0, wanted = 1;
    for (const Req* req : running) {
      produced += req->num_output() + kRetractDecodeSteps;
      wanted += req->max_total - req->prompt_len;
    }
    value_ = std::max(value_, std::min(1.0, produced / wanted));
  }

 private:
  const double initial_, least_, decay_;
  double value_;
};

}  // namespace flotilla
