#include "scheduler_proc/flight/recorded_scheduler.h"

#include <algorithm>
#include <utility>

#include "common/base/check.h"
#include "scheduler_proc/flight/plan_hash.h"

namespace flotilla {

RecordedScheduler::RecordedScheduler(const SchedulerConfig& config, FlightRingWriter* ring)
    : config_(config), core_(config), ring_(ring) {
  if (ring_ == nullptr) return;
  bytes_until_key_frame_ = ring_->capacity() / 4;
  AddBeginning();
  record_.kind = FlightKind::kConfig;
  record_.config = config;
  Write();
}

void RecordedScheduler::Write() {
  BuildFlightRecord(record_, &bytes_);
  Append();
}

void RecordedScheduler::Append() {
  const bool taken = !gap_ && ring_->Append(bytes_);
  const bool first_lost = !gap_ && !taken;
  gap_ = !taken;
  records_lost_ += !taken;
  bytes_until_key_frame_ -= first_lost ? bytes_until_key_frame_
                                       : std::min<uint64_t>(bytes_until_key_frame_, bytes_.size());
}

void RecordedScheduler::AddBeginning() {
  std::erase_if(beginnings_,
                [this](const Beginning& b) { return b.at < ring_->overwritten_bytes(); });
  beginnings_.push_back({ring_->written_bytes(), last_ns_});
}

int64_t RecordedScheduler::covered_ns() const {
  for (const Beginning& beginning : beginnings_) {
    if (beginning.at >= ring_->overwritten_bytes()) return last_ns_ - beginning.ns;
  }
  return 0;
}

void RecordedScheduler::WriteKeyFrameIfDue() {
  if (ring_ == nullptr || bytes_until_key_frame_ > 0) return;
  const uint64_t capacity = ring_->capacity();
  snapshot_.clear();
  core_.Save(&snapshot_);
  bytes_until_key_frame_ = capacity / 4 - std::min<uint64_t>(snapshot_.size(), capacity / 8);
  if (snapshot_.size() <= capacity / 8 * 3) {
    WriteKeyFrame();
  } else {
    ++key_frames_lost_;
  }
}

// In parts that the ring takes.
void RecordedScheduler::WriteKeyFrame() {
  const uint64_t part = ring_->capacity() / 8;
  AddBeginning();
  record_.kind = FlightKind::kKeyFrame;
  record_.ok = !gap_;
  record_.config = config_;
  record_.parts_left = static_cast<uint32_t>((snapshot_.size() - 1) / part);
  for (uint64_t at = 0; at < snapshot_.size(); at += part) {
    record_.snapshot.assign(snapshot_, at, part);
    BuildFlightRecord(record_, &bytes_);
    CHECK(ring_->Append(bytes_));
    record_.kind = FlightKind::kKeyFramePart;
    --record_.parts_left;
  }
  gap_ = false;
  ++key_frames_;
}

// The fields of its kind are in record_ already.
void RecordedScheduler::WriteCall(FlightKind kind, int64_t now_ns) {
  NoteTime(now_ns);
  record_.kind = kind;
  record_.now_ns = now_ns;
  Write();
}

// 0: the call has none.
void RecordedScheduler::NoteTime(int64_t now_ns) {
  last_ns_ = std::max(last_ns_, now_ns);
  if (beginnings_.back().ns == 0) beginnings_.back().ns = last_ns_;
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
  NoteTime(now_ns);
  BuildResultRecord(result, now_ns, &bytes_);
  Append();
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
