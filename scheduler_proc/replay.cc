#include "scheduler_proc/replay.h"

#include <memory>

#include "scheduler_proc/plan_hash.h"

namespace flotilla {
namespace {

class Replayer {
 public:
  // Empty: the core answered as recorded.
  std::string Apply(const FlightRecord& record) {
    outputs_.clear();
    switch (record.kind) {
      case FlightKind::kConfig:
        core_ = std::make_unique<Scheduler>(record.config);
        epoch_ = 0;
        return "";
      case FlightKind::kBeginEpoch:
        if (record.epoch <= epoch_) return "an epoch that is not newer than the one before";
        core_->BeginEpoch(epoch_ = record.epoch, record.num_pages);
        return "";
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
  bool started() const { return core_ != nullptr; }
  const StepPlan& plan() const { return plan_; }
  const std::vector<ReqOutput>& outputs() const { return outputs_; }

 private:
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
  uint32_t epoch_ = 0;
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
    if (record.kind == FlightKind::kConfig) {
      RETURN_IF_ERROR(ValidateSchedulerConfig(record.config));
    } else if (!replayer.started()) {
      return absl::DataLossError(
          "the recording has lost its beginning; record with a larger --flight-recorder-size");
    }
    report.difference = replayer.Apply(record);
    ++report.records;
    report.steps += record.kind == FlightKind::kPlan && record.ok;
    report.requests += record.kind == FlightKind::kAdd && record.ok;
    if (!report.difference.empty()) return report;
    visit({record, replayer.plan(), replayer.outputs()});
  }
  return report;
}

}  // namespace flotilla
