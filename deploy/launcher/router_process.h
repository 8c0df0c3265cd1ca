// The router of `serve`: starts it, reads from its notify pipe which ports it got
// ("READY http=PORT grpc=PORT") and whether it serves (SERVING, NOT_SERVING), and starts it again
// on the same ports when it dies. A successor takes its listening sockets over (router/handoff.h),
// and it ends once its clients have left.
//
// Threads: the main thread. Ownership: the constructor's pointers outlive it.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "deploy/launcher/command_lines.h"
#include "deploy/launcher/managed_process.h"

namespace flotilla {

struct RouterPorts {
  uint16_t http = 0;
  uint16_t grpc = 0;
};
// Nothing if `line` is not a READY line with two ports.
std::optional<RouterPorts> ParseRouterReady(const std::string& line);

// What the router would say is wrong with its flags, asked before anything else is started. It runs
// until that has been said.
Status CheckRouterFlags(const ResolvedOptions& resolved, const std::vector<std::string>& replicas);

class RouterProcess {
 public:
  RouterProcess(const ResolvedOptions* resolved, EventLoop* loop, ManagedProcess::Wiring wiring,
                std::vector<std::string> replicas);
  ~RouterProcess();

  Status Start(int64_t now_ns);
  Status Tick(int64_t now_ns);  // starts it again when that is due
  // Starts a successor. Until that is ready nothing changes, and if it ends before, nothing has.
  // FailedPrecondition: not now; one that is still starting is killed, as it may be stuck.
  Status StartSuccessor(int64_t now_ns);
  // Of the router that clients meet; of others it is only logged. Nothing: none of ours.
  struct Exit {
    bool current = false;
    ProcessExit exit;
  };
  std::optional<Exit> OnExit(pid_t pid, int wait_status, int64_t now_ns);

  // Takes requests: set by its READY line, cleared by its death.
  bool ready() const { return current_->ready; }
  // A replica is there for them: what its /health/ready says.
  bool serving() const { return current_->ready && current_->serving; }
  const RouterPorts& ports() const { return ports_; }
  const ManagedProcess& process() const { return current_->process; }
  bool AnyRunning() const;
  void Signal(int signal);

 private:
  struct Run {
    explicit Run(const ManagedProcess::Wiring& wiring) : process("router", wiring) {}
    ManagedProcess process;
    UniqueFd notify;
    LineBuffer notify_lines;
    bool ready = false;
    bool serving = false;
  };
  Status StartRun(Run* run, int64_t now_ns);
  void ReadNotify(Run* run);
  void OnLine(Run* run, const std::string& line);
  void OnReady(Run* run, const RouterPorts& ports);
  void CloseNotify(Run* run);

  const ResolvedOptions* const resolved_;
  EventLoop* const loop_;
  const ManagedProcess::Wiring wiring_;
  const std::vector<std::string> replicas_;
  RouterPorts ports_;
  std::unique_ptr<Run> current_;
  std::unique_ptr<Run> successor_;             // null: none is starting
  std::vector<std::unique_ptr<Run>> leaving_;  // relieved by a successor
};

}  // namespace flotilla
