// One replica on this host: its shared segments, scheduler, workers and detokenizer, over their
// lives. Of a replica that spans hosts, the head has a proxy for each rank elsewhere, and such a
// host its one worker only, whose scheduler is the head's.
//
// A worker or detokenizer that dies is marked kDead in the control segment, the scheduler's
// doorbell is rung, and it is started again with its incarnation + 1 on the same segments. A
// scheduler that dies takes the rest with it: the whole replica starts anew with new segments
// (design: "Failure").
//
// Watchdog: a process that is kReady or kWarmup and whose heartbeat is older than
// --watchdog-timeout, or that loads and has not beaten for --startup-timeout, is killed after a
// dump of all states; then it is as a death.
//
// Threads: the main thread. Ownership: Env's pointers outlive it.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "deploy/launcher/command_lines.h"
#include "deploy/launcher/managed_process.h"
#include "deploy/launcher/process_metrics.h"
#include "shm/replica_control.h"
#include "shm/segment.h"

namespace flotilla {

class Replica {
 public:
  struct Env {
    const ResolvedOptions* resolved = nullptr;
    EventLoop* loop = nullptr;
    const LogMux* logs = nullptr;
    ProcessMetrics* metrics = nullptr;
  };
  // `listen`: the scheduler's addresses. Starts nothing yet.
  Replica(const Env& env, uint32_t index, std::string id, std::vector<std::string> listen);

  const std::string& id() const { return wiring_.id; }
  const std::string& address() const { return wiring_.listen.front(); }
  bool Ready() const;
  // Some process of it has ended on its own since the launcher began.
  bool EverFailed() const { return ever_failed_; }

  // Starts what is due, kills what no longer beats. `watch_from_ns`: heartbeats older than this are
  // taken as being of then (the launcher itself did not run before).
  Status Tick(int64_t now_ns, int64_t watch_from_ns);

  // If `pid` is one of ours: what happened to which process.
  struct Death {
    const ManagedProcess* process = nullptr;
    ProcessExit exit;
  };
  std::optional<Death> OnExit(pid_t pid, int wait_status, int64_t now_ns, bool stopping);

  void SignalScheduler(int signal) {
    if (scheduler_) scheduler_->Signal(signal);
  }
  void SignalOthers(int signal);
  bool SchedulerRunning() const { return scheduler_ && scheduler_->running(); }
  bool AnyRunning() const;

  // All states on one line each, for the log.
  void LogStates(int64_t now_ns) const;

 private:
  struct Segments {
    ReplicaControl control;
    Segment step_ring;
    Segment result_ring;
    Segment collective;
    std::optional<Segment> flight;  // the scheduler's flight recorder, if there is one
  };
  struct Member {
    ManagedProcess* process;
    ProcessSlot* slot;
    uint32_t rank;  // of a worker or a proxy
  };

  StatusOr<Segments> MakeSegments() const;
  void SaveFlight() const;
  void Dump(int64_t now_ns) const;
  Status StartAll(int64_t now_ns);
  Status StartMember(const Member& member, int64_t now_ns);
  ChildSpec SpecOf(const Member& member) const;
  std::vector<Member> Members() const;  // scheduler, workers, detokenizer; needs segments_
  void Watch(const Member& member, int64_t now_ns, int64_t watch_from_ns) const;

  const Env env_;
  ReplicaWiring wiring_;
  std::unique_ptr<ManagedProcess> scheduler_;             // null on a host that has joined a head
  std::vector<std::unique_ptr<ManagedProcess>> workers_;  // from the span's first rank on
  std::unique_ptr<ManagedProcess> detokenizer_;           // null as the scheduler
  std::optional<Segments> segments_;                      // empty before the first start
  bool ever_failed_ = false;
  bool up_ = false;       // the scheduler lives; else all end or have ended
  RestartPolicy policy_;  // of the replica as a whole
  int64_t start_ns_ = 0;  // when it is due, if not up
};

}  // namespace flotilla
