// libFuzzer: any bytes on the connection between a replica's head and a rank on another host. What
// is taken has one spelling, and no frame is longer than it may be.
#include <sys/socket.h>

#include <string>

#include "common/base/check.h"
#include "shm/replica_control.h"
#include "tests/fuzz/fuzz_input.h"
#include "worker_proc/comm/plan_link.h"

namespace flotilla {
namespace {

constexpr size_t kMaxBytes = 512;

template <typename Value, void (*Build)(const Value&, std::string*)>
void CheckOneSpelling(const StatusOr<Value>& parsed, std::string_view body) {
  if (!parsed.ok()) return;
  std::string again;
  Build(*parsed, &again);
  CHECK(again == body);
}

void CheckBody(std::string_view received) {
  const fuzz::Piece piece(reinterpret_cast<const uint8_t*>(received.data()), received.size());
  const std::string_view body = piece.view();
  const auto config = ParseRankConfig(body);
  CheckOneSpelling<RankConfig, BuildRankConfig>(config, body);
  const RankConfig head = {{"--tp", "2"}, {"--isa", "avx2"}};
  if (config.ok()) {
    CHECK_OK(CheckSameConfig(*config, *config));
    CHECK(CheckSameConfig(head, *config).ok() == (*config == head));
  }
  CheckOneSpelling<HeadControl, BuildHeadControl>(ParseHeadControl(body), body);
  const auto report = ParseRankReport(body);
  CheckOneSpelling<RankReport, BuildRankReport>(report, body);
  if (!report.ok()) return;
  CHECK(report->heartbeat_age_ns >= 0 && report->backend.size() <= kMaxBackendName);
  CHECK(report->state <= static_cast<uint32_t>(ProcessState::kStopping));
}

}  // namespace
}  // namespace flotilla

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace flotilla;
  int ends[2];
  CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0);
  PlanLink link(UniqueFd(ends[0]), kMaxBytes);
  {
    const UniqueFd peer(ends[1]);  // says all it has to say and closes
    CHECK_OK(SendAll(peer.get(), {reinterpret_cast<const char*>(data), size}, {}));
  }
  size_t taken = 0;
  for (;;) {
    const auto frame = link.Receive({});
    if (!frame.ok()) break;
    CHECK(frame->body.size() <= kMaxBytes);
    CHECK((taken += 8 + frame->body.size()) <= size);
    CheckBody(frame->body);
  }
  // The other direction: what is sent is received as it was.
  int back[2];
  CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, back) == 0);
  PlanLink sender(UniqueFd(back[0]), kMaxBytes), receiver(UniqueFd(back[1]), kMaxBytes);
  const std::string_view body(reinterpret_cast<const char*>(data), std::min(size, kMaxBytes));
  CHECK_OK(sender.Send(PlanFrame::kPlan, body, {}));
  const auto frame = receiver.Receive({});
  CHECK_OK(frame.status());
  CHECK(frame->kind == PlanFrame::kPlan && frame->body == body);
  sender.Shutdown();
  CHECK(!receiver.Receive({}).ok());
  return 0;
}
