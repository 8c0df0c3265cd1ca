// The connection between a replica's head host and a rank on another host: plans and the control
// block's words go down, the rank's state comes up. RankProxy is its end on the head, RemotePlans
// the rank's.
//
// A frame is u32 kind, u32 bytes, body; little-endian. The rank begins with kConfig; the answer is
// kWelcome or kRefused. Then both ends send at least every kBeatNs, so that silence is death: a
// wait of kSilenceNs ends the link.
//
// Units: bytes, ns. Threads: one that sends and one that receives. Ownership: PlanLink owns its
// socket. Errors: those of tcp_socket.h; FailedPrecondition: a frame that can't be.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "common/base/clock.h"
#include "worker_proc/comm/tcp_socket.h"

namespace flotilla {

inline constexpr int64_t kPlanLinkBeatNs = 200 * kNsPerMs;
inline constexpr int64_t kPlanLinkSilenceNs = 10 * kNsPerSecond;

enum class PlanFrame : uint32_t {
  kConfig = 1,   // rank: a RankConfig
  kWelcome = 2,  // head: a HeadControl
  kRefused = 3,  // head: why, as text
  kControl = 4,  // head: a HeadControl
  kPlan = 5,     // head: a frame of the step ring
  kReport = 6,   // rank: a RankReport
};

// What must be alike on all ranks, by the flags' names.
using RankConfig = std::vector<std::pair<std::string, std::string>>;
void BuildRankConfig(const RankConfig& config, std::string* body);
StatusOr<RankConfig> ParseRankConfig(std::string_view body);
// InvalidArgument: names what differs.
Status CheckSameConfig(const RankConfig& head, const RankConfig& rank);

// The control block's words that a rank reads.
struct HeadControl {
  uint32_t epoch = 0;
  bool admitted = false;         // the rank may read plans
  bool kv_pages_chosen = false;  // other ranks have their KV cache already
  bool operator==(const HeadControl&) const = default;
};
void BuildHeadControl(const HeadControl& control, std::string* body);
StatusOr<HeadControl> ParseHeadControl(std::string_view body);

// The words that it writes. heartbeat_age_ns instead of a time: hosts have clocks of their own.
struct RankReport {
  uint32_t state = 0;  // ProcessState
  uint32_t ready_epoch = 0;
  int64_t heartbeat_age_ns = 0;
  uint64_t weight_bytes = 0, max_kv_pages = 0, page_bytes = 0;
  std::string backend;
};
void BuildRankReport(const RankReport& report, std::string* body);
StatusOr<RankReport> ParseRankReport(std::string_view body);

class PlanLink {
 public:
  // max_bytes: of a body that may come.
  PlanLink(UniqueFd fd, size_t max_bytes) : fd_(std::move(fd)), max_bytes_(max_bytes) {}

  Status Send(PlanFrame kind, std::string_view body, const SocketWait& wait);
  struct Frame {
    PlanFrame kind = PlanFrame::kControl;
    std::string_view body;  // until the next Receive
  };
  StatusOr<Frame> Receive(const SocketWait& wait);
  // From any thread: ends all waits on the link, now and later.
  void Shutdown();

 private:
  const UniqueFd fd_;
  const size_t max_bytes_;
  std::string out_, in_;
};

}  // namespace flotilla
