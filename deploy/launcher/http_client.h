// A blocking HTTP/1.1 request for `ask` and others, with the body handed out as it comes
// (Boost.Beast).
//
// Threads: any, one request at a time. Errors: Unavailable (nobody listens), InvalidArgument (URL),
// Internal (the connection broke, or too large a body). An answer of any status is not an error.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "common/base/status.h"

namespace flotilla {

struct HttpUrl {
  std::string host;
  std::string port;
};
// "http://host[:port]"; only http.
StatusOr<HttpUrl> ParseHttpUrl(const std::string& url);

struct HttpRequest {
  std::string method = "GET";
  std::string target = "/";
  std::string body = {};           // JSON
  std::string authorization = {};  // "Bearer …"
};

// Calls `on_body` with each piece of the body; it returns false to stop early. Returns the status.
StatusOr<unsigned> SendHttp(const HttpUrl& url, const HttpRequest& request,
                            const std::function<bool(std::string_view)>& on_body);

struct HttpAnswer {
  unsigned status = 0;
  std::string body;
};
// api_key: empty if the server wants none.
StatusOr<HttpAnswer> GetHttp(const HttpUrl& url, const std::string& target,
                             const std::string& api_key);
// The header of a key; empty of none.
std::string BearerToken(const std::string& api_key);

}  // namespace flotilla
