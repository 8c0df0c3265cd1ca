// A blocking HTTP/1.1 request for `ask`, with the body handed out as it comes (Boost.Beast).
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
  std::string body;  // JSON
};

// Calls `on_body` with each piece of the body; it returns false to stop early. Returns the status.
StatusOr<unsigned> SendHttp(const HttpUrl& url, const HttpRequest& request,
                            const std::function<bool(std::string_view)>& on_body);

}  // namespace flotilla
