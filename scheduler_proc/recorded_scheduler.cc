#include "scheduler_proc/recorded_scheduler.h"

#include <memory>
#include <utility>

#include "scheduler_proc/plan_hash.h"

namespace flotilla {

RecordedScheduler::RecordedScheduler(const SchedulerConfig& config, FlightRingWriter* ring)
    : core_(config), ring_(ring) {
  if (ring_ == nullptr) return;
  record_.kind = FlightKind::kConfig;
  record_.config = config;
  Write();
}

void RecordedScheduler::Write() {
  BuildFlightRecord(record_, &bytes_);
  records_lost_ += !ring_->Append(bytes_);
}

Status RecordedScheduler::Add(ReqSpec spec, int64_t now_ns) {
  if (ring_ == nullptr) return core_.Add(std::move(spec), now_ns);
  record_.kind = FlightKind::kAdd;
  record_.now_ns = now_ns;
  record_.spec = spec;
  const Status status = core_.Add(std::move(spec), now_ns);
  record_.ok = status.ok();
  Write();
  return status;
}

bool RecordedScheduler::Abort(ReqId id, Finish reason) {
  const bool known = core_.Abort(id, reason);
  if (ring_ == nullptr || !known) return known;
  record_.kind = FlightKind::kAbort;
  record_.id = id;
  record_.reason = reason;
  record_.ok = known;
  Write();
  return known;
}

bool RecordedScheduler::Truncate(ReqId id, uint32_t num_tokens, int64_t now_ns,
                                 std::vector<ReqOutput>* outputs) {
  const bool known = core_.Truncate(id, num_tokens, now_ns, outputs);
  if (ring_ == nullptr || !known) return known;
  record_.kind = FlightKind::kTruncate;
  record_.id = id;
  record_.num_tokens = num_tokens;
  record_.now_ns = now_ns;
  record_.ok = known;
  Write();
  return known;
}

void RecordedScheduler::ExpireDeadlines(int64_t now_ns, std::vector<ReqOutput>* outputs) {
  core_.ExpireDeadlines(now_ns, outputs);
  if (ring_ == nullptr) return;
  record_.kind = FlightKind::kExpire;
  record_.now_ns = now_ns;
  Write();
}

bool RecordedScheduler::PlanStep(int64_t now_ns, StepPlan* plan) {
  const bool planned = core_.PlanStep(now_ns, plan);
  if (ring_ == nullptr) return planned;
  // A plan that did not come about counts too: looking at the cache changes what is evicted next.
  record_.kind = FlightKind::kPlan;
  record_.now_ns = now_ns;
  record_.ok = planned;
  record_.step_id = planned ? plan->step_id : 0;
  record_.plan_hash = planned ? PlanHash(*plan) : 0;
  Write();
  return planned;
}

void RecordedScheduler::OnResult(const StepResult& result, int64_t now_ns,
                                 std::vector<ReqOutput>* outputs) {
  if (ring_ != nullptr) {
    record_.kind = FlightKind::kResult;
    record_.now_ns = now_ns;
    record_.result = result;
    Write();
  }
  core_.OnResult(result, now_ns, outputs);
}

void RecordedScheduler::BeginEpoch(uint32_t epoch, uint32_t num_pages) {
  core_.BeginEpoch(epoch, num_pages);
  if (ring_ == nullptr) return;
  record_.kind = FlightKind::kBeginEpoch;
  record_.epoch = epoch;
  record_.num_pages = num_pages;
  Write();
}

}  // namespace flotilla
