// /metrics over HTTP/1.1, for Prometheus: a small server for a port that only scrapers reach, and
// probes, which have no certificate where clients need one.
//
// Threads: one of its own, which sleeps in poll; a scrape is answered before the next is, so `page`
// is called by one thread at a time. Errors: Start fails if the port can't be bound. A client that
// does not send its request, or take its answer, within kMetricsClientTimeoutNs is dropped; one
// that says nothing holds nobody up, and of more than kMetricsClients the first goes for the next.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>

#include "common/base/clock.h"
#include "common/base/status.h"
#include "common/base/unique_fd.h"

namespace flotilla {

inline constexpr int64_t kMetricsClientTimeoutNs = 2 * kNsPerSecond;
inline constexpr size_t kMetricsClients = 64;  // that may be sending their requests at once

struct MetricsPage {
  std::string text;
  bool ok = true;  // false: 503
};

// /health/live and /health/ready; nothing for other targets. live: whether the process' loop makes
// progress, which this server's own thread says nothing of; asked for these two only.
std::optional<MetricsPage> HealthPage(const std::string& target, const std::function<bool()>& live,
                                      bool ready);

class MetricsHttpServer {
 public:
  struct Options {
    std::string host;
    uint16_t port = 0;  // 0: any free one
    // The page of a target such as "/metrics?names=vllm"; nothing: 404, with `hint` as its text.
    std::function<std::optional<MetricsPage>(const std::string& target)> page;
    std::string hint;
  };
  // adopted: a socket that listens there already, perhaps shared with another process. Error
  // AlreadyExists: the port is taken.
  static StatusOr<std::unique_ptr<MetricsHttpServer>> Start(Options options, UniqueFd adopted = {});
  ~MetricsHttpServer();
  MetricsHttpServer(const MetricsHttpServer&) = delete;
  uint16_t port() const { return port_; }
  // To be shared with another process; any thread.
  int listener() const { return listener_.get(); }

 private:
  MetricsHttpServer(UniqueFd listener, UniqueFd stop, Options options);
  struct Client {
    UniqueFd fd;
    int64_t deadline_ns = 0;
    std::string request = {};
  };
  void Run();
  bool Accept();
  bool Serve(Client* client) const;
  std::string Respond(const std::string& request) const;

  const UniqueFd listener_;
  const uint16_t port_;
  const Options options_;
  const UniqueFd stop_;         // an event
  std::deque<Client> clients_;  // the thread's
  std::thread thread_;
};

}  // namespace flotilla
