#include "deploy/launcher/supervisor.h"

#include <signal.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>

#include "common/base/listen.h"
#include "common/base/log.h"
#include "deploy/launcher/log_mux.h"
#include "deploy/launcher/metrics_pages.h"

namespace flotilla {
namespace {

constexpr int kIdleTickMs = 500;  // restarts, watchdog
constexpr int kBusyTickMs = 10;   // while starting: states in the control segment have no event
// One Ctrl-C or kill may come twice (timeout(1) signals the process and then its group).
constexpr int64_t kSecondSignalNs = 250 * kNsPerMs;
constexpr int64_t kStageMinNs = 2 * kNsPerSecond;  // even after the grace, for an orderly end
// A longer gap between ticks means that we did not run either (stopped, frozen, suspended).
constexpr int64_t kOwnStallNs = 5 * kNsPerSecond;
// So long without a tick: who watches the others hangs, and somebody else must end it.
constexpr int64_t kHangsNs = 10 * kNsPerSecond;

sigset_t OurSignals() {
  sigset_t set;
  sigemptyset(&set);
  for (const int signal : {SIGTERM, SIGINT, SIGHUP, SIGCHLD, SIGUSR2}) sigaddset(&set, signal);
  // A signalfd would have it all the same.
  struct sigaction hangup {};
  sigaction(SIGHUP, nullptr, &hangup);
  if (hangup.sa_handler == SIG_IGN) sigdelset(&set, SIGHUP);
  return set;
}

std::string Hostname() {
  char name[256] = {};
  gethostname(name, sizeof(name) - 1);
  return name[0] != '\0' ? name : "engine";
}

void LogIfNotStarted(const Status& status) {
  if (!status.ok())
    Log().error("can't start a process {}", Kv("reason", std::string(status.message())));
}

}  // namespace

void BlockSignals() {
  const sigset_t set = OurSignals();
  sigprocmask(SIG_BLOCK, &set, nullptr);
  signal(SIGPIPE, SIG_IGN);
  signal(SIGCHLD, SIG_DFL);  // ignored, no child would be there to wait for
}

Supervisor::Supervisor(Mode mode, const ResolvedOptions& resolved)
    : mode_(mode),
      resolved_(resolved),
      logs_(resolved.options.log.format == "json", isatty(STDERR_FILENO) != 0) {}

Supervisor::~Supervisor() {
  metrics_http_.reset();  // its thread reads metrics_
}

Status Supervisor::Prepare() {
  const sigset_t set = OurSignals();
  signals_.reset(signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!signals_.valid()) return absl::UnavailableError("signalfd failed");
  loop_.Add(signals_.get(), [this] { OnSignal(); });
  prctl(PR_SET_CHILD_SUBREAPER, 1);

  const ServeOptions& o = resolved_.options;
  // Known now, not when a model was loaded.
  if (!o.tls.empty()) RETURN_IF_ERROR(TlsFiles(kTlsServer, o.tls).Load());
  if (mode_ == Mode::kServe) RETURN_IF_ERROR(CheckPortFree(o.host, o.port, "--port"));
  if (mode_ != Mode::kJoin) RETURN_IF_ERROR(CheckPortFree(o.host, o.grpc_port, "--grpc-port"));
  RETURN_IF_ERROR(MakeProcesses());

  const std::string own_socket = resolved_.runtime_dir + "/launcher.metrics";
  ASSIGN_OR_RETURN(own_metrics_, MetricsServer::Start(own_socket, "launcher", metrics_.registry()));
  metrics_.AddSource({own_socket, {}});
  MetricsHttpServer::Options pages{
      o.host, o.metrics_port,
      [this](const std::string& target) -> std::optional<MetricsPage> {
        std::optional<std::string> text = MergedMetrics(metrics_.sources(), target);
        if (text) return MetricsPage{*std::move(text)};
        return HealthPage(
            target, [this] { return RealClock::Now() - last_tick_ns_ < kHangsNs; }, ready_);
      },
      kMetricsPagesHint};
  StatusOr<std::unique_ptr<MetricsHttpServer>> http = MetricsHttpServer::Start(pages);
  if (absl::IsAlreadyExists(http.status())) {
    if (o.metrics_port_given) return CheckPortFree(o.host, o.metrics_port, "--metrics-port");
    Log().info("the default metrics port is in use, taking any {}", Kv("port", o.metrics_port));
    pages.port = 0;
    http = MetricsHttpServer::Start(pages);
  }
  RETURN_IF_ERROR(http.status());
  metrics_http_ = *std::move(http);
  return OkStatus();
}

Status Supervisor::MakeProcesses() {
  const Replica::Env env{&resolved_, &loop_, &logs_, &metrics_};
  const std::string& given = resolved_.options.replica_name;
  if (mode_ != Mode::kServe) {
    const std::string address = HostPort(resolved_.options.host, resolved_.options.grpc_port);
    replicas_.push_back(std::make_unique<Replica>(env, 0, given.empty() ? Hostname() : given,
                                                  std::vector<std::string>{address}));
    return OkStatus();
  }
  std::vector<std::string> addresses;
  for (uint32_t i = 0; i < resolved_.options.replicas; ++i) {
    addresses.push_back("unix:" + SocketPath(resolved_, i, "grpc"));
    const std::string number = resolved_.options.replicas > 1 ? absl::StrCat("-", i) : "";
    const std::string name = given.empty() ? absl::StrCat("r", i) : given + number;
    replicas_.push_back(
        std::make_unique<Replica>(env, i, name, std::vector<std::string>{addresses.back()}));
  }
  RETURN_IF_ERROR(CheckRouterFlags(resolved_, addresses));
  router_ = std::make_unique<RouterProcess>(
      &resolved_, &loop_,
      metrics_.Wire(&loop_, &logs_, "router", "", resolved_.runtime_dir + "/router.metrics"),
      addresses);
  return OkStatus();
}

int Supervisor::Run() {
  if (const Status status = Prepare(); !status.ok()) {
    PrintFatal(resolved_.options.log, status.message());
    return ExitStatusOf(status);
  }
  last_tick_ns_ = RealClock::Now();
  for (;;) {
    const int64_t now = RealClock::Now();
    if (now - last_tick_ns_ > kOwnStallNs) watch_from_ns_ = now;
    last_tick_ns_ = now;
    if (stage_ == Stage::kStarting || stage_ == Stage::kServing) {
      Tick(now);
    } else {
      TendWhileStopping(now);
      ready_ = false;
      ContinueStop(now);
      if (!AnyRunning()) break;
    }
    loop_.WaitOnce(TimeoutMs());
  }
  if (!fatal_.empty()) PrintFatal(resolved_.options.log, fatal_);
  return exit_code_;
}

int Supervisor::TimeoutMs() const {
  return stage_ == Stage::kServing &&
                 std::all_of(replicas_.begin(), replicas_.end(),
                             [](const auto& r) { return r->Ready(); }) &&
                 (router_ == nullptr || router_->ready())
             ? kIdleTickMs
             : kBusyTickMs;
}

void Supervisor::Tick(int64_t now_ns) {
  for (const auto& replica : replicas_) LogIfNotStarted(replica->Tick(now_ns, watch_from_ns_));
  LogIfNotStarted(StartRouterIfDue(now_ns));
  if (stage_ == Stage::kStarting) AnnounceIfReady();
  if (stage_ == Stage::kServing) ready_ = TakesRequests();
}

bool Supervisor::TakesRequests() const {
  if (router_ != nullptr) return router_->serving();
  return std::any_of(replicas_.begin(), replicas_.end(), [](const auto& r) { return r->Ready(); });
}

Status Supervisor::StartRouterIfDue(int64_t now_ns) {
  if (router_ == nullptr) return OkStatus();
  if (router_started_) return router_->Tick(now_ns);
  const auto ready = [](const auto& r) { return r->Ready(); };
  const auto settled = [](const auto& r) { return r->Ready() || r->EverFailed(); };
  if (!std::all_of(replicas_.begin(), replicas_.end(), settled) ||
      !std::any_of(replicas_.begin(), replicas_.end(), ready))
    return OkStatus();
  RETURN_IF_ERROR(router_->Start(now_ns));
  router_started_ = true;
  return OkStatus();
}

void Supervisor::AnnounceIfReady() {
  const std::string metrics =
      absl::StrCat("http://", HostPort(resolved_.options.host, metrics_http_->port()), "/metrics");
  const std::string& host = resolved_.options.host;
  std::string line;
  if (router_ != nullptr) {
    if (!router_->ready()) return;
    line = absl::StrCat("ready http=", resolved_.options.tls.empty() ? "http://" : "https://",
                        HostPort(host, router_->ports().http),
                        " grpc=", HostPort(host, router_->ports().grpc), " metrics=", metrics);
  } else {
    if (!replicas_[0]->Ready()) return;
    line = mode_ == Mode::kJoin
               ? absl::StrCat("ready rank=", resolved_.span.first_rank,
                              " head=", resolved_.span.CollectiveAddress(), " metrics=", metrics)
               : absl::StrCat("ready grpc=", replicas_[0]->address(), " metrics=", metrics);
  }
  stage_ = Stage::kServing;
  ready_ = true;
  std::printf("%s\n", line.c_str());
  std::fflush(stdout);
  service_.Ready(line);
}

void Supervisor::OnSignal() {
  signalfd_siginfo info;
  while (read(signals_.get(), &info, sizeof(info)) == static_cast<ssize_t>(sizeof(info))) {
    if (info.ssi_signo == SIGCHLD) {
      ReapAll();
    } else if (info.ssi_signo == SIGUSR2) {
      StartRouterSuccessor();
    } else if (stage_ == Stage::kStarting || stage_ == Stage::kServing) {
      Log().info("stopping");
      BeginStop(0, resolved_.options.shutdown_timeout);
    } else if (info.ssi_signo == SIGINT && RealClock::Now() - stop_began_ns_ > kSecondSignalNs) {
      Log().warn("stopping at once");
      kill_now_ = true;
      KillAll();
    }
  }
}

void Supervisor::StartRouterSuccessor() {
  const Status status = router_ == nullptr || stage_ != Stage::kServing
                            ? absl::FailedPreconditionError("no router serves here")
                            : router_->StartSuccessor(RealClock::Now());
  if (status.ok()) {
    Log().info("starting a successor of the router");
  } else {
    Log().warn("no successor of the router is started {}",
               Kv("reason", std::string(status.message())));
  }
}

// Reaps ours and, as process 1 or subreaper, whatever was left to us.
void Supervisor::ReapAll() {
  for (;;) {
    int wait_status = 0;
    const pid_t pid = waitpid(-1, &wait_status, WNOHANG);
    if (pid <= 0) return;
    const int64_t now = RealClock::Now();
    if (router_ != nullptr) {
      if (const auto exit = router_->OnExit(pid, wait_status, now)) {
        if (exit->current) OnDeath(router_->process(), exit->exit);
        continue;
      }
    }
    const bool stopping = stage_ != Stage::kStarting && stage_ != Stage::kServing;
    for (const auto& replica : replicas_) {
      if (const auto death = replica->OnExit(pid, wait_status, now, stopping)) {
        OnDeath(*death->process, death->exit);
        break;
      }
    }
  }
}

void Supervisor::OnDeath(const ManagedProcess& process, const ProcessExit& exit) {
  if (stage_ != Stage::kStarting && stage_ != Stage::kServing) {
    if (!exit.exited || exit.code != 0)
      Log().warn("{} while stopping {}", exit.Describe(), Kv("name", process.name()));
    return;
  }
  // What we killed has been told already.
  Log().log(exit.by_us ? spdlog::level::info : spdlog::level::warn, "{} {} {}", exit.Describe(),
            Kv("name", process.name()), Kv("failures", process.failures()));
  if (stage_ == Stage::kServing) return;
  const bool useless = exit.BadConfiguration();
  if (!useless && process.failures() < kMaxStartFailures) return;
  const std::string reason =
      process.last_line().empty() ? exit.Describe() : MessageOfLogLine(process.last_line());
  if (fatal_.empty()) fatal_ = absl::StrCat(process.name(), ": ", reason);
  BeginStop(useless ? kExitBadConfiguration : 1, 1.0);
}

void Supervisor::BeginStop(int exit_code, double grace_seconds) {
  const int64_t now = RealClock::Now();
  exit_code_ = exit_code;
  stop_began_ns_ = now;
  stop_deadline_ns_ = now + static_cast<int64_t>(grace_seconds * kNsPerSecond);
  stage_ = Stage::kStoppingRouter;
  service_.Stopping();
  // Router and schedulers end their streams at the deadline, and get a little longer to do so.
  stage_deadline_ns_ = stop_deadline_ns_ + kStageMinNs;
  SignalStage(SIGTERM);
}

// A scheduler that finishes its requests needs all its processes: one that dies or hangs meanwhile
// is started again. After a failed start it has none.
void Supervisor::TendWhileStopping(int64_t now_ns) {
  if (exit_code_ != 0 || kill_now_ || stage_ == Stage::kStoppingRest) return;
  for (const auto& replica : replicas_) {
    if (replica->SchedulerRunning()) LogIfNotStarted(replica->Tick(now_ns, watch_from_ns_));
  }
}

void Supervisor::ContinueStop(int64_t now_ns) {
  while (StageGone() && stage_ != Stage::kStoppingRest) {
    stage_ = stage_ == Stage::kStoppingRouter ? Stage::kStoppingSchedulers : Stage::kStoppingRest;
    stage_deadline_ns_ = now_ns + kStageMinNs;
    if (stage_ == Stage::kStoppingSchedulers)
      stage_deadline_ns_ = std::max(stage_deadline_ns_, stop_deadline_ns_ + kStageMinNs);
    SignalStage(kill_now_ ? SIGKILL : SIGTERM);
  }
  if (now_ns >= stage_deadline_ns_) SignalStage(SIGKILL);
}

void Supervisor::SignalStage(int signal) {
  if (stage_ == Stage::kStoppingRouter && router_ != nullptr) router_->Signal(signal);
  for (const auto& replica : replicas_) {
    if (stage_ == Stage::kStoppingSchedulers) replica->SignalScheduler(signal);
    if (stage_ == Stage::kStoppingRest) replica->SignalOthers(signal);
  }
}

bool Supervisor::StageGone() const {
  switch (stage_) {
    case Stage::kStoppingRouter:
      return router_ == nullptr || !router_->AnyRunning();
    case Stage::kStoppingSchedulers:
      return std::none_of(replicas_.begin(), replicas_.end(),
                          [](const auto& r) { return r->SchedulerRunning(); });
    default:
      return !AnyRunning();
  }
}

bool Supervisor::AnyRunning() const {
  return (router_ != nullptr && router_->AnyRunning()) ||
         std::any_of(replicas_.begin(), replicas_.end(),
                     [](const auto& r) { return r->AnyRunning(); });
}

void Supervisor::KillAll() {
  if (router_ != nullptr) router_->Signal(SIGKILL);
  for (const auto& replica : replicas_) {
    replica->SignalScheduler(SIGKILL);
    replica->SignalOthers(SIGKILL);
  }
}

}  // namespace flotilla
