// A Kubernetes API server: where it is, and one GET, whose answer may go on for as long as a watch
// lasts.
//
// Threads: one request at a time; Interrupt: any. Errors: of Get, Unavailable, PermissionDenied,
// DeadlineExceeded; Aborted: list again; Cancelled: interrupted. Each says what to look at.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <string>
#include <string_view>

#include "common/base/status.h"
#include "common/base/tcp_address.h"

namespace flotilla {

struct KubeApi {
  TcpAddress address;
  bool tls = true;
  // The folder of a service account: token, ca.crt and namespace. A token is sent by TLS only, and
  // read anew for each request, since it is replaced about every hour.
  std::string credentials = "/var/run/secrets/kubernetes.io/serviceaccount";
};

// `url`: "https://host:port", or "http://127.0.0.1:8001" of `kubectl proxy`; empty: what the
// environment of a pod names.
StatusOr<KubeApi> FindKubeApi(const std::string& url, const std::string& credentials);
// That of the service account.
StatusOr<std::string> KubeNamespace(const KubeApi& api);

class KubeClient {
 public:
  explicit KubeClient(KubeApi api) : api_(std::move(api)) {}

  // Each piece of a body whose status is 200; an error ends the request, and is Get's.
  using OnBody = std::function<Status(std::string_view)>;
  // Until the answer ends, or `limit` has passed. OK: it ended as it should.
  Status Get(const std::string& target, std::chrono::milliseconds limit, const OnBody& on_body);
  // Get ends, now and whenever it is called again.
  void Interrupt() { interrupted_.store(true); }

 private:
  const KubeApi api_;
  std::atomic<bool> interrupted_{false};
};

}  // namespace flotilla
