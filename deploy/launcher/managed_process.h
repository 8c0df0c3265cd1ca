// One process of the cluster over its lives: starts it, passes its output on, counts restarts and
// says when the next is due. What a death means for others is its owner's business (Replica,
// RouterProcess).
//
// Threads: the main thread. Ownership: loop, logs and metrics outlive it.
#pragma once

#include <prometheus/counter.h>
#include <prometheus/gauge.h>

#include <functional>
#include <optional>
#include <string>

#include "common/base/exit_status.h"
#include "common/base/status.h"
#include "deploy/launcher/child.h"
#include "deploy/launcher/event_loop.h"
#include "deploy/launcher/log_mux.h"
#include "deploy/launcher/restart_policy.h"

namespace flotilla {

struct ProcessExit {
  bool exited = false;  // else killed by `signal`
  bool by_us = false;   // we sent it
  int code = 0;
  int signal = 0;
  bool BadConfiguration() const { return exited && code == kExitBadConfiguration; }
  bool PeerLost() const { return exited && code == kExitPeerLost; }
  // "exited with status 1", "was killed by signal 9 (Killed)", "was killed by the launcher"
  std::string Describe() const;
};

class ManagedProcess {
 public:
  struct Wiring {
    EventLoop* loop = nullptr;
    const LogMux* logs = nullptr;
    std::function<void(bool)> up = {};
    prometheus::Counter* restarts = nullptr;
    prometheus::Gauge* heartbeat_age = nullptr;  // seconds; null: it has no heartbeat
  };
  ManagedProcess(std::string name, Wiring wiring);
  ~ManagedProcess();
  ManagedProcess(ManagedProcess&&) = delete;

  // A failure counts as a death at once: Due() then says when to try again.
  Status Start(const ChildSpec& spec, int64_t now_ns);
  // It does its work; may be told again and again.
  void OnReady(int64_t now_ns) { policy_.OnReady(now_ns); }
  // After waitpid gave its status: passes the rest of its output on.
  ProcessExit OnExit(int wait_status, int64_t now_ns);
  // Not running, and the time of its next start has come.
  bool Due(int64_t now_ns) const { return !running() && started_ && now_ns >= restart_ns_; }

  const std::string& name() const { return name_; }
  bool running() const { return child_.has_value(); }
  pid_t pid() const { return child_ ? child_->pid : -1; }
  int64_t restart_ns() const { return restart_ns_; }
  uint32_t failures() const { return policy_.failures(); }
  uint32_t restarts() const { return restarts_count_; }
  // What it last said: the reason, if it ended on its own.
  const std::string& last_line() const { return lines_.last(); }
  void SetHeartbeatAge(double seconds) const { wiring_.heartbeat_age->Set(seconds); }
  void Signal(int signal);
  // SIGKILL was sent and its end has not been seen yet.
  bool killed() const { return killed_; }

 private:
  void PumpOutput();
  void CloseOutput();

  const std::string name_;
  const Wiring wiring_;
  std::optional<Child> child_;
  LineBuffer lines_;
  RestartPolicy policy_;
  bool started_ = false;
  bool killed_ = false;
  uint32_t restarts_count_ = 0;
  int64_t restart_ns_ = 0;
};

}  // namespace flotilla
