#include "router/request_timing.h"

#include "absl/strings/str_format.h"
#include "router/json_writer.h"

namespace flotilla {

std::string TimingJson(const v1::Timing& timing, int64_t received_ns, int64_t sent_ns) {
  const auto seconds = [](int64_t ns) { return static_cast<double>(ns) * 1e-9; };
  const int64_t total = sent_ns - received_ns;
  const int64_t in_engine = timing.finished_ns() - timing.arrival_ns();
  std::string out = absl::StrFormat(
      "{\"total_seconds\":%.9f,\"router_seconds\":%.9f,\"engine_seconds\":%.9f,"
      "\"queue_seconds\":%.9f,\"prefill_seconds\":%.9f,\"decode_seconds\":%.9f,\"wait_reason\":",
      seconds(total), seconds(total - in_engine), seconds(timing.queued_ns() - timing.arrival_ns()),
      seconds(timing.first_scheduled_ns() - timing.queued_ns()),
      seconds(timing.first_token_ns() - timing.first_scheduled_ns()),
      seconds(timing.finished_ns() - timing.first_token_ns()));
  AppendJsonString(timing.wait_reason(), &out);
  out.push_back('}');
  return out;
}

}  // namespace flotilla
