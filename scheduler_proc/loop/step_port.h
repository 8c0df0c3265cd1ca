// The loop's way to the ranks: the step ring and the collective's abort, behind an interface so
// that the epoch protocol can be tested without shared memory. Threads: the loop's.
#pragma once

#include <prometheus/gauge.h>

#include <cstdint>
#include <string>

#include "common/base/clock.h"
#include "common/base/status.h"
#include "shm/collective.h"
#include "shm/ring.h"
#include "shm/step_plan.h"

namespace flotilla {

class StepPort {
 public:
  virtual ~StepPort() = default;
  // As RingWriter's.
  virtual void ActivateReader(uint32_t rank) = 0;
  virtual void DeactivateReader(uint32_t rank) = 0;
  // Every active rank sees the plan. DeadlineExceeded: a rank does not read (1 s).
  virtual Status Publish(const StepPlan& plan) = 0;
  virtual void AbortCollective(uint32_t epoch) = 0;
};

class RingStepPort final : public StepPort {
 public:
  // Nothing is owned. `collective` may be null: one rank without a collective (tests).
  RingStepPort(RingWriter writer, const Segment* collective, const Clock* clock,
               prometheus::Gauge* fill_ratio)
      : writer_(std::move(writer)),
        collective_(collective),
        clock_(clock),
        fill_ratio_(fill_ratio) {}

  void ActivateReader(uint32_t rank) override { writer_.ActivateReader(rank); }
  void DeactivateReader(uint32_t rank) override { writer_.DeactivateReader(rank); }
  Status Publish(const StepPlan& plan) override {
    frame_.clear();
    BuildStepPlan(plan, &frame_);
    Status written = writer_.Write(frame_, clock_->NowNs() + kNsPerSecond);
    fill_ratio_->Set(writer_.FillRatio());
    return written;
  }
  void AbortCollective(uint32_t epoch) override {
    if (collective_ != nullptr) flotilla::AbortCollective(*collective_, epoch);
  }

 private:
  RingWriter writer_;
  const Segment* collective_;
  const Clock* clock_;
  prometheus::Gauge* fill_ratio_;
  std::string frame_;
};

}  // namespace flotilla
