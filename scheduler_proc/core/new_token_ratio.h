// The share of their remaining max_new_tokens for which pages are kept free, for all that run and
// for each request that is admitted. Learned: few requests use all they ask for, so the ratio falls
// a little with each step that decodes; a retraction shows that it fell too far and raises it to
// what would have sufficed.
//
// It starts at initial() = init_new_token_ratio · schedule_conservativeness (at most 1) and falls
// from there, or from where it was raised to, in new_token_ratio_decay_steps steps to
// min_new_token_ratio_factor of initial(). It starts again when nothing is left to do.
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
  // Who was refused for its sake is worth asking again once it fell by this share of itself.
  static constexpr double kShareToAskAgain = 0.05;

  explicit NewTokenRatio(const SchedulerConfig& config)
      : initial_(std::min(1.0, config.init_new_token_ratio * config.schedule_conservativeness)),
        least_(std::min(1.0, initial_ * config.min_new_token_ratio_factor)),
        decay_steps_(config.new_token_ratio_decay_steps) {
    Reset();
  }

  double value() const { return value_; }
  double initial() const { return initial_; }
  void Reset() { Set(initial_); }
  void OnDecode() { value_ = std::max(least_, value_ - decay_); }
  // Since it was `refused`: as far as is worth asking again, or as far as it falls.
  bool FellSince(double refused) const {
    return value_ < refused && (value_ <= (1 - kShareToAskAgain) * refused || value_ <= least_);
  }
  // `running` are those that stay.
  void OnRetract(std::span<Req* const> running) {
    double produced = 0, wanted = 1;
    for (const Req* req : running) {
      produced += req->num_output() + kRetractDecodeSteps;
      wanted += req->max_total - req->prompt_len;
    }
    Set(std::max(value_, std::min(1.0, produced / wanted)));
  }

  // For snapshot.cc: what is not configured, in both directions.
  template <typename Archive, typename Self>
  static void Fields(Archive& field, Self& self) {
    field(self.value_), field(self.decay_);
  }
  bool valid() const { return value_ >= 0 && value_ <= 1 && decay_ >= 0 && decay_ <= 1; }

 private:
  void Set(double value) {
    value_ = value;
    decay_ = std::max(0.0, value_ - least_) / decay_steps_;
  }

  const double initial_, least_;
  const uint32_t decay_steps_;
  double value_ = 0, decay_ = 0;
};
static_assert(sizeof(NewTokenRatio) == 40);  // Fields lists all that changes

}  // namespace flotilla
