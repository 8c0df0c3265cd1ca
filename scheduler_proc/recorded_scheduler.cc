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

// Behind the call's own record, which is there even if the core dies in the call.
void RecordedScheduler::WriteGrammar() {
  if (grammar_log_.answers.empty()) return;
  record_.kind = FlightKind::kGrammar;
  record_.answers = grammar_log_.answers;
  grammar_log_.Clear();
  Write();
}

Status RecordedScheduler::Add(ReqSpec spec, int64_t now_ns) {
  if (ring_ == nullptr) return core_.Add(std::move(spec), now_ns);
  record_.kind = FlightKind::kAdd;
  record_.now_ns = now_ns;
  record_.has_grammar = spec.grammar != nullptr;
  if (record_.has_grammar) {
    spec.grammar = RecordedGrammar(std::exchange(spec.grammar, nullptr), &grammar_log_);
  }
  record_.spec = spec;
  record_.spec.grammar = nullptr;
  Status status = core_.Add(std::move(spec), now_ns);
  record_.ok = status.ok();
  Write();
  WriteGrammar();
  return status;
}

bool RecordedScheduler::Abort(ReqId id, Finish reason, std::vector<ReqOutput>* outputs) {
  const bool known = core_.Abort(id, reason, outputs);
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
  if (ring_ != nullptr) WriteGrammar();
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
