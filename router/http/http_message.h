// HTTP/1.1 answers as bytes.
//
// Threads: the io thread (the Date header is kept for a second).
#pragma once

#include <string>
#include <string_view>

#include "router/base/api_error.h"

namespace flotilla {

struct ResponseHead {
  int status = 200;
  std::string_view content_type = "application/json";
  bool close = false;           // Connection: close
  bool keep_alive_10 = false;   // HTTP/1.0 client that asked to keep the connection
  bool head_only = false;       // answer to HEAD: the body is left out
  int64_t retry_after_s = 0;    // 0: none
  std::string_view allow;       // with 405
  std::string_view request_id;  // X-Request-Id; empty: none
  ErrorForm error_form = ErrorForm::kOpenAi;
  std::string_view allow_origin;  // Access-Control-Allow-Origin; empty: none
  std::string_view more;          // further headers, each with its end of line
};

const char* ReasonPhrase(int status);
// Header and body with Content-Length.
std::string FormatResponse(const ResponseHead& head, std::string_view body);
// The same with an error object; status, Retry-After and Allow come from the error.
std::string FormatError(const ApiError& error, ResponseHead head);
// To a browser that asks whether a script may send a request. `headers`: those it wants to send.
std::string FormatPreflight(const ResponseHead& head, std::string_view headers);
// Header of a stream of server-sent events; `chunked` for HTTP/1.1.
std::string FormatStreamHead(const ResponseHead& head, bool chunked);
// One chunk of Transfer-Encoding: chunked.
void AppendChunk(std::string_view data, std::string* out);
inline constexpr std::string_view kLastChunk = "0\r\n\r\n";

}  // namespace flotilla
