#include "scheduler_proc/flight/replay.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "common/base/flags.h"
#include "scheduler_proc/flight/plan_hash.h"
#include "scheduler_proc/flight/recorded_grammar.h"

namespace flotilla {
namespace {

class Replayer {
 public:
  // A record with which a core begins: the first, or one that starts again.
  bool Begins(const FlightRecord& record) const {
    return record.kind == FlightKind::kConfig ||
           (record.kind == FlightKind::kKeyFrame && (core_ == nullptr || !record.ok));
  }
  Status Begin(const FlightRecord& record) {
    RETURN_IF_ERROR(CheckConfig(record.config));
    outputs_.clear();
    grammar_log_.Clear();
    page_size_ = record.config.page_size;
    if (record.kind == FlightKind::kConfig) {
      core_ = std::make_unique<Scheduler>(record.config);
      return OkStatus();
    }
    // They answered before the recording begins: nothing that matters is asked again.
    const auto grammar = [this](const ReqSpec&) { return ReplayedGrammar(&grammar_log_); };
    ASSIGN_OR_RETURN(core_, Scheduler::Restore(record.config, record.snapshot, grammar));
    return OkStatus();
  }

  // Empty: the core answered as recorded. If the call is not answered, it gets its answer here.
  std::string Apply(FlightRecord* record, bool answered) {
    outputs_.clear();
    grammar_log_.Clear();
    grammar_log_.answers = record->answers;
    now_ = {};
    std::string difference = Call(*record);
    if (!answered) {
      record->ok = now_.ok;
      record->step_id = now_.step_id;
      record->plan_hash = now_.plan_hash;
      return difference;
    }
    if (lacks_answers()) return "the recording lacks what a grammar answered";
    if (difference.empty() && IsCall(record->kind)) difference = Compare(*record);
    if (!difference.empty()) return difference;
    if (grammar_log_.taken < record->answers.size())
      return "a grammar was asked less than when recorded";
    return "";
  }
  bool lacks_answers() const { return grammar_log_.ran_out; }
  bool started() const { return core_ != nullptr; }
  const Scheduler& core() const { return *core_; }
  const StepPlan& plan() const { return plan_; }
  const std::vector<ReqOutput>& outputs() const { return outputs_; }

 private:
  struct Answer {
    bool ok = true;
    uint64_t step_id = 0, plan_hash = 0;
  };

  // What the core answers is in now_ then. Not empty: it can't be called, or is in another state.
  std::string Call(const FlightRecord& record) {
    switch (record.kind) {
      case FlightKind::kConfig:
      case FlightKind::kAnswer:
      case FlightKind::kKeyFramePart:
        return "";  // it began with it; taken with the record before
      case FlightKind::kKeyFrame:
        return KeyFrame(record);
      case FlightKind::kBeginEpoch:
        return BeginEpoch(record);
      case FlightKind::kAdd:
        Add(record);
        return "";
      case FlightKind::kAbort:
        now_.ok = core_->Abort(record.id, record.reason, &outputs_);
        return "";
      case FlightKind::kTruncate:
        now_.ok = core_->Truncate(record.id, record.num_tokens, record.now_ns, &outputs_);
        return "";
      case FlightKind::kExpire:
        core_->ExpireDeadlines(record.now_ns, &outputs_);
        return "";
      case FlightKind::kPlan:
        now_.ok = core_->PlanStep(record.now_ns, &plan_);
        if (now_.ok) now_ = {true, plan_.step_id, PlanHash(plan_)};
        return "";
      case FlightKind::kResult:
        core_->OnResult(record.result, record.now_ns, &outputs_);
        return "";
    }
    return "";
  }

  std::string Compare(const FlightRecord& record) const {
    if (now_.ok != record.ok) {
      const auto word = [](bool ok) { return ok ? "yes" : "no"; };
      return StrCat(CallName(record.kind), " answered ", word(now_.ok), ", recorded was ",
                    word(record.ok));
    }
    if (now_.step_id == record.step_id && now_.plan_hash == record.plan_hash) return "";
    return StrCat("step ", record.step_id, " was planned otherwise: now it is step ", plan_.step_id,
                  " with ", plan_.rows.size(), " rows and ", plan_.input_ids.size(), " tokens");
  }

  // As the flags allow it: a file must not ask for all the memory there is.
  static Status CheckConfig(const SchedulerConfig& config) {
    RETURN_IF_ERROR(ValidateSchedulerConfig(config));
    if (config.max_running_requests <= kMaxRunningRequestsFlag.max &&
        config.max_queued_requests <= kMaxQueuedRequestsFlag.max &&
        IsCacheSize(config.num_pages, config.page_size)) {
      return OkStatus();
    }
    return absl::DataLossError("the recording's configuration is none that flags allow");
  }
  static bool IsCacheSize(uint32_t num_pages, uint32_t page_size) {
    return uint64_t{num_pages} * page_size < (uint64_t{1} << 31);
  }

  std::string BeginEpoch(const FlightRecord& record) {
    const bool first = core_->epoch() == 0 && !core_->HasWork();
    if (record.epoch <= core_->epoch()) return "an epoch that is not newer than the one before";
    if (first ? !IsCacheSize(record.num_pages, page_size_)
              : record.num_pages != core_->stats().total_pages) {
      return "an epoch with another number of pages";
    }
    core_->BeginEpoch(record.epoch, record.num_pages);
    return "";
  }

  std::string KeyFrame(const FlightRecord& record) {
    saved_.clear();
    core_->Save(&saved_);
    if (saved_ == record.snapshot) return "";
    const auto differs =
        std::mismatch(saved_.begin(), saved_.end(), record.snapshot.begin(), record.snapshot.end());
    return StrCat("the state is not that of the key frame, from byte ",
                  differs.first - saved_.begin(), " of ", record.snapshot.size(), " on");
  }

  void Add(const FlightRecord& record) {
    ReqSpec spec = record.spec;
    if (record.has_grammar) spec.grammar = ReplayedGrammar(&grammar_log_);
    now_.ok = core_->Add(std::move(spec), record.now_ns).ok();
  }

  GrammarLog grammar_log_;  // of the call that runs
  Answer now_;              // of the core to the last call
  std::unique_ptr<Scheduler> core_;
  uint32_t page_size_ = 1;
  std::string saved_;
  StepPlan plan_;
  std::vector<ReqOutput> outputs_;
};

// Into the first record, *at. False: the recording ends before its last part.
StatusOr<bool> TakeParts(const std::vector<std::string>& records, size_t* at, FlightRecord* first) {
  FlightRecord part;
  for (uint32_t left = first->parts_left; left > 0; --left) {
    if (*at + 1 == records.size()) return false;
    RETURN_IF_ERROR(ParseFlightRecord(records[++*at], &part));
    if (part.kind != FlightKind::kKeyFramePart || part.parts_left != left - 1)
      return absl::DataLossError("the recording lacks a part of a key frame");
    first->snapshot += part.snapshot;
  }
  return true;
}

// Into the call's record.
void TakeAnswer(FlightRecord* answer, FlightRecord* call) {
  call->ok = answer->ok;
  call->step_id = answer->step_id;
  call->plan_hash = answer->plan_hash;
  call->answers.swap(answer->answers);
}

}  // namespace

const char* CallName(FlightKind kind) {
  switch (kind) {
    case FlightKind::kBeginEpoch:
      return "BeginEpoch";
    case FlightKind::kAdd:
      return "Add";
    case FlightKind::kAbort:
      return "Abort";
    case FlightKind::kTruncate:
      return "Truncate";
    case FlightKind::kExpire:
      return "ExpireDeadlines";
    case FlightKind::kPlan:
      return "PlanStep";
    case FlightKind::kResult:
      return "OnResult";
    default:
      return "no call";
  }
}

StatusOr<ReplayReport> Replay(const std::vector<std::string>& records,
                              const std::function<void(const ReplayMoment&)>& visit,
                              const std::function<void(FlightKind)>& unanswered) {
  ReplayReport report;
  Replayer replayer;
  FlightRecord record, answer;
  for (size_t i = 0; i < records.size(); ++i) {
    RETURN_IF_ERROR(ParseFlightRecord(records[i], &record));
    if (record.kind == FlightKind::kKeyFrame) {
      ASSIGN_OR_RETURN(const bool whole, TakeParts(records, &i, &record));
      if (!whole) break;  // the scheduler was killed while it wrote
    }
    const bool begins = replayer.Begins(record);
    if (begins) {
      RETURN_IF_ERROR(replayer.Begin(record));
      if (report.records == 0) report.from_key_frame = record.kind == FlightKind::kKeyFrame;
    } else if (!replayer.started()) {
      report.skipped += IsCall(record.kind);
      continue;
    } else if (record.kind == FlightKind::kAnswer || record.kind == FlightKind::kKeyFramePart) {
      return absl::DataLossError("the recording has an answer without its call");
    }
    bool answered = !IsCall(record.kind);
    record.answers.clear();
    if (!answered && i + 1 < records.size()) {
      RETURN_IF_ERROR(ParseFlightRecord(records[i + 1], &answer));
      // A gap may begin behind a call: then the core begins again.
      if (answer.kind != FlightKind::kAnswer && replayer.Begins(answer)) continue;
      if (answer.kind != FlightKind::kAnswer)
        return absl::DataLossError("the recording has a call without its answer");
      TakeAnswer(&answer, &record);
      answered = true;
      ++i;
    }
    if (!answered) {
      report.ended_in = CallName(record.kind);
      if (unanswered == nullptr) break;
      unanswered(record.kind);
    }
    if (!begins) report.difference = replayer.Apply(&record, answered);
    report.lacks_grammars = replayer.lacks_answers();
    report.records += answered;
    report.steps += answered && record.kind == FlightKind::kPlan && record.ok;
    report.requests += answered && record.kind == FlightKind::kAdd && record.ok;
    if (!report.difference.empty()) break;
    report.key_frames += record.kind == FlightKind::kKeyFrame && !begins;
    visit({record, replayer.plan(), replayer.outputs(), replayer.core(), begins, answered});
  }
  if (!replayer.started()) {
    return absl::DataLossError(
        "the recording has lost its beginning and has no key frame; record with a larger "
        "--flight-recorder-size");
  }
  report.live = replayer.core().LiveRequests();
  return report;
}

}  // namespace flotilla
