// TraceJson: a flight recording as Chrome's trace events.
#include <algorithm>
#include <deque>

#include "absl/strings/str_format.h"
#include "scheduler_proc/replay.h"

namespace flotilla {
namespace {

constexpr int kWorkers = 1, kRequests = 2;  // process ids of the tracks

class Tracer {
 public:
  void Look(const ReplayMoment& moment) {
    const FlightRecord& record = moment.record;
    if (origin_ns_ == 0) origin_ns_ = record.now_ns;
    if (record.kind == FlightKind::kPlan && record.ok) {
      plans_.push_back({record.step_id, moment.plan.rows.size(), moment.plan.input_ids.size()});
    }
    if (record.kind == FlightKind::kBeginEpoch) plans_.clear();
    if (record.kind == FlightKind::kResult) AddStep(record.result);
    for (const ReqOutput& output : moment.outputs) {
      if (output.finish != Finish::kNone) AddRequest(output, record.now_ns);
    }
  }

  std::string Take() {
    return absl::StrCat("{\"displayTimeUnit\":\"ms\",\"traceEvents\":[", Name(kWorkers, "workers"),
                        ",", Name(kRequests, "requests"), events_, "]}\n");
  }

 private:
  struct Plan {
    uint64_t step_id = 0;
    size_t rows = 0, tokens = 0;
  };

  static std::string Name(int process, const char* name) {
    return absl::StrFormat(R"({"ph":"M","name":"process_name","pid":%d,"args":{"name":"%s"}})",
                           process, name);
  }

  void AddSlice(int process, uint64_t thread, const std::string& name, int64_t begin_ns,
                int64_t end_ns, const std::string& args) {
    begin_ns = std::max(begin_ns, origin_ns_);  // of what was there at the key frame it began with
    if (end_ns < begin_ns) return;
    absl::StrAppendFormat(
        &events_,
        ",\n{\"ph\":\"X\",\"pid\":%d,\"tid\":%d,\"name\":\"%s\",\"ts\":%.3f,\"dur\":%.3f,"
        "\"args\":{%s}}",
        process, thread, name, static_cast<double>(begin_ns - origin_ns_) * 1e-3,
        static_cast<double>(end_ns - begin_ns) * 1e-3, args);
  }

  void AddStep(const StepResult& result) {
    while (!plans_.empty() && plans_.front().step_id < result.step_id) plans_.pop_front();
    if (plans_.empty() || plans_.front().step_id != result.step_id) return;
    AddSlice(
        kWorkers, 0, absl::StrCat("step ", result.step_id), result.start_ns, result.end_ns,
        absl::StrFormat("\"rows\":%d,\"tokens\":%d", plans_.front().rows, plans_.front().tokens));
    plans_.pop_front();
  }

  // A track a request: tracks of requests that have ended are used again by nobody, so that a
  // viewer's search for an id finds one track.
  void AddRequest(const ReqOutput& output, int64_t now_ns) {
    const int64_t scheduled = output.first_scheduled_ns > 0 ? output.first_scheduled_ns : now_ns;
    const int64_t first = output.first_token_ns > 0 ? output.first_token_ns : now_ns;
    const std::string args = absl::StrFormat(
        "\"prompt_tokens\":%d,\"cached_tokens\":%d,\"completion_tokens\":%d,\"finish\":%d",
        output.prompt_tokens, output.cached_tokens, output.completion_tokens, output.finish);
    AddSlice(kRequests, output.id, "waits", output.queued_ns, scheduled, args);
    AddSlice(kRequests, output.id, "prefill", scheduled, first, args);
    AddSlice(kRequests, output.id, "decode", first, now_ns, args);
  }

  int64_t origin_ns_ = 0;
  std::deque<Plan> plans_;
  std::string events_;
};

}  // namespace

StatusOr<std::string> TraceJson(const std::vector<std::string>& records) {
  Tracer tracer;
  ASSIGN_OR_RETURN(const ReplayReport report,
                   Replay(records, [&](const ReplayMoment& moment) { tracer.Look(moment); }));
  if (!report.difference.empty()) return absl::InternalError(report.difference);
  return tracer.Take();
}

}  // namespace flotilla
