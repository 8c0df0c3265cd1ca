// The router of `serve`: starts it, reads from its notify pipe which ports it got
// ("READY http=PORT grpc=PORT"), and starts it again on the same ports when it dies.
//
// Threads: the main thread. Ownership: the constructor's pointers outlive it.
#pragma once

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

class RouterProcess {
 public:
  RouterProcess(const ResolvedOptions* resolved, EventLoop* loop, ManagedProcess::Wiring wiring,
                std::vector<std::string> replicas);
  ~RouterProcess();

  Status Start(int64_t now_ns);
  Status Tick(int64_t now_ns);  // starts it again when that is due
  std::optional<ProcessExit> OnExit(pid_t pid, int wait_status, int64_t now_ns);

  // Takes requests: set by its READY line, cleared by its death.
  bool ready() const { return ready_; }
  const RouterPorts& ports() const { return ports_; }
  const ManagedProcess& process() const { return process_; }
  void Signal(int signal) { process_.Signal(signal); }

 private:
  void ReadNotify();
  void CloseNotify();

  const ResolvedOptions* const resolved_;
  EventLoop* const loop_;
  ManagedProcess process_;
  const std::vector<std::string> replicas_;
  RouterPorts ports_;
  UniqueFd notify_;
  LineBuffer notify_lines_;
  bool ready_ = false;
};

}  // namespace flotilla
