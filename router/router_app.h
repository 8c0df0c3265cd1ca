// The whole router but its command line: io thread, worker pool, dispatcher, HTTP and gRPC servers.
//
// Threads: one io thread that owns all requests, a thread for conversations and one of low priority
// for large texts, gRPC's own. Start, WaitReady and Drain are called by one thread that is none of
// these. Errors: Start says which flag's address can't be had.
#pragma once

#include <atomic>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/thread_pool.hpp>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>

#include "common/base/file_watch.h"
#include "common/tls/tls_files.h"
#include "router/dispatch/dispatcher.h"
#include "router/grpc/grpc_service.h"
#include "router/handlers/http_routes.h"
#include "router/handoff.h"
#include "router/http/http_server.h"
#include "router/http/listener.h"
#include "router/observe/trace_exporter.h"

namespace flotilla {

struct RouterOptions {
  HttpOptions http;
  GrpcOptions grpc;
  DispatcherOptions dispatcher;
  TraceOptions traces;
  AnswerLimits answers;
  ParserChoice parsers;
  std::string api_keys_file;  // empty: everybody may call
  TlsPaths tls;               // of both ports for clients; none: plain text
  TlsPaths replica_tls;       // none: plain text
  std::string replica_tls_server_name;
  int64_t sse_keepalive_ms = 15'000;  // without a byte of a stream; 0: no comments
  uint32_t drain_grace_ms = 30'000;
  uint32_t drain_linger_ms = 5'000;  // of that
  bool ui = true;                    // the operator's page
};

class RouterApp {
 public:
  explicit RouterApp(RouterOptions options);
  ~RouterApp();

  // Instead of Start: whether that would refuse the options or a file that they name.
  Status Check();
  // Listens on what it is given, else where the options say. Of its own sockets it accepts at once,
  // of those that are a predecessor's still with Accept.
  Status Start(ListeningSockets adopted = {});
  void Accept();
  uint16_t http_port() const { return http_listener_.port(); }
  uint16_t grpc_port() const { return grpc_listener_.port(); }
  int http_socket() { return http_listener_.socket(); }
  int grpc_socket() { return grpc_listener_.socket(); }
  // Any thread but the io thread: whether that one comes to something new within so long.
  bool Responds(int64_t timeout_ms);
  // Any thread; as /health/ready.
  bool serving() const { return !draining_ && dispatcher_.ready(); }
  const std::shared_ptr<prometheus::Registry>& metrics_registry() const { return registry_; }

  // Any thread: waits until serving() is not `last`, and says so; false once Interrupt was called.
  bool WaitServingChange(bool last);

  // Whether a replica has been ready; waits for that, for so long or until Interrupt is called.
  bool WaitReady(int64_t timeout_ms);
  bool interrupted();
  void Interrupt();
  // A successor has the listening sockets: stops accepting, and serves those who are connected
  // until they have gone, which Deserted tells.
  void Leave();
  bool Deserted();
  // Not ready at once. For drain_linger_ms requests are served on, since a balancer takes a while
  // to send them elsewhere, and connections are left with their next answer; nobody connected ends
  // that early. Then running requests get what is left of drain_grace_ms; those that need longer
  // fail, and everything ends.
  void Drain();

 private:
  void OnReadyChanged();
  // On the io thread, now and then, until `count` is 0 or the time has come; the last count.
  size_t WaitForZero(const std::function<size_t()>& count,
                     std::chrono::steady_clock::time_point deadline);
  Status LoadFiles();
  template <typename Function>
  auto OnIo(Function function);

  const RouterOptions options_;
  const std::shared_ptr<prometheus::Registry> registry_;
  RouterMetrics metrics_;
  AnswerMemory answers_;
  CallTracker calls_;
  boost::asio::io_context io_{1};
  boost::asio::executor_work_guard<boost::asio::io_context::executor_type> work_;
  boost::asio::thread_pool pool_{1};
  boost::asio::thread_pool large_pool_{1};
  const std::unique_ptr<TlsFiles> tls_;          // null: plain text
  const std::unique_ptr<TlsFiles> replica_tls_;  // the same
  TraceExporter traces_;
  Dispatcher dispatcher_;
  const std::unique_ptr<Access> access_;  // null: everybody may call
  const HandlerContext context_;
  HttpRoutes routes_;
  HttpServer http_;
  GrpcServer grpc_;
  Listener http_listener_, grpc_listener_;
  std::thread io_thread_;
  std::atomic<bool> draining_{false};
  int64_t left_ns_ = 0;  // CLOCK_MONOTONIC

  std::mutex mutex_;
  std::condition_variable changed_;
  bool ready_seen_ = false;
  bool interrupted_ = false;
  std::optional<FileWatch> watch_;
};

}  // namespace flotilla
