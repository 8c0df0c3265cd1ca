#include "router/observe/request_timing.h"

#include "absl/strings/str_format.h"
#include "router/base/json_writer.h"

namespace flotilla {

RequestStages StagesOf(const v1::Timing& timing, int64_t received_ns, int64_t sent_ns) {
  RequestStages stages;
  stages.total_ns = sent_ns - received_ns;
  stages.router_ns = stages.total_ns - (timing.finished_ns() - timing.arrival_ns());
  stages.engine_ns = timing.queued_ns() - timing.arrival_ns();
  stages.queue_ns = timing.first_scheduled_ns() - timing.queued_ns();
  stages.prefill_ns = timing.first_token_ns() - timing.first_scheduled_ns();
  stages.decode_ns = timing.finished_ns() - timing.first_token_ns();
  return stages;
}

std::string TimingJson(const v1::Timing& timing, int64_t received_ns, int64_t sent_ns) {
  const auto seconds = [](int64_t ns) { return static_cast<double>(ns) * 1e-9; };
  const RequestStages stages = StagesOf(timing, received_ns, sent_ns);
  std::string out = absl::StrFormat(
      "{\"total_seconds\":%.9f,\"router_seconds\":%.9f,\"engine_seconds\":%.9f,"
      "\"queue_seconds\":%.9f,\"prefill_seconds\":%.9f,\"decode_seconds\":%.9f,\"wait_reason\":",
      seconds(stages.total_ns), seconds(stages.router_ns), seconds(stages.engine_ns),
      seconds(stages.queue_ns), seconds(stages.prefill_ns), seconds(stages.decode_ns));
  AppendJsonString(timing.wait_reason(), &out);
  out.push_back('}');
  return out;
}

}  // namespace flotilla
