// Runs a cluster on this host until told to stop: starts replicas and router in order, prints the
// ready line, restarts what dies, and stops everything in order.
//
// Start: first the router's flags are checked. Then all replicas; once each is ready (or has failed
// once) and one is, the router; `ready …` on stdout once it takes requests. Until then a process
// that exits with status 2, or ends kMaxStartFailures times in a row (not for its peer on another
// host), ends the launcher with that process's last line.
//
// Stop (SIGTERM, SIGINT): the router drains (without one the scheduler), within --shutdown-timeout;
// then schedulers end, then the rest. What is left two seconds after its turn is killed. A second
// Ctrl-C kills at once.
//
// SIGUSR2: the router gets a successor (router_process.h), perhaps of a newer version.
//
// Threads: Run on the main thread (it forks), which must have BlockSignals() called before any
// thread is started. As process 1 or not, orphans come to us (subreaper) and are reaped.
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "common/base/metrics.h"
#include "common/base/metrics_http.h"
#include "common/base/service_notify.h"
#include "common/base/status.h"
#include "deploy/launcher/command_lines.h"
#include "deploy/launcher/replica.h"
#include "deploy/launcher/router_process.h"
#include "deploy/launcher/runtime_dir.h"

namespace flotilla {

// For signalfd: SIGTERM, SIGINT, SIGUSR2, SIGHUP unless whoever started us has it ignored (nohup),
// SIGCHLD even then. SIGPIPE is ignored.
void BlockSignals();

class Supervisor {
 public:
  enum class Mode { kServe, kEngine, kJoin };
  static constexpr uint32_t kMaxStartFailures = 5;

  Supervisor(Mode mode, const ResolvedOptions& resolved);
  ~Supervisor();

  // Returns the launcher's exit status.
  int Run();

 private:
  enum class Stage { kStarting, kServing, kStoppingRouter, kStoppingSchedulers, kStoppingRest };

  Status Prepare();
  Status MakeProcesses();
  void OnSignal();
  void StartRouterSuccessor();
  void ReapAll();
  void OnDeath(const ManagedProcess& process, const ProcessExit& exit);
  void Tick(int64_t now_ns);
  Status StartRouterIfDue(int64_t now_ns);
  void AnnounceIfReady();
  void BeginStop(int exit_code, double grace_seconds);
  void TendWhileStopping(int64_t now_ns);
  void ContinueStop(int64_t now_ns);
  void SignalStage(int signal);
  bool StageGone() const;
  void KillAll();
  bool AnyRunning() const;
  bool TakesRequests() const;
  int TimeoutMs() const;

  const Mode mode_;
  const ResolvedOptions resolved_;
  const ServiceNotifier service_ = ServiceNotifier::FromEnvironment();
  const LogMux logs_;
  EventLoop loop_;
  UniqueFd signals_;
  ProcessMetrics metrics_;
  std::unique_ptr<MetricsServer> own_metrics_;
  std::vector<std::unique_ptr<Replica>> replicas_;
  std::unique_ptr<RouterProcess> router_;  // not in engine mode
  std::unique_ptr<MetricsHttpServer> metrics_http_;
  bool router_started_ = false;
  std::atomic<bool> ready_{false};  // as probes are told

  Stage stage_ = Stage::kStarting;
  int exit_code_ = 0;
  std::string fatal_;  // why the start failed; the last line, where it is looked for
  bool kill_now_ = false;
  int64_t stop_began_ns_ = 0;
  int64_t stop_deadline_ns_ = 0;   // of the whole stop
  int64_t stage_deadline_ns_ = 0;  // of this stage
  std::atomic<int64_t> last_tick_ns_{RealClock::Now()};
  int64_t watch_from_ns_ = 0;
};

}  // namespace flotilla
