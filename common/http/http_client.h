// A blocking HTTP/1.1 request, plain or TLS, with the body handed out as it comes; the server that
// it goes to. For `ask`, `top`, `chat` and `bench serve`, the router's watch of Kubernetes, and its
// traces.
//
// Threads: any, one request at a time. Errors: Unavailable (nobody listens), InvalidArgument (URL,
// TLS files), Internal (the connection broke, or too large a body), DeadlineExceeded, Cancelled
// (the caller's `stop`). An answer of any status is not an error.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "common/base/status.h"
#include "common/tls/tls_files.h"

namespace flotilla {

struct HttpUrl {
  std::string host;
  uint16_t port = 0;
  std::shared_ptr<ssl_ctx_st> tls = {};  // null: plain text
  // What says whose certificates are trusted; errors name it.
  std::string trust = kTlsToServer.ca_flag;
};
// "http://host[:port]" or "https://host[:port]"; `tls`: for the latter. What comes after is
// ignored.
StatusOr<HttpUrl> ParseHttpUrl(const std::string& url, const TlsPaths& tls = {});

struct HttpCall {
  std::string method = "GET";
  std::string target = "/";
  std::string body = {};           // JSON
  std::string authorization = {};  // "Bearer …"
};

// How long an answer may take.
struct HttpPatience {
  const std::atomic<bool>* stop = nullptr;  // set by a signal handler, say; looked at all the time
  int64_t timeout_ms = 0;                   // of the whole answer; 0: none
};

// Called with each piece of the body, and the answer's status; false: no more is wanted.
using OnHttpBody = std::function<bool(unsigned status, std::string_view piece)>;

// Returns the status.
StatusOr<unsigned> SendHttp(const HttpUrl& url, const HttpCall& request, const OnHttpBody& on_body,
                            const HttpPatience& patience = {});

struct HttpPage {
  unsigned status = 0;
  std::string body;
};
// Of a small page, for which nobody waits longer than some seconds. api_key: empty if the server
// wants none.
StatusOr<HttpPage> GetHttp(const HttpUrl& url, const std::string& target,
                           const std::string& api_key, const std::atomic<bool>* stop = nullptr);
// The header of a key; empty of none.
std::string BearerToken(const std::string& api_key);

}  // namespace flotilla
