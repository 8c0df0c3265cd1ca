// libFuzzer: the files that a simulation is given, a trace of requests and a model of steps. What
// is refused says where; what is taken is within the bounds that the simulator relies on, and a
// model reads back as it is written.
#include "absl/strings/match.h"
#include "common/base/check.h"
#include "scheduler_proc/simulation/step_model.h"
#include "scheduler_proc/simulation/workload.h"

namespace flotilla {
namespace {

void CheckTrace(std::string_view text) {
  const auto requests = ParseTrace(text);
  if (!requests.ok()) {
    CHECK(absl::IsInvalidArgument(requests.status()));
    CHECK(absl::StrContains(requests.status().message(), "line ") ||
          requests.status().message() == "it has no request");
    return;
  }
  CHECK(!requests->empty());
  int64_t before = 0;
  for (const SimRequest& request : *requests) {
    CHECK(request.arrival_ns >= before);
    before = request.arrival_ns;
    CHECK(request.prompt_tokens >= 1 && request.output_tokens >= 1);
    CHECK(request.max_new_tokens >= request.output_tokens);
    CHECK(request.prefix_tokens <= request.prompt_tokens);
    CHECK(request.priority >= -100 && request.priority <= 100);
  }
}

void CheckModel(std::string_view text) {
  const StatusOr<StepModel> model = ParseStepModel(text);
  if (!model.ok()) {
    CHECK(absl::IsInvalidArgument(model.status()));
    return;
  }
  for (const double ns : model->ns) CHECK(ns >= 0 && ns < 1e12);
  CHECK(model->gap_ns >= 0 && model->dispatch_ns >= 0 && model->result_ns >= 0);
  const std::string written = ToJson(*model);
  const StatusOr<StepModel> read = ParseStepModel(written);
  CHECK_OK(read.status());
  CHECK(ToJson(*read) == written);
}

}  // namespace
}  // namespace flotilla

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  flotilla::CheckTrace(text);
  flotilla::CheckModel(text);
  return 0;
}
