// A blocking HTTP/1.1 request for `ask` and others, with the body handed out as it comes; the
// server that it goes to.
//
// Threads: any, one request at a time. Errors: Unavailable (nobody listens), InvalidArgument (URL,
// TLS files), Internal (the connection broke, or too large a body), DeadlineExceeded, Cancelled
// (the caller's `stop`). An answer of any status is not an error.
#pragma once

#include <CLI/CLI.hpp>
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "common/base/status.h"
#include "common/tls/tls_files.h"

namespace flotilla {

// Which server a person's command calls, and as whom.
struct ServerFlags {
  std::string url = "http://127.0.0.1:8000";
  std::string api_key;  // empty: none
  TlsPaths tls;
};
void AddServerFlags(CLI::App* app, const std::string& url_help, ServerFlags* flags);

struct HttpUrl {
  std::string host;
  uint16_t port = 0;
  std::shared_ptr<ssl_ctx_st> tls;  // null: plain text
};
// "http://host[:port]" or "https://host[:port]"; `tls`: for the latter. What comes after is
// ignored.
StatusOr<HttpUrl> ParseHttpUrl(const std::string& url, const TlsPaths& tls = {});

struct HttpRequest {
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

// Calls `on_body` with each piece of the body; it returns false to stop early. Returns the status.
StatusOr<unsigned> SendHttp(const HttpUrl& url, const HttpRequest& request,
                            const std::function<bool(std::string_view)>& on_body,
                            const HttpPatience& patience = {});

struct HttpAnswer {
  unsigned status = 0;
  std::string body;
};
// Of a small page, for which nobody waits longer than some seconds. api_key: empty if the server
// wants none.
StatusOr<HttpAnswer> GetHttp(const HttpUrl& url, const std::string& target,
                             const std::string& api_key, const std::atomic<bool>* stop = nullptr);
// The header of a key; empty of none.
std::string BearerToken(const std::string& api_key);

}  // namespace flotilla
