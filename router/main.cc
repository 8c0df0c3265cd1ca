// flotilla-router: flags, signals, and the wiring of RouterApp.
#include <sys/resource.h>

#include <atomic>
#include <csignal>
#include <cstdio>
#include <memory>
#include <optional>
#include <thread>

#include "common/base/clock.h"
#include "common/base/exit_status.h"
#include "common/base/listen.h"
#include "common/base/log.h"
#include "common/base/metrics.h"
#include "common/base/metrics_http.h"
#include "common/base/service_notify.h"
#include "common/cli/flag_sources.h"
#include "router/handoff.h"
#include "router/router_app.h"
#include "router/router_flags.h"

namespace flotilla {
namespace {

constexpr int64_t kProbeMs = 1000;  // a kubelet waits for some seconds
constexpr int64_t kLookMs = 200;  // from one look at a predecessor, or at who is left, to the next
// systemd waits so long for engines: whatever is started after this unit may need the router alone.
constexpr int64_t kServiceReadyMs = 5000;

int Fail(const Status& status) {
  std::fprintf(stderr, "flotilla-router: %s\n", std::string(status.message()).c_str());
  return ExitStatusOf(status);
}

// The process around RouterApp: its metrics' page, and the hand-off to and from other routers.
class RouterRun {
 public:
  explicit RouterRun(const RouterFlags& flags) : flags_(flags), app_(flags.router) {}
  ~RouterRun() {
    if (notifier_.joinable()) notifier_.join();
  }

  Status Start() {
    ListeningSockets sockets;
    RETURN_IF_ERROR(MeetPredecessor(&sockets));
    RETURN_IF_ERROR(app_.Start(std::move(sockets)));
    if (predecessor_ == nullptr) RETURN_IF_ERROR(Serve());
    notifier_ = std::thread([this] { BecomeReady(); });
    return OkStatus();
  }

  // Until SIGTERM or SIGINT; with a successor, until nobody needs this router any more.
  void Wait(const sigset_t& signals) {
    for (;;) {
      const timespec tick{0, kLookMs * kNsPerMs};
      const int signal =
          relieved_ ? sigtimedwait(&signals, nullptr, &tick) : sigwaitinfo(&signals, nullptr);
      if (signal == SIGTERM || signal == SIGINT) {
        Log().info("stopping {}", Kv("signal", signal));
        return;
      }
      if (relieved_ && app_.Deserted()) {
        Log().info("everybody has left for the successor");
        return;
      }
    }
  }

  void Stop() {
    app_.Interrupt();
    notifier_.join();
    service_.Stopping();
    handoff_.reset();
    app_.Drain();
  }

 private:
  // The lines go to the launcher or, without one, the first to stdout as the launcher's does.
  void NotifyReady() const {
    const uint16_t http = app_.http_port(), grpc = app_.grpc_port();
    Log().info("ready {} {}", Kv("http", http), Kv("grpc", grpc));
    if (flags_.notify_fd < 0) {
      const std::string& host = flags_.router.http.host;
      std::string line = StrCat("ready http=", flags_.router.tls.empty() ? "http://" : "https://",
                                HostPort(host, http), " grpc=", HostPort(host, grpc));
      if (page_port_ != 0)
        StrAppend(&line, " metrics=http://", HostPort(host, page_port_), "/metrics");
      std::printf("%s\n", line.c_str());
      std::fflush(stdout);
      return;
    }
    TellLauncher(StrCat("READY http=", http, " grpc=", grpc, "\n"));
  }

  // What /health/ready says, each time that it changes, until Stop.
  void NotifyServing() {
    if (flags_.notify_fd < 0) return;
    for (bool serving = true; app_.WaitServingChange(serving);) {
      serving = !serving;
      TellLauncher(serving ? "SERVING\n" : "NOT_SERVING\n");
    }
  }

  void TellLauncher(std::string_view line) const {
    if (write(flags_.notify_fd, line.data(), line.size()) < 0)
      Log().warn("can't write to --notify-fd");
  }

  Status MeetPredecessor(ListeningSockets* sockets) {
    if (flags_.handoff_socket.empty()) return OkStatus();
    const RouterOptions& router = flags_.router;
    auto met = Predecessor::Meet(
        flags_.handoff_socket,
        {router.http.host, router.http.port, router.grpc.grpc_port, flags_.metrics_port});
    if (absl::IsNotFound(met.status())) return OkStatus();
    if (!met.ok()) return Annotate(met.status(), "--handoff-socket");
    predecessor_ = *std::move(met);
    *sockets = predecessor_->TakeSockets();
    if (!flags_.metrics_port) return OkStatus();
    metrics_listener_ = std::move(sockets->metrics);
    if (metrics_listener_.valid()) return OkStatus();
    uint16_t port = *flags_.metrics_port;  // the predecessor had none
    StatusOr<UniqueFd> own = ListenTcp(router.http.host, port, &port);
    if (!own.ok()) return Annotate(own.status(), "--metrics-port");
    metrics_listener_ = *std::move(own);
    return OkStatus();
  }

  // A predecessor serves until this router does; if it ends before, this one goes on alone.
  void BecomeReady() {
    bool serves = predecessor_ == nullptr;
    for (int64_t waited_ms = 0; !app_.WaitReady(kLookMs); waited_ms += kLookMs) {
      if (app_.interrupted()) return;
      if (waited_ms == kServiceReadyMs) service_.Ready("waiting for engines");
      if (serves || predecessor_->alive()) continue;
      Log().warn("the predecessor ended");
      AcceptFromPredecessor();
      serves = true;
    }
    if (!serves) AcceptFromPredecessor();
    NotifyReady();
    service_.Ready("serving");
    if (!serves) predecessor_->Relieve();
    NotifyServing();
  }

  void AcceptFromPredecessor() {
    app_.Accept();
    Log().info("accepting from another router's sockets");
    if (const Status status = Serve(); !status.ok())
      Log().error("started in part {}", Kv("reason", std::string(status.message())));
  }

  // What is there beside the two listeners.
  Status Serve() {
    RETURN_IF_ERROR(ServePages());
    return ServeHandoff();
  }

  Status ServePages() {
    auto metrics = MetricsServer::Start(flags_.metrics_socket, "router", app_.metrics_registry());
    if (!metrics.ok()) return Annotate(metrics.status(), "--metrics-socket");
    metrics_ = *std::move(metrics);
    if (!flags_.metrics_port) return OkStatus();
    const auto page = [this](const std::string& target) -> std::optional<MetricsPage> {
      if (target.substr(0, target.find('?')) != "/metrics")
        return HealthPage(
            target, [this] { return app_.Responds(kProbeMs); }, app_.serving());
      return MetricsPage{RenderMetrics(*app_.metrics_registry()) + RenderProcessMetrics("router")};
    };
    auto server = MetricsHttpServer::Start({flags_.router.http.host, *flags_.metrics_port, page,
                                            "here are /metrics, /health/live and /health/ready\n"},
                                           std::move(metrics_listener_));
    if (!server.ok()) return Annotate(server.status(), "--metrics-port");
    metrics_http_ = *std::move(server);
    page_port_ = metrics_http_->port();
    Log().info("metrics {}", Kv("port", page_port_));
    return OkStatus();
  }

  Status ServeHandoff() {
    if (flags_.handoff_socket.empty()) return OkStatus();
    auto handoff = HandoffServer::Start(
        {flags_.handoff_socket, flags_.router.http.host, app_.http_socket(), app_.grpc_socket(),
         metrics_http_ ? metrics_http_->listener() : -1, [this] { OnRelieved(); }});
    if (!handoff.ok()) return Annotate(handoff.status(), "--handoff-socket");
    handoff_ = *std::move(handoff);
    return OkStatus();
  }

  void OnRelieved() {
    Log().info("a successor serves");
    app_.Leave();
    metrics_http_.reset();
    relieved_ = true;
    kill(getpid(), SIGUSR2);  // Wait looks again
  }

  const RouterFlags& flags_;
  const ServiceNotifier service_ = ServiceNotifier::FromEnvironment();
  std::unique_ptr<Predecessor> predecessor_;
  UniqueFd metrics_listener_;  // of the predecessor
  RouterApp app_;
  std::unique_ptr<MetricsServer> metrics_;
  std::unique_ptr<MetricsHttpServer> metrics_http_;
  uint16_t page_port_ = 0;  // of metrics_http_, also when that has gone to a successor
  std::unique_ptr<HandoffServer> handoff_;
  std::atomic<bool> relieved_ = false;
  std::thread notifier_;
};

// As many descriptors as may be had: the usual 1,024 are fewer than --max-connections.
void RaiseOpenFiles() {
  rlimit files = {};
  if (getrlimit(RLIMIT_NOFILE, &files) != 0) return;
  files.rlim_cur = files.rlim_max;
  setrlimit(RLIMIT_NOFILE, &files);
}

int Run(int argc, char** argv) {
  RouterFlags flags;
  flags.log.process = "router";
  CLI::App app("HTTP and gRPC front of a Flotilla cluster", "flotilla-router");
  AddRouterFlags(&app, &flags);
  AddConfigFlag(&app);
  ParseWithSourcesOrExit(&app, argc, argv);
  InitLog(flags.log);
  RaiseOpenFiles();
  if (const Status status = FinishFlags(&flags); !status.ok()) return Fail(status);
  if (flags.check) {
    const Status status = RouterApp(flags.router).Check();
    return status.ok() ? 0 : Fail(status);
  }

  // Blocked before any thread starts: every thread inherits it, and one waits for them.
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
  sigaddset(&signals, SIGUSR2);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  std::signal(SIGPIPE, SIG_IGN);

  RouterRun router(flags);
  if (const Status status = router.Start(); !status.ok()) return Fail(status);
  router.Wait(signals);
  router.Stop();
  return 0;
}

}  // namespace
}  // namespace flotilla

// Read by jemalloc, where the router is linked with it: one thread allocates the most, so few
// arenas do; what is free goes back to the system within a second, by a thread of its own. Else a
// router that does nothing keeps 7 MiB.
extern "C" {
extern const char* malloc_conf;
const char* malloc_conf = "narenas:2,dirty_decay_ms:1000,background_thread:true";
}

int main(int argc, char** argv) { return flotilla::Run(argc, argv); }
