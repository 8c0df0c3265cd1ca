#include "scheduler_proc/recorded_scheduler.h"

#include <algorithm>
#include <utility>

#include "scheduler_proc/plan_hash.h"

namespace flotilla {

RecordedScheduler::RecordedScheduler(const SchedulerConfig& config, FlightRingWriter* ring)
    : config_(config), core_(config), ring_(ring) {
  if (ring_ == nullptr) return;
  bytes_until_key_frame_ = ring_->capacity() / 4;
  record_.kind = FlightKind::kConfig;
  record_.config = config;
  Write();
}

void RecordedScheduler::Write() {
  BuildFlightRecord(record_, &bytes_);
  const bool taken = !gap_ && ring_->Append(bytes_);
  const bool first_lost = !gap_ && !taken;
  gap_ = !taken;
  records_lost_ += !taken;
  bytes_until_key_frame_ -= first_lost ? bytes_until_key_frame_
                                       : std::min<uint64_t>(bytes_until_key_frame_, bytes_.size());
}

void RecordedScheduler::WriteKeyFrameIfDue() {
  if (ring_ == nullptr || bytes_until_key_frame_ > 0) return;
  record_.kind = FlightKind::kKeyFrame;
  record_.ok = !gap_;
  record_.config = config_;
  record_.snapshot.clear();
  core_.Save(&record_.snapshot);
  BuildFlightRecord(record_, &bytes_);
  const uint64_t capacity = ring_->capacity();
  bytes_until_key_frame_ = capacity / 4 - std::min<uint64_t>(bytes_.size(), capacity / 8);
  if (ring_->Append(bytes_)) {
    gap_ = false;
    ++key_frames_;
  } else {
    ++key_frames_lost_;
  }
}

// The fields of its kind are in record_ already.
void RecordedScheduler::WriteCall(FlightKind kind, int64_t now_ns) {
  record_.kind = kind;
  record_.now_ns = now_ns;
  Write();
}

// plan: that came about.
void RecordedScheduler::WriteAnswer(bool ok, const StepPlan* plan) {
  record_.kind = FlightKind::kAnswer;
  record_.ok = ok;
  record_.step_id = plan != nullptr ? plan->step_id : 0;
  record_.plan_hash = plan != nullptr ? PlanHash(*plan) : 0;
  record_.answers = grammar_log_.answers;
  grammar_log_.Clear();
  Write();
}

Status RecordedScheduler::Add(ReqSpec spec, int64_t now_ns) {
  if (ring_ == nullptr) return core_.Add(std::move(spec), now_ns);
  record_.has_grammar = spec.grammar != nullptr;
  if (record_.has_grammar) {
    spec.grammar = RecordedGrammar(std::exchange(spec.grammar, nullptr), &grammar_log_);
  }
  record_.spec = spec;
  record_.spec.grammar = nullptr;
  WriteCall(FlightKind::kAdd, now_ns);
  Status status = core_.Add(std::move(spec), now_ns);
  WriteAnswer(status.ok());
  return status;
}

bool RecordedScheduler::Abort(ReqId id, Finish reason, std::vector<ReqOutput>* outputs) {
  if (ring_ == nullptr) return core_.Abort(id, reason, outputs);
  record_.id = id;
  record_.reason = reason;
  WriteCall(FlightKind::kAbort);
  const bool known = core_.Abort(id, reason, outputs);
  WriteAnswer(known);
  return known;
}

bool RecordedScheduler::Truncate(ReqId id, uint32_t num_tokens, int64_t now_ns,
                                 std::vector<ReqOutput>* outputs) {
  if (ring_ == nullptr) return core_.Truncate(id, num_tokens, now_ns, outputs);
  record_.id = id;
  record_.num_tokens = num_tokens;
  WriteCall(FlightKind::kTruncate, now_ns);
  const bool known = core_.Truncate(id, num_tokens, now_ns, outputs);
  WriteAnswer(known);
  return known;
}

void RecordedScheduler::ExpireDeadlines(int64_t now_ns, std::vector<ReqOutput>* outputs) {
  if (ring_ == nullptr) return core_.ExpireDeadlines(now_ns, outputs);
  WriteCall(FlightKind::kExpire, now_ns);
  core_.ExpireDeadlines(now_ns, outputs);
  WriteAnswer(true);
}

bool RecordedScheduler::PlanStep(int64_t now_ns, StepPlan* plan) {
  if (ring_ == nullptr) return core_.PlanStep(now_ns, plan);
  // A plan that does not come about counts too: looking at the cache changes what is evicted next.
  WriteCall(FlightKind::kPlan, now_ns);
  const bool planned = core_.PlanStep(now_ns, plan);
  WriteAnswer(planned, planned ? plan : nullptr);
  return planned;
}

void RecordedScheduler::OnResult(const StepResult& result, int64_t now_ns,
                                 std::vector<ReqOutput>* outputs) {
  if (ring_ == nullptr) return core_.OnResult(result, now_ns, outputs);
  record_.result = result;
  WriteCall(FlightKind::kResult, now_ns);
  core_.OnResult(result, now_ns, outputs);
  WriteAnswer(true);
}

void RecordedScheduler::BeginEpoch(uint32_t epoch, uint32_t num_pages) {
  if (ring_ == nullptr) return core_.BeginEpoch(epoch, num_pages);
  record_.epoch = epoch;
  record_.num_pages = num_pages;
  WriteCall(FlightKind::kBeginEpoch);
  core_.BeginEpoch(epoch, num_pages);
  WriteAnswer(true);
}

}  // namespace flotilla
