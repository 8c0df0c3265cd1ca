#include "router/http/http_message.h"

#include <cstdio>
#include <ctime>

#include "common/base/status.h"

namespace flotilla {
namespace {

const std::string& DateNow() {
  static std::string text;
  static std::time_t at = 0;
  const std::time_t now = std::time(nullptr);
  if (now != at) {
    at = now;
    std::tm parts;
    gmtime_r(&now, &parts);
    char buffer[64];
    std::strftime(buffer, sizeof(buffer), "%a, %d %b %Y %H:%M:%S GMT", &parts);
    text = buffer;
  }
  return text;
}

bool HasBody(int status) { return status != 204 && status != 304; }

std::string Head(const ResponseHead& head) {
  std::string out = StrCat("HTTP/1.1 ", head.status, " ", ReasonPhrase(head.status),
                           "\r\nServer: flotilla\r\nDate: ", DateNow(), "\r\n");
  if (HasBody(head.status)) StrAppend(&out, "Content-Type: ", head.content_type, "\r\n");
  if (!head.request_id.empty()) StrAppend(&out, "X-Request-Id: ", head.request_id, "\r\n");
  if (!head.allow_origin.empty()) {
    StrAppend(&out, "Access-Control-Allow-Origin: ", head.allow_origin,
              "\r\nAccess-Control-Expose-Headers: X-Request-Id, Retry-After\r\nVary: Origin\r\n");
  }
  if (head.close) out.append("Connection: close\r\n");
  if (head.keep_alive_10 && !head.close) out.append("Connection: keep-alive\r\n");
  if (head.retry_after_s > 0) StrAppend(&out, "Retry-After: ", head.retry_after_s, "\r\n");
  if (head.status == 401) out.append("WWW-Authenticate: Bearer\r\n");
  if (!head.allow.empty()) StrAppend(&out, "Allow: ", head.allow, "\r\n");
  return out.append(head.more);
}

}  // namespace

const char* ReasonPhrase(int status) {
  switch (status) {
    case 200:
      return "OK";
    case 204:
      return "No Content";
    case 304:
      return "Not Modified";
    case 308:
      return "Permanent Redirect";
    case 400:
      return "Bad Request";
    case 401:
      return "Unauthorized";
    case 403:
      return "Forbidden";
    case 404:
      return "Not Found";
    case 405:
      return "Method Not Allowed";
    case 408:
      return "Request Timeout";
    case 409:
      return "Conflict";
    case 411:
      return "Length Required";
    case 413:
      return "Content Too Large";
    case 415:
      return "Unsupported Media Type";
    case 417:
      return "Expectation Failed";
    case 429:
      return "Too Many Requests";
    case 431:
      return "Request Header Fields Too Large";
    case 499:
      return "Client Closed Request";
    case 500:
      return "Internal Server Error";
    case 503:
      return "Service Unavailable";
    case 504:
      return "Gateway Timeout";
    case 505:
      return "HTTP Version Not Supported";
    default:
      return "Unknown";
  }
}

std::string FormatResponse(const ResponseHead& head, std::string_view body) {
  std::string out = Head(head);
  if (!HasBody(head.status)) return out.append("\r\n");
  StrAppend(&out, "Content-Length: ", body.size(), "\r\n\r\n",
            head.head_only ? std::string_view() : body);
  return out;
}

std::string FormatError(const ApiError& error, ResponseHead head) {
  head.status = HttpStatus(error);
  head.content_type = "application/json";
  head.allow = error.allow;
  int64_t retry_after_ms = error.retry_after_ms;
  if (retry_after_ms <= 0 && (head.status == 429 || head.status == 503)) retry_after_ms = 1000;
  if (retry_after_ms > 0) head.retry_after_s = (retry_after_ms + 999) / 1000;
  return FormatResponse(head, ErrorJson(error, head.error_form));
}

std::string FormatPreflight(const ResponseHead& head, std::string_view headers) {
  ResponseHead answer = head;
  answer.status = 204;
  std::string out = Head(answer);
  out.append("Access-Control-Allow-Methods: GET, POST, OPTIONS\r\nAccess-Control-Max-Age: 600\r\n");
  if (!headers.empty()) StrAppend(&out, "Access-Control-Allow-Headers: ", headers, "\r\n");
  return out.append("\r\n");
}

std::string FormatStreamHead(const ResponseHead& head, bool chunked) {
  ResponseHead stream = head;
  stream.content_type = "text/event-stream; charset=utf-8";
  std::string out = Head(stream);
  out.append("Cache-Control: no-cache\r\nX-Accel-Buffering: no\r\n");
  if (chunked) out.append("Transfer-Encoding: chunked\r\n");
  out.append("\r\n");
  return out;
}

void AppendChunk(std::string_view data, std::string* out) {
  if (data.empty()) return;  // an empty chunk would end the stream
  char size[20];
  std::snprintf(size, sizeof(size), "%zx\r\n", data.size());
  StrAppend(out, size, data, "\r\n");
}

}  // namespace flotilla
