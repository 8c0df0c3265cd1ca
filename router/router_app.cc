#include "router/router_app.h"

#include <grpc/grpc.h>
#include <grpc/support/log.h>
#include <sys/resource.h>
#include <unistd.h>

#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <future>
#include <utility>

#include "common/base/clock.h"
#include "common/base/log.h"

namespace flotilla {
namespace {

// gRPC's own words are for debugging; what matters is in the statuses it returns.
void LogFromGrpc(gpr_log_func_args* args) { Log().debug("grpc {}", Kv("says", args->message)); }

constexpr int kLargeTextNice = 10;
constexpr std::chrono::seconds kKeysPeriod{1};

std::unique_ptr<Access> MakeAccess(const std::string& file) {
  static const RealClock clock;
  if (file.empty()) return nullptr;
  // Keys can't be moved: they are made in their place.
  return std::unique_ptr<Access>(new Access{ApiKeys(file), std::make_shared<TenantLimits>(&clock)});
}

// Keeps the library up until the process ends: when its last user goes, gRPC 1.51 may join a thread
// that sleeps in a poll for up to 10 s.
void PrepareGrpc() {
  static const bool once = [] {
    gpr_set_log_function(&LogFromGrpc);
    grpc_init();
    return true;
  }();
  static_cast<void>(once);
}

}  // namespace

RouterApp::RouterApp(RouterOptions options)
    : options_((PrepareGrpc(), std::move(options))),
      registry_(std::make_shared<prometheus::Registry>()),
      metrics_(registry_.get()),
      work_(io_.get_executor()),
      dispatcher_(options_.dispatcher, &io_, &large_pool_, &calls_, &metrics_),
      access_(MakeAccess(options_.api_keys_file)),
      keys_timer_(io_),
      context_{&io_,          &pool_,    &large_pool_,     &calls_,
               &dispatcher_,  &metrics_, options_.parsers, options_.sse_keepalive_ms,
               access_.get(), {}},
      routes_(context_),
      http_(options_.http, &io_, &routes_),
      grpc_(options_.grpc, context_) {}

RouterApp::~RouterApp() {
  if (io_thread_.joinable() && !drained_) {
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

Status RouterApp::Start() {
  // Megabytes of one client's text must not take a core from the next step of all others.
  boost::asio::post(large_pool_, [] { setpriority(PRIO_PROCESS, gettid(), kLargeTextNice); });
  if (access_ != nullptr) {
    if (Status status = access_->keys.Load(); !status.ok())
      return Annotate(status, "--api-keys-file");
    WatchKeys();
  }
  if (Status status = http_.Listen(); !status.ok()) return Annotate(status, "--port");
  if (Status status = grpc_.Start(); !status.ok()) return Annotate(status, "--grpc-port");
  dispatcher_.set_on_ready_changed([this] { OnReadyChanged(); });
  dispatcher_.Start();
  io_thread_ = std::thread([this] { io_.run(); });
  return OkStatus();
}

// A file that has changed is the truth from then on, unless it is wrong.
void RouterApp::WatchKeys() {
  keys_timer_.expires_after(kKeysPeriod);
  keys_timer_.async_wait([this](boost::system::error_code error) {
    if (error) return;
    const StatusOr<bool> changed = access_->keys.Reload();
    if (!changed.ok())
      Log().error("--api-keys-file is wrong, the keys before it stay {}",
                  Kv("error", std::string(changed.status().message())));
    else if (*changed)
      Log().info("--api-keys-file was read again");
    WatchKeys();
  });
}

void RouterApp::OnReadyChanged() {
  grpc_.SetServing(dispatcher_.ready());
  if (!dispatcher_.ready()) return;
  std::lock_guard<std::mutex> lock(mutex_);
  ready_seen_ = true;
  changed_.notify_all();
}

bool RouterApp::WaitReady() {
  std::unique_lock<std::mutex> lock(mutex_);
  changed_.wait(lock, [this] { return ready_seen_ || interrupted_; });
  return ready_seen_ && !interrupted_;
}

void RouterApp::Interrupt() {
  std::lock_guard<std::mutex> lock(mutex_);
  interrupted_ = true;
  changed_.notify_all();
}

// Until no request is left, or the grace is over.
void RouterApp::WaitIdle() {
  const auto deadline =
      std::chrono::steady_clock::now() + std::chrono::milliseconds(options_.drain_grace_ms);
  boost::asio::steady_timer timer(io_);
  std::promise<size_t> left;
  std::function<void()> check = [&] {
    if (dispatcher_.active() == 0 || std::chrono::steady_clock::now() >= deadline) {
      left.set_value(dispatcher_.active());
      return;
    }
    timer.expires_after(std::chrono::milliseconds(20));
    timer.async_wait([&](boost::system::error_code) { check(); });
  };
  boost::asio::post(io_, check);
  const size_t count = left.get_future().get();
  if (count > 0) Log().warn("requests cut off at the end of the grace {}", Kv("count", count));
}

void RouterApp::Drain() {
  drained_ = true;
  OnIo([this] {
    dispatcher_.set_on_ready_changed(nullptr);
    routes_.BeginDrain();
    http_.BeginDrain();
    grpc_.BeginDrain();
  });
  WaitIdle();
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
}

}  // namespace flotilla
