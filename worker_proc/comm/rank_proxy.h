// Stands for a rank that runs on another host: to scheduler and launcher it is that rank's process.
// It reads the step ring in its place, sends plans and the control block's words over a PlanLink,
// and writes what the rank reports into its slot. It ends when the link does, which is the rank's
// death; a host that it refuses, or that leaves before it was welcomed, is none, and the next may
// come.
//
// Threads: Run() on one, and one of its own that receives. Ownership: everything in Deps outlives
// it. Errors: Unavailable: the address can't be listened on; Aborted and DeadlineExceeded: the rank
// is gone, or sent what no rank sends; FailedPrecondition: the ring is corrupt, or the scheduler
// gave the rank up.
#pragma once

#include <prometheus/registry.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "shm/replica_control.h"
#include "shm/ring.h"
#include "worker_proc/comm/plan_link.h"
#include "worker_proc/comm/plan_link_metrics.h"
#include "worker_proc/comm/rank_link.h"

namespace flotilla {

struct RankProxyOptions {
  uint32_t rank = 0;
  uint32_t ranks = 1;
  TcpAddress listen;
  std::string secret;
  RankConfig config;
};

class RankProxy {
 public:
  struct Deps {
    const ReplicaControl* control = nullptr;
    const Segment* step_ring = nullptr;
    prometheus::Registry* registry = nullptr;
    const std::atomic<bool>* stop = nullptr;
  };
  RankProxy(const Deps& deps, const RankProxyOptions& options);

  // Until `stop` is set (OK) or the link is lost.
  Status Run();

 private:
  // The rank's own connection, welcomed.
  StatusOr<std::unique_ptr<PlanLink>> AcceptRank(UniqueFd listener);
  Status Greet(PlanLink* link, const LinkHello& hello, const SocketWait& wait);
  // Whether it is our rank that came; says what there is to change.
  Status CheckIsOurs(const LinkHello& hello, const RankConfig& config) const;
  Status Serve(PlanLink* link);
  Status SendPlans(PlanLink* link);
  Status SendControlIfDue(PlanLink* link);
  // The next frame of the step ring; none: it is time to look around.
  StatusOr<std::optional<std::string_view>> NextPlan();
  Status ReceiveReports(PlanLink* link);
  void Apply(const RankReport& report);
  HeadControl LookAtControl() const;
  Status Tick() const;
  SocketWait Wait() const;
  // As long as it takes, and with heartbeats, since nobody else has any yet.
  SocketWait Patient() const;
  void SetState(ProcessState state);

  const Deps deps_;
  const RankProxyOptions options_;
  ProcessSlot* const slot_;
  const uint32_t incarnation_;
  std::optional<RingReader> reader_;
  HeadControl sent_;
  int64_t sent_ns_ = 0;
  std::string body_;
  std::string without_masks_;  // of a plan
  std::mutex lost_mutex_;
  Status lost_;  // guarded by lost_mutex_: why the receiver has ended
  std::atomic<bool> over_{false};
  const PlanLinkMetrics metrics_;
};

}  // namespace flotilla
