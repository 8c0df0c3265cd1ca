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
#include "common/base/flags.h"
#include "common/base/listen.h"
#include "common/base/log.h"
#include "common/base/metrics.h"
#include "common/base/metrics_http.h"
#include "common/base/service_notify.h"
#include "common/cli/flag_sources.h"
#include "common/tls/tls_flags.h"
#include "router/handoff.h"
#include "router/router_app.h"

namespace flotilla {
namespace {

struct Flags {
  RouterOptions router;
  LogOptions log;
  std::string ui = "on";
  std::vector<std::string> replica_services;
  std::string kubernetes_api;
  std::string kubernetes_credentials = KubeApi().credentials;
  std::string metrics_socket;
  std::string handoff_socket;
  std::optional<uint16_t> metrics_port;
  int notify_fd = -1;
  uint32_t admission_queue_timeout_s =
      static_cast<uint32_t>(DispatcherOptions().admission_queue_timeout_ms / 1000);
  uint32_t sse_keepalive_s = static_cast<uint32_t>(RouterOptions().sse_keepalive_ms / 1000);
};

CLI::Validator DnsNameFlag() {
  return CLI::Validator(
      [](const std::string& text) { return std::string(ParseDnsName(text).status().message()); },
      "NAME:PORT");
}

CLI::Validator ServiceNameFlag() {
  return CLI::Validator(
      [](const std::string& text) {
        return std::string(ParseServiceName(text).status().message());
      },
      "SERVICE:PORT");
}

void AddLimitFlags(CLI::App* app, Flags* flags) {
  DispatcherOptions& dispatcher = flags->router.dispatcher;
  HttpOptions& http = flags->router.http;
  auto bytes = [&](const char* name, uint64_t* value, const char* help) {
    app->add_option(name, *value, help)->transform(BytesFlag())->capture_default_str();
  };
  auto ms = [&](const char* name, int64_t* value, const char* help) {
    app->add_option(name, *value, help)->check(CLI::Range(1, 86'400'000))->capture_default_str();
  };
  bytes("--max-header-bytes", &http.max_header_bytes, "HTTP header of a request, at most");
  bytes("--max-body-bytes", &http.max_body_bytes, "Body or gRPC message of a request, at most");
  bytes("--max-stream-buffer-bytes", &http.max_stream_buffer_bytes,
        "Unsent bytes of a stream before its slow client is dropped");
  bytes("--max-buffered-body-bytes", &http.max_buffered_body_bytes,
        "Bodies of all HTTP requests that are not answered yet, together");
  bytes("--max-body-bytes-per-s", &http.max_body_bytes_per_s,
        "Read a second of HTTP bodies beyond 64 KiB of each, together");
  AnswerLimits& answers = flags->router.answers;
  bytes("--max-answer-bytes", &answers.max_answer_bytes, "Answer that is kept, not streamed");
  bytes("--max-buffered-answer-bytes", &answers.max_buffered_answer_bytes, "Such of all requests");
  auto count = [&](const char* name, uint32_t* value, const char* help) {
    app->add_option(name, *value, help)->check(CLI::Range(1, 1'000'000))->capture_default_str();
  };
  count("--max-connections", &http.max_connections, "HTTP connections at once");
  GrpcConnectionLimits& grpc = flags->router.grpc.connections;
  count("--max-grpc-connections", &grpc.max_grpc_connections, "gRPC connections at once");
  count("--max-grpc-resets", &grpc.max_grpc_resets_per_s,
        "gRPC calls that may be reset in a second; beyond that, whoever resets most of its own is "
        "shut out for a minute");
  count("--max-grpc-streams", &grpc.max_grpc_streams, "gRPC calls at once on a connection");
  app->add_option("--max-grpc-connection-age", flags->router.grpc.max_grpc_connection_age_s,
                  "Seconds after which a gRPC client is asked to open another connection for its "
                  "next call, so that calls spread over new routers; what runs is not touched")
      ->check(CLI::Range(1, 86'400))
      ->capture_default_str();
  count("--max-replicas", &dispatcher.max_replicas,
        "Replicas that the router connects to; further addresses are left out");
  count("--max-cache-index-pages", &dispatcher.max_index_pages,
        "Pages of a replica's prefix cache that --policy prefix_aware knows of");
  count("--max-requests", &dispatcher.max_requests, "Requests in flight, HTTP and gRPC together");
  ms("--header-timeout-ms", &http.header_timeout_ms, "For a request's header to come in");
  ms("--body-timeout-ms", &http.body_timeout_ms, "For a request's body to come in");
  ms("--idle-timeout-ms", &http.idle_timeout_ms, "Between requests of a kept connection");
  ms("--write-timeout-ms", &http.write_timeout_ms, "Without a byte taken by the client");
  ms("--max-request-ms", &dispatcher.max_request_ms,
     "For a whole request; a later deadline is drawn in");
  auto ms_or_0 = [&](const char* name, int64_t* value, const char* help) {
    app->add_option(name, *value, help)->check(CLI::Range(0, 3'600'000))->capture_default_str();
  };
  ms_or_0(
      "--failover-wait-ms", &dispatcher.failover_wait_ms,
      "For a replica to be there that can take a request, or go on with one whose own was lost; "
      "0: it fails at once");
  app->add_option(
         "--max-failovers", dispatcher.max_failovers,
         "Times that a request which has begun (each of best_of choices) goes on after the "
         "loss of its replica, those that drain or are no longer named not counted")
      ->check(CLI::Range(0, 1'000'000))
      ->capture_default_str();
  ms_or_0("--slow-start-ms", &dispatcher.slow_start_ms,
          "A replica that became ready gets a growing share of the requests for so long, if others "
          "are warm; 0: its whole share at once");
  app->add_option("--low-priority-share", dispatcher.low_priority_share,
                  "Of --max-requests and --admission-queue that requests below priority 0 may take")
      ->check(CLI::Range(0.0, 1.0))
      ->capture_default_str();
  AddFlag(app, kDrainGraceMsFlag, &flags->router.drain_grace_ms);
  app->add_option("--drain-linger-ms", flags->router.drain_linger_ms,
                  "Of that, while requests are still taken, for clients and balancers that do not "
                  "know yet; connections are closed with their next answer, and when all have left "
                  "it ends early; 0: new requests are refused at once")
      ->check(CLI::Range(0, 86'400'000))
      ->capture_default_str();
}

void AddAdmissionFlags(CLI::App* app, Flags* flags) {
  DispatcherOptions& dispatcher = flags->router.dispatcher;
  auto count = [&](const char* name, uint32_t* value, const char* help) {
    app->add_option(name, *value, help)->check(CLI::Range(0, 1'000'000))->capture_default_str();
  };
  count("--max-inflight-per-replica", &dispatcher.max_inflight_per_replica,
        "Requests (each of best_of choices is one) that this router gives to a replica at once; "
        "further ones wait in the admission queue. 0: as many as the replica takes");
  count("--admission-queue", &dispatcher.admission_queue,
        "New requests that may wait while no replica may take one, the highest priority first, "
        "then tenants in turn; beyond it clients get 429. 0: none waits for a busy replica");
  count("--admission-queue-per-tenant", &dispatcher.admission_queue_per_tenant,
        "Of these, those of one tenant; 0: as many as may wait");
  app->add_option("--admission-queue-timeout", flags->admission_queue_timeout_s,
                  "Seconds after which a request in the admission queue is refused")
      ->check(CLI::Range(1, 3600))
      ->capture_default_str();
}

void AddTlsFlags(CLI::App* app, RouterOptions* router) {
  AddServerTlsFlags(app, &router->tls);
  TlsPaths& replica = router->replica_tls;
  app->add_option(kTlsToReplicas.ca_flag, replica.ca_file,
                  "PEM file of CAs: replicas are reached by TLS, but for unix:/path, and must have "
                  "a certificate of one of them. Read again when it changes, as are the next two");
  app->add_option(kTlsToReplicas.cert_flag, replica.cert_file,
                  "PEM file of this router's certificate, for replicas that want one");
  app->add_option(kTlsToReplicas.key_flag, replica.key_file,
                  "PEM file of that certificate's private key");
  app->add_option("--replica-tls-server-name", router->replica_tls_server_name,
                  "Name that replicas' certificates must have. Default: the address' host");
}

void AddFlags(CLI::App* app, Flags* flags) {
  RouterOptions& router = flags->router;
  app->add_option("--host", router.http.host,
                  "Address to listen on, HTTP and gRPC (\"::\": all; 0.0.0.0: all of IPv4)")
      ->capture_default_str();
  app->add_option("--port", router.http.port, "HTTP port (0: any)")->capture_default_str();
  app->add_option("--grpc-port", router.grpc.grpc_port, "gRPC port (0: any)")
      ->capture_default_str();
  app->add_option("--replica", router.dispatcher.replicas,
                  "A replica's address, host:port or unix:/path (repeatable)");
  app->add_option("--replica-dns", router.dispatcher.replica_dns,
                  "NAME:PORT: a replica is at each address of NAME, such as a headless Service's "
                  "(repeatable)")
      ->check(DnsNameFlag());
  app->add_option("--replica-dns-interval-ms", router.dispatcher.replica_dns_interval_ms,
                  "From one look at --replica-dns to the next")
      ->check(CLI::Range(10, 86'400'000))
      ->capture_default_str();
  app->add_option("--replica-service", flags->replica_services,
                  "[NAMESPACE/]SERVICE:PORT: a replica is at each pod of a Kubernetes Service, as "
                  "the API server tells it at once (repeatable); PORT is a number or a port's name")
      ->check(ServiceNameFlag());
  app->add_option("--kubernetes-api", flags->kubernetes_api,
                  "API server of --replica-service, such as http://127.0.0.1:8001 of `kubectl "
                  "proxy`. Default: that of the pod this runs in");
  app->add_option("--kubernetes-credentials", flags->kubernetes_credentials,
                  "Folder of a service account's token, ca.crt and namespace, for an https API "
                  "server")
      ->capture_default_str();
  AddFlag(app, kPolicyFlag, &router.dispatcher.policy);
  AddFlag(app, kSseKeepaliveFlag, &flags->sse_keepalive_s);
  AddFlag(app, kApiKeysFileFlag, &router.api_keys_file);
  AddTlsFlags(app, &router);
  AddFlag(app, kCorsAllowOriginFlag, &router.http.cors_allow_origin);
  AddFlag(app, kOtlpTracesEndpointFlag, &router.traces.endpoint);
  AddTraceSampleRatioFlag(app, &router.traces.sample_ratio);
  AddFlag(app, kUiFlag, &flags->ui);
  AddFlag(app, kUiRequestsFlag, &router.dispatcher.ui_requests);
  AddFlag(app, kLogSlowMsFlag, &router.dispatcher.log_slow_ms);
  AddFlag(app, kToolCallParserFlag, &router.parsers.tool_call_parser);
  AddFlag(app, kReasoningParserFlag, &router.parsers.reasoning_parser);
  app->add_option("--notify-fd", flags->notify_fd,
                  "Descriptor that gets \"READY http=PORT grpc=PORT\" when requests are taken");
  app->add_option("--metrics-socket", flags->metrics_socket,
                  "Unix socket that serves this process's metrics");
  app->add_option("--metrics-port", flags->metrics_port,
                  "Port of /metrics for Prometheus; 0: any. Not given: none");
  app->add_option("--handoff-socket", flags->handoff_socket,
                  "Unix socket through which a router that is started with the same path takes "
                  "over: it gets the listening sockets, and this one ends once its clients have "
                  "left");
  AddLimitFlags(app, flags);
  AddAdmissionFlags(app, flags);
  AddLogFlags(app, &flags->log);
}

// The line goes to the launcher and, for people, to the log.
void NotifyReady(const Flags& flags, const RouterApp& app) {
  Log().info("ready {} {}", Kv("http", app.http_port()), Kv("grpc", app.grpc_port()));
  if (flags.notify_fd < 0) return;
  const std::string line = StrCat("READY http=", app.http_port(), " grpc=", app.grpc_port(), "\n");
  if (write(flags.notify_fd, line.data(), line.size()) < 0)
    Log().warn("can't write to --notify-fd");
  close(flags.notify_fd);
}

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
  explicit RouterRun(const Flags& flags) : flags_(flags), app_(flags.router) {}
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
    NotifyReady(flags_, app_);
    service_.Ready("serving");
    if (!serves) predecessor_->Relieve();
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
        return HealthPage(target, app_.serving());
      return MetricsPage{RenderMetrics(*app_.metrics_registry()) + RenderProcessMetrics("router")};
    };
    auto server = MetricsHttpServer::Start({flags_.router.http.host, *flags_.metrics_port, page,
                                            "here are /metrics, /health/live and /health/ready\n"},
                                           std::move(metrics_listener_));
    if (!server.ok()) return Annotate(server.status(), "--metrics-port");
    metrics_http_ = *std::move(server);
    Log().info("metrics {}", Kv("port", metrics_http_->port()));
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

  const Flags& flags_;
  const ServiceNotifier service_ = ServiceNotifier::FromEnvironment();
  std::unique_ptr<Predecessor> predecessor_;
  UniqueFd metrics_listener_;  // of the predecessor
  RouterApp app_;
  std::unique_ptr<MetricsServer> metrics_;
  std::unique_ptr<MetricsHttpServer> metrics_http_;
  std::unique_ptr<HandoffServer> handoff_;
  std::atomic<bool> relieved_ = false;
  std::thread notifier_;
};

// The API server is asked later, and again and again; that none is named is wrong at once.
Status FindServices(Flags* flags) {
  if (flags->replica_services.empty()) return OkStatus();
  StatusOr<KubeApi> api = FindKubeApi(flags->kubernetes_api, flags->kubernetes_credentials);
  if (!api.ok()) return Annotate(api.status(), "--replica-service");
  for (const std::string& text : flags->replica_services) {
    ASSIGN_OR_RETURN(ServiceName name, ParseServiceName(text));
    flags->router.dispatcher.replica_services.push_back({.name = std::move(name), .api = *api});
  }
  return OkStatus();
}

// As many descriptors as may be had: the usual 1,024 are fewer than --max-connections.
void RaiseOpenFiles() {
  rlimit files = {};
  if (getrlimit(RLIMIT_NOFILE, &files) != 0) return;
  files.rlim_cur = files.rlim_max;
  setrlimit(RLIMIT_NOFILE, &files);
}

int Run(int argc, char** argv) {
  Flags flags;
  flags.log.process = "router";
  CLI::App app("HTTP and gRPC front of a Flotilla cluster", "flotilla-router");
  AddFlags(&app, &flags);
  AddConfigFlag(&app);
  ParseWithSourcesOrExit(&app, argc, argv);
  InitLog(flags.log);
  RaiseOpenFiles();
  DispatcherOptions& dispatcher = flags.router.dispatcher;
  if (dispatcher.replicas.empty() && dispatcher.replica_dns.empty() &&
      flags.replica_services.empty()) {
    std::fprintf(stderr, "flotilla-router: give --replica, --replica-dns or --replica-service\n");
    return 2;
  }
  if (const Status status = FindServices(&flags); !status.ok()) return Fail(status);
  flags.router.grpc.max_grpc_message_bytes = flags.router.http.max_body_bytes;
  flags.router.grpc.max_grpc_buffer_bytes = flags.router.http.max_buffered_body_bytes;
  flags.router.grpc.max_metadata_bytes = flags.router.http.max_header_bytes;
  // A quarter more: those that are refused, and the small ones that are no requests.
  const uint32_t most_requests = dispatcher.max_requests;
  flags.router.grpc.connections.max_grpc_calls = most_requests + most_requests / 4;
  flags.router.grpc.handshake_timeout_ms = flags.router.http.header_timeout_ms;
  flags.router.grpc.max_stream_buffer_bytes = flags.router.http.max_stream_buffer_bytes;
  dispatcher.admission_queue_timeout_ms = int64_t{1000} * flags.admission_queue_timeout_s;
  flags.router.sse_keepalive_ms = int64_t{1000} * flags.sse_keepalive_s;
  flags.router.ui = flags.ui == "on";
  if (!flags.router.ui) dispatcher.ui_requests = 0;

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

int main(int argc, char** argv) { return flotilla::Run(argc, argv); }
