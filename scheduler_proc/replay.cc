#include "scheduler_proc/replay.h"

#include <algorithm>
#include <memory>

#include "common/base/flags.h"
#include "scheduler_proc/plan_hash.h"

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
    page_size_ = record.config.page_size;
    if (record.kind == FlightKind::kConfig) {
      core_ = std::make_unique<Scheduler>(record.config);
      return OkStatus();
    }
    ASSIGN_OR_RETURN(core_, Scheduler::Restore(record.config, record.snapshot));
    return OkStatus();
  }

  // Empty: the core answered as recorded.
  std::string Apply(const FlightRecord& record) {
    switch (record.kind) {
      case FlightKind::kConfig:
        return "";  // it began with it
      case FlightKind::kKeyFrame:
        return KeyFrame(record);
      case FlightKind::kBeginEpoch:
        return BeginEpoch(record);
      case FlightKind::kAdd:
        return Same("Add", core_->Add(record.spec, record.now_ns).ok(), record.ok);
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
    }
    return "";
  }
  void ClearOutputs() { outputs_.clear(); }
  bool started() const { return core_ != nullptr; }
  const Scheduler& core() const { return *core_; }
  const StepPlan& plan() const { return plan_; }
  const std::vector<ReqOutput>& outputs() const { return outputs_; }

 private:
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

  std::string Plan(const FlightRecord& record) {
    const bool planned = core_->PlanStep(record.now_ns, &plan_);
    std::string difference = Same("PlanStep", planned, record.ok);
    if (!difference.empty() || !planned) return difference;
    if (plan_.step_id == record.step_id && PlanHash(plan_) == record.plan_hash) return "";
    return StrCat("step ", record.step_id, " was planned otherwise: now it is step ", plan_.step_id,
                  " with ", plan_.rows.size(), " rows and ", plan_.input_ids.size(), " tokens");
  }

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
  FlightRecord record;
  for (const std::string& bytes : records) {
    RETURN_IF_ERROR(ParseFlightRecord(bytes, &record));
    const bool begins = replayer.Begins(record);
    if (begins) {
      RETURN_IF_ERROR(replayer.Begin(record));
    } else if (!replayer.started()) {
      ++report.skipped;
      continue;
    }
    replayer.ClearOutputs();
    if (!begins) report.difference = replayer.Apply(record);
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
