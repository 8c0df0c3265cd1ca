#include "router/router_app.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <future>
#include <utility>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/rpc/grpc_library.h"
#include "common/tls/certificate_metric.h"

namespace flotilla {
namespace {

constexpr int kLargeTextNice = 10;
// What clients and replicas are told at the end of the grace goes out within so long, if they read.
constexpr auto kTellTime = std::chrono::seconds(1);

std::unique_ptr<Access> MakeAccess(const std::string& file, prometheus::Registry* registry) {
  static const RealClock clock;
  if (file.empty()) return nullptr;
  // Keys can't be moved: they are made in their place.
  return std::unique_ptr<Access>(
      new Access{ApiKeys(file), std::make_shared<TenantLimits>(&clock, registry)});
}

std::unique_ptr<TlsFiles> MakeTls(const TlsSide& side, const TlsPaths& paths,
                                  prometheus::Registry* registry) {
  if (paths.empty()) return nullptr;
  return std::make_unique<TlsFiles>(side, paths, CertificateExpiryMetric("router", registry));
}

DispatcherOptions Wired(DispatcherOptions options, ReplicaTls tls, RequestTracer* tracer) {
  options.tls = std::move(tls);
  options.tracer = tracer;
  return options;
}

}  // namespace

RouterApp::RouterApp(RouterOptions options)
    : options_((PrepareGrpc(), std::move(options))),
      registry_(std::make_shared<prometheus::Registry>()),
      metrics_(registry_.get()),
      answers_(options_.answers, &metrics_),
      work_(io_.get_executor()),
      tls_(MakeTls(kTlsServer, options_.tls, registry_.get())),
      replica_tls_(MakeTls(kTlsToReplicas, options_.replica_tls, registry_.get())),
      traces_(options_.traces, &metrics_),
      dispatcher_(Wired(options_.dispatcher, {replica_tls_.get(), options_.replica_tls_server_name},
                        options_.traces.endpoint.empty() ? nullptr : &traces_),
                  &io_, &large_pool_, &calls_, &metrics_),
      access_(MakeAccess(options_.api_keys_file, registry_.get())),
      context_{&io_,
               &pool_,
               &large_pool_,
               &calls_,
               &dispatcher_,
               &metrics_,
               &answers_,
               options_.parsers,
               options_.sse_keepalive_ms,
               access_.get(),
               {}},
      routes_(context_, options_.ui),
      http_(options_.http, &routes_, tls_.get()),
      grpc_(options_.grpc, context_, tls_.get()),
      http_listener_(&io_),
      grpc_listener_(&io_) {}

RouterApp::~RouterApp() {
  if (io_thread_.joinable() && !draining_) {
    Interrupt();
    Drain();
  }
}

// Runs `function` on the io thread and waits for it.
template <typename Function>
auto RouterApp::OnIo(Function function) {
  std::packaged_task<decltype(function())()> task(std::move(function));
  auto future = task.get_future();
  boost::asio::post(io_, [&task] { task(); });
  return future.get();
}

Status RouterApp::Check() {
  RETURN_IF_ERROR(LoadFiles());
  const std::string& endpoint = options_.traces.endpoint;
  return endpoint.empty() ? OkStatus() : ParseTraceEndpoint(endpoint).status();
}

Status RouterApp::Start(ListeningSockets adopted) {
  // Megabytes of one client's text must not take a core from the next step of all others.
  boost::asio::post(large_pool_, [] { setpriority(PRIO_PROCESS, gettid(), kLargeTextNice); });
  RETURN_IF_ERROR(LoadFiles());
  RETURN_IF_ERROR(traces_.Start());
  const bool adopts = adopted.http.valid();
  const std::string& host = options_.http.host;
  if (Status status = adopts ? http_listener_.Adopt(std::move(adopted.http))
                             : http_listener_.Listen(host, options_.http.port);
      !status.ok())
    return Annotate(status, "--port");
  if (Status status = adopts ? grpc_listener_.Adopt(std::move(adopted.grpc))
                             : grpc_listener_.Listen(host, options_.grpc.grpc_port);
      !status.ok())
    return Annotate(status, "--grpc-port");
  RETURN_IF_ERROR(grpc_.Start());
  dispatcher_.set_on_ready_changed([this] { OnReadyChanged(); });
  dispatcher_.Start();
  io_thread_ = std::thread([this] { io_.run(); });
  if (!adopts) Accept();
  return OkStatus();
}

void RouterApp::Accept() {
  OnIo([this] {
    http_listener_.Accept([this](auto socket) { http_.Take(std::move(socket)); });
    grpc_listener_.Accept([this](auto socket) { grpc_.Take(std::move(socket)); });
  });
}

void RouterApp::Leave() {
  OnIo([this] {
    http_listener_.Close();
    grpc_listener_.Close();
    http_.BeginLeave();
    left_ns_ = RealClock::Now();
  });
}

bool RouterApp::Deserted() {
  return OnIo([this] {
    return http_.connections() == 0 && dispatcher_.active() == 0 && metrics_.in_flight() == 0 &&
           RealClock::Now() - left_ns_ >= grpc_.longest_connection_ms() * kNsPerMs;
  });
}

// What a file says when it has changed is the truth from then on, unless it is wrong.
Status RouterApp::LoadFiles() {
  std::vector<WatchedFile> files;
  if (access_ != nullptr) {
    if (Status status = access_->keys.Load(); !status.ok())
      return Annotate(status, "--api-keys-file");
    files.push_back({"--api-keys-file", [this] { return access_->keys.Reload(); }});
  }
  if (replica_tls_ == nullptr && !options_.replica_tls_server_name.empty())
    return absl::InvalidArgumentError("--replica-tls-server-name needs --replica-tls-ca-file");
  for (TlsFiles* const each : {tls_.get(), replica_tls_.get()}) {
    if (each == nullptr) continue;
    RETURN_IF_ERROR(each->Load());
    const TlsSide& side = each->side();
    files.push_back({side.role == TlsRole::kServer ? side.cert_flag : side.ca_flag,
                     [each] { return each->Reload(); }});
  }
  if (!files.empty()) watch_.emplace(std::move(files));
  return OkStatus();
}

void RouterApp::OnReadyChanged() {
  grpc_.SetServing(dispatcher_.ready());
  std::lock_guard<std::mutex> lock(mutex_);
  ready_seen_ = ready_seen_ || dispatcher_.ready();
  changed_.notify_all();
}

bool RouterApp::WaitServingChange(bool last) {
  std::unique_lock<std::mutex> lock(mutex_);
  changed_.wait(lock, [&] { return interrupted_ || serving() != last; });
  return !interrupted_;
}

bool RouterApp::WaitReady(int64_t timeout_ms) {
  std::unique_lock<std::mutex> lock(mutex_);
  changed_.wait_for(lock, std::chrono::milliseconds(timeout_ms),
                    [this] { return ready_seen_ || interrupted_; });
  return ready_seen_ && !interrupted_;
}

bool RouterApp::interrupted() {
  std::lock_guard<std::mutex> lock(mutex_);
  return interrupted_;
}

void RouterApp::Interrupt() {
  std::lock_guard<std::mutex> lock(mutex_);
  interrupted_ = true;
  changed_.notify_all();
}

bool RouterApp::Responds(int64_t timeout_ms) {
  const auto answer = std::make_shared<std::promise<void>>();
  boost::asio::post(io_, [answer] { answer->set_value(); });
  return answer->get_future().wait_for(std::chrono::milliseconds(timeout_ms)) ==
         std::future_status::ready;
}

size_t RouterApp::WaitForZero(const std::function<size_t()>& count,
                              std::chrono::steady_clock::time_point deadline) {
  boost::asio::steady_timer timer(io_);
  std::promise<size_t> left;
  std::function<void()> check = [&] {
    const size_t now = count();
    if (now == 0 || std::chrono::steady_clock::now() >= deadline) {
      left.set_value(now);
      return;
    }
    timer.expires_after(std::chrono::milliseconds(20));
    timer.async_wait([&](boost::system::error_code) { check(); });
  };
  boost::asio::post(io_, check);
  return left.get_future().get();
}

void RouterApp::Drain() {
  draining_ = true;
  const auto begin = std::chrono::steady_clock::now();
  const auto end = begin + std::chrono::milliseconds(options_.drain_grace_ms);
  OnIo([this] {
    dispatcher_.set_on_ready_changed(nullptr);
    routes_.BeginLeave();
    http_.BeginLeave();
    grpc_.BeginLeave();
  });
  WaitForZero([this] { return http_.connections() + grpc_.connections(); },
              std::min(end, begin + std::chrono::milliseconds(options_.drain_linger_ms)));
  OnIo([this] {
    routes_.BeginDrain();
    http_.BeginDrain();
    grpc_.BeginDrain();
  });
  // Those of HTTP and gRPC that are still read or checked, or whose answers are being sent.
  const auto unanswered = [this] {
    return std::max({dispatcher_.active(), http_.answering(), metrics_.in_flight()});
  };
  if (const size_t left = WaitForZero(unanswered, end); left > 0) {
    Log().warn("requests failed at the end of the grace {}", Kv("count", left));
    OnIo([this] {
      dispatcher_.FailAll(Unavailable("This router is shutting down; try again.", 1000));
    });
    WaitForZero([&] { return std::max(unanswered(), dispatcher_.aborting()); },
                std::chrono::steady_clock::now() + kTellTime);
  }
  OnIo([this] {
    http_listener_.Close();
    grpc_listener_.Close();
    grpc_.StopTaking();
  });
  grpc_.Shutdown();
  OnIo([this] {
    http_.Stop();
    dispatcher_.Stop();
  });
  calls_.WaitForZero();
  pool_.join();
  large_pool_.join();
  work_.reset();
  io_.stop();
  io_thread_.join();
  traces_.Stop();
}

}  // namespace flotilla
