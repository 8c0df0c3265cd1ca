// TraceRecords: a flight recording as Chrome's trace events.
#include <algorithm>
#include <deque>

#include "absl/strings/str_format.h"
#include "scheduler_proc/flight/replay.h"

namespace flotilla {
namespace {

constexpr int kWorkers = 1, kRequests = 2, kScheduler = 3;  // process ids of the tracks

std::string Quoted(const std::string& text) {
  std::string quoted = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') quoted += '\\';
    quoted += static_cast<unsigned char>(c) < ' ' ? ' ' : c;
  }
  return quoted + '"';
}

class Tracer {
 public:
  void Look(const ReplayMoment& moment) {
    const FlightRecord& record = moment.record;
    if (origin_ns_ == 0) origin_ns_ = record.now_ns;
    last_ns_ = std::max(last_ns_, record.now_ns);
    if (moment.begins) Begin(moment);
    if (record.kind == FlightKind::kPlan) AddPlan(moment);
    if (record.kind == FlightKind::kBeginEpoch) LosePlans(record.epoch);
    if (record.kind == FlightKind::kResult) AddResult(record);
    for (const ReqOutput& output : moment.outputs) {
      if (output.finish != Finish::kNone) AddRequest(output);
    }
  }

  // What is still open, and why it ends here.
  void Close(const ReplayReport& report) {
    for (const Plan& plan : plans_) AddPlanSlice(plan, last_ns_, "\"answered\":false");
    for (const Scheduler::Progress& live : report.live) {
      const std::string args =
          absl::StrFormat("\"prompt_tokens\":%d,\"completion_tokens\":%d,\"finish\":\"none\"",
                          live.spec.prompt_ids.size(), live.num_output);
      AddStages(live.spec.id, live.queued_ns, live.first_scheduled_ns, live.first_token_ns, args);
    }
    if (!report.ended_in.empty()) Mark(StrCat("the recording ends inside ", report.ended_in));
    if (!report.difference.empty()) Mark(StrCat("DIFFERENT: ", report.difference));
  }
  // An instant that goes through all tracks.
  void Mark(const std::string& text) {
    absl::StrAppendFormat(
        &events_, ",\n{\"ph\":\"i\",\"s\":\"g\",\"pid\":%d,\"tid\":0,\"name\":%s,\"ts\":%.3f}",
        kScheduler, Quoted(text), Us(last_ns_));
  }

  bool empty() const { return events_.empty(); }
  std::string Take() {
    return absl::StrCat("{\"displayTimeUnit\":\"ms\",\"traceEvents\":[", Name(kWorkers, "workers"),
                        ",", Name(kRequests, "requests"), ",", Name(kScheduler, "scheduler"),
                        events_, "]}\n");
  }

 private:
  struct Plan {
    uint64_t step_id = 0;
    int64_t planned_ns = 0;
    std::string args;
  };

  static std::string Name(int process, const char* name) {
    return absl::StrFormat(R"({"ph":"M","name":"process_name","pid":%d,"args":{"name":"%s"}})",
                           process, name);
  }
  double Us(int64_t ns) const { return static_cast<double>(ns - origin_ns_) * 1e-3; }

  void AddSlice(int process, uint64_t thread, const std::string& name, int64_t begin_ns,
                int64_t end_ns, const std::string& args) {
    begin_ns = std::max(begin_ns, origin_ns_);  // of what was there at the key frame it began with
    if (end_ns < begin_ns) return;
    absl::StrAppendFormat(
        &events_,
        ",\n{\"ph\":\"X\",\"pid\":%d,\"tid\":%d,\"name\":\"%s\",\"ts\":%.3f,\"dur\":%.3f,"
        "\"args\":{%s}}",
        process, thread, name, Us(begin_ns), static_cast<double>(end_ns - begin_ns) * 1e-3, args);
  }
  void AddInstant(const std::string& name) {
    absl::StrAppendFormat(
        &events_, ",\n{\"ph\":\"i\",\"s\":\"p\",\"pid\":%d,\"tid\":0,\"name\":\"%s\",\"ts\":%.3f}",
        kScheduler, name, Us(last_ns_));
  }

  // Plans that are in flight then are not known by their figures.
  void Begin(const ReplayMoment& moment) {
    if (!events_.empty()) AddInstant("calls are missing here");
    plans_.clear();
    retractions_ = moment.core.stats().retractions;
    preemptions_ = moment.core.stats().preemptions;
  }

  void AddPlan(const ReplayMoment& moment) {
    const SchedulerStats& stats = moment.core.stats();
    const uint64_t retracted = stats.retractions - retractions_;
    const uint64_t preempted = stats.preemptions - preemptions_;
    retractions_ = stats.retractions;
    preemptions_ = stats.preemptions;
    if (retracted > 0) AddInstant(absl::StrCat("retracted ", retracted));
    if (preempted > 0) AddInstant(absl::StrCat("preempted ", preempted));
    if (!moment.record.ok) return;
    Plan& plan = plans_.emplace_back();
    plan.step_id = moment.record.step_id;
    plan.planned_ns = moment.record.now_ns;
    plan.args = absl::StrFormat(
        "\"rows\":%d,\"tokens\":%d,\"new\":%d,\"running\":%d,\"waiting\":%d,\"retracted\":%d",
        moment.plan.rows.size(), moment.plan.input_ids.size(), moment.plan.opens.size(),
        stats.running, stats.waiting, retracted);
    if (stats.waiting > 0) {
      absl::StrAppend(&plan.args, ",\"first_waits_for\":\"",
                      WaitReasonName(moment.core.wait_reason()), "\"");
    }
  }

  // Two are in flight at most: a lane each.
  void AddPlanSlice(const Plan& plan, int64_t end_ns, const std::string& more = "") {
    AddSlice(kScheduler, plan.step_id % 2, absl::StrCat("plan ", plan.step_id), plan.planned_ns,
             end_ns, more.empty() ? plan.args : absl::StrCat(plan.args, ",", more));
  }

  void LosePlans(uint32_t epoch) {
    for (const Plan& plan : plans_) AddPlanSlice(plan, last_ns_, "\"answered\":false");
    plans_.clear();
    if (!events_.empty()) AddInstant(absl::StrCat("epoch ", epoch));
  }

  void AddResult(const FlightRecord& record) {
    const StepResult& result = record.result;
    while (!plans_.empty() && plans_.front().step_id < result.step_id) plans_.pop_front();
    if (plans_.empty() || plans_.front().step_id != result.step_id) return;
    const Plan& plan = plans_.front();
    AddSlice(kWorkers, 0, absl::StrCat("step ", result.step_id), result.start_ns, result.end_ns,
             plan.args);
    AddPlanSlice(plan, record.now_ns);
    plans_.pop_front();
  }

  void AddRequest(const ReqOutput& output) {
    const std::string args = absl::StrFormat(
        "\"prompt_tokens\":%d,\"cached_tokens\":%d,\"completion_tokens\":%d,\"finish\":\"%s\"",
        output.prompt_tokens, output.cached_tokens, output.completion_tokens,
        FinishName(output.finish));
    AddStages(output.id, output.queued_ns, output.first_scheduled_ns, output.first_token_ns, args);
  }

  // A track a request: tracks of requests that have ended are used again by nobody, so that a
  // viewer's search for an id finds one track. Until now; a stage that has not begun is left out.
  void AddStages(ReqId id, int64_t queued_ns, int64_t scheduled_ns, int64_t first_token_ns,
                 const std::string& args) {
    const int64_t scheduled = scheduled_ns > 0 ? scheduled_ns : last_ns_;
    const int64_t first = first_token_ns > 0 ? first_token_ns : last_ns_;
    AddSlice(kRequests, id, "waits", queued_ns, scheduled, args);
    if (scheduled_ns > 0) AddSlice(kRequests, id, "prefill", scheduled, first, args);
    if (first_token_ns > 0) AddSlice(kRequests, id, "decode", first, last_ns_, args);
  }

  int64_t origin_ns_ = 0;
  int64_t last_ns_ = 0;  // not every call has a time
  std::deque<Plan> plans_;
  uint64_t retractions_ = 0, preemptions_ = 0;
  std::string events_;
};

}  // namespace

StatusOr<Trace> TraceRecords(const std::vector<std::string>& records) {
  Tracer tracer;
  const auto report = Replay(records, [&](const ReplayMoment& moment) { tracer.Look(moment); });
  if (!report.ok() && tracer.empty()) return report.status();
  Trace trace;
  if (report.ok()) {
    tracer.Close(*report);
    trace.error = report->difference;
  } else {
    trace.error = std::string(report.status().message());
    tracer.Mark(trace.error);
  }
  trace.json = tracer.Take();
  return trace;
}

}  // namespace flotilla
