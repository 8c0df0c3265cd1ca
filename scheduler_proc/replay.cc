#include "scheduler_proc/replay.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "common/base/flags.h"
#include "scheduler_proc/plan_hash.h"
#include "scheduler_proc/recorded_grammar.h"

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
    const auto grammar = [this](const ReqSpec&) {
      has_grammars_ = true;
      return ReplayedGrammar(&grammar_log_);
    };
    ASSIGN_OR_RETURN(core_, Scheduler::Restore(record.config, record.snapshot, grammar));
    return OkStatus();
  }

  // Empty: the core answered as recorded. answers: of grammars, to what the core asks them in it.
  std::string Apply(const FlightRecord& record, const std::string& answers) {
    outputs_.clear();
    grammar_log_.Clear();
    grammar_log_.answers = answers;
    std::string difference = Call(record);
    if (lacks_answers()) return "the recording lacks what a grammar answered";
    if (!difference.empty()) return difference;
    if (grammar_log_.taken < answers.size()) return "a grammar was asked less than when recorded";
    return "";
  }
  // In Add or OnResult.
  bool AsksGrammars(const FlightRecord& record) const {
    return record.kind == FlightKind::kAdd ? record.has_grammar
                                           : record.kind == FlightKind::kResult && has_grammars_;
  }
  bool lacks_answers() const { return grammar_log_.ran_out; }
  bool started() const { return core_ != nullptr; }
  const Scheduler& core() const { return *core_; }
  const StepPlan& plan() const { return plan_; }
  const std::vector<ReqOutput>& outputs() const { return outputs_; }

 private:
  std::string Call(const FlightRecord& record) {
    switch (record.kind) {
      case FlightKind::kConfig:
        return "";  // it began with it
      case FlightKind::kKeyFrame:
        return KeyFrame(record);
      case FlightKind::kBeginEpoch:
        return BeginEpoch(record);
      case FlightKind::kAdd:
        return Add(record);
      case FlightKind::kAbort:
        return Same("Abort", core_->Abort(record.id, record.reason), record.ok);
      case FlightKind::kTruncate:
        return Same("Truncate",
                    core_->Truncate(record.id, record.num_tokens, record.now_ns, &outputs_),
                    record.ok);
      case FlightKind::kExpire:
        core_->ExpireDeadlines(record.now_ns, &outputs_);
        return "";
      case FlightKind::kPlan:
        return Plan(record);
      case FlightKind::kResult:
        core_->OnResult(record.result, record.now_ns, &outputs_);
        return "";
      case FlightKind::kGrammar:
        return "";  // taken by the call before
    }
    return "";
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

  static std::string Same(const char* call, bool now, bool then) {
    if (now == then) return "";
    return StrCat(call, " answered ", now ? "yes" : "no", ", recorded was ", then ? "yes" : "no");
  }

  std::string Add(const FlightRecord& record) {
    ReqSpec spec = record.spec;
    if (record.has_grammar) spec.grammar = ReplayedGrammar(&grammar_log_);
    has_grammars_ = has_grammars_ || record.has_grammar;
    return Same("Add", core_->Add(std::move(spec), record.now_ns).ok(), record.ok);
  }

  std::string Plan(const FlightRecord& record) {
    const bool planned = core_->PlanStep(record.now_ns, &plan_);
    std::string difference = Same("PlanStep", planned, record.ok);
    if (!difference.empty() || !planned) return difference;
    if (plan_.step_id == record.step_id && PlanHash(plan_) == record.plan_hash) return "";
    return StrCat("step ", record.step_id, " was planned otherwise: now it is step ", plan_.step_id,
                  " with ", plan_.rows.size(), " rows and ", plan_.input_ids.size(), " tokens");
  }

  GrammarLog grammar_log_;  // of the call that runs
  bool has_grammars_ = false;
  std::unique_ptr<Scheduler> core_;
  uint32_t page_size_ = 1;
  std::string saved_;
  StepPlan plan_;
  std::vector<ReqOutput> outputs_;
};

}  // namespace

StatusOr<ReplayReport> Replay(const std::vector<std::string>& records,
                              const std::function<void(const ReplayMoment&)>& visit) {
  ReplayReport report;
  Replayer replayer;
  FlightRecord record, next;
  for (size_t i = 0; i < records.size(); ++i) {
    RETURN_IF_ERROR(ParseFlightRecord(records[i], &record));
    const bool begins = replayer.Begins(record);
    if (begins) {
      RETURN_IF_ERROR(replayer.Begin(record));
      if (report.records == 0) report.from_key_frame = record.kind == FlightKind::kKeyFrame;
    } else if (!replayer.started()) {
      ++report.skipped;
      continue;
    }
    next.answers.clear();
    if (replayer.AsksGrammars(record) && i + 1 < records.size()) {
      RETURN_IF_ERROR(ParseFlightRecord(records[i + 1], &next));
      if (next.kind != FlightKind::kGrammar) next.answers.clear();
    }
    if (!begins) report.difference = replayer.Apply(record, next.answers);
    if (!begins && i + 1 == records.size() && replayer.lacks_answers()) {
      report.difference.clear();  // the scheduler was killed in this call
      break;
    }
    ++report.records;
    report.steps += record.kind == FlightKind::kPlan && record.ok;
    report.requests += record.kind == FlightKind::kAdd && record.ok;
    if (!report.difference.empty()) return report;
    report.key_frames += record.kind == FlightKind::kKeyFrame && !begins;
    visit({record, replayer.plan(), replayer.outputs(), replayer.core(), begins});
  }
  if (!replayer.started()) {
    return absl::DataLossError(
        "the recording has lost its beginning and has no key frame; record with a larger "
        "--flight-recorder-size");
  }
  return report;
}

}  // namespace flotilla
