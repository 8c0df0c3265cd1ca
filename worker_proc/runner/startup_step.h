// A step of a start in the log, with its time and bytes.
#pragma once

#include "common/base/clock.h"
#include "common/base/log.h"

namespace flotilla {

// Logs what a start-up step cost when it goes out of scope.
class StartupStep {
 public:
  StartupStep(const Clock* clock, const char* step)
      : clock_(clock), step_(step), start_ns_(clock->NowNs()) {}
  ~StartupStep() {
    Log().info("startup {} {} {}", Kv("step", step_),
               Kv("seconds", static_cast<double>(clock_->NowNs() - start_ns_) * 1e-9),
               Kv("bytes", bytes));
  }
  uint64_t bytes = 0;

 private:
  const Clock* const clock_;
  const char* const step_;
  const int64_t start_ns_;
};

}  // namespace flotilla
