// What the HTTP server and the code behind it say to each other.
//
// Threads: the io thread. Ownership: an exchange keeps its connection alive; once answered, or once
// the client is gone, its methods do nothing.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "router/api_error.h"

namespace flotilla {

struct HttpOptions {
  std::string host = "127.0.0.1";
  uint16_t port = 8000;                          // 0: any
  uint64_t max_header_bytes = 16 << 10;          // request line and fields
  uint64_t max_body_bytes = 8 << 20;             // of a request
  uint64_t max_buffered_body_bytes = 256 << 20;  // of all requests that are not answered yet
  uint32_t max_connections = 4096;               // more are answered with 503 and closed
  uint64_t max_stream_buffer_bytes = 1 << 20;    // unsent bytes of a stream before it is dropped
  int64_t header_timeout_ms = 10'000;            // from a request's first byte to its last header
  int64_t body_timeout_ms = 60'000;              // from the last header to the body's last byte
  int64_t idle_timeout_ms = 75'000;              // between requests on a kept connection
  int64_t write_timeout_ms = 30'000;             // without a byte taken by the client
  std::vector<std::string> cors_allow_origin;    // scripts of these may read answers; "*": of all
};

struct HttpHead {
  std::string method;
  std::string path;  // without the query
  std::string content_type;
  std::string authorization;  // as sent
  std::string x_api_key;
  bool has_length = false;  // Content-Length or chunked
};

struct HttpRequest {
  HttpHead head;
  std::string body;
  int64_t received_ns = 0;  // CLOCK_MONOTONIC, last byte
};

class HttpExchange {
 public:
  virtual ~HttpExchange() = default;
  // The client's X-Request-Id, or one made here.
  virtual const std::string& request_id() const = 0;
  virtual void Reply(int status, const std::string& content_type, std::string body) = 0;
  virtual void ReplyError(const ApiError& error) = 0;
  // Server-sent events: header, then pieces, then the end.
  virtual void StartStream() = 0;
  virtual void Write(std::string_view data) = 0;
  virtual void EndStream() = 0;
  // Called once if the client goes away, or reads too slowly, before the answer's end.
  virtual void set_on_disconnect(std::function<void()> callback) = 0;
};

class HttpService {
 public:
  virtual ~HttpService() = default;
  // Before the body is read. An error is the answer.
  virtual std::optional<ApiError> CheckHead(const HttpHead& head) = 0;
  virtual void Handle(HttpRequest request, std::shared_ptr<HttpExchange> exchange) = 0;
  // Of errors at this path.
  virtual ErrorForm error_form(const std::string&) const { return ErrorForm::kOpenAi; }
  // For metrics. `path` is empty if no request could be read.
  virtual void OnAnswered(const std::string& path, int status, double seconds) = 0;
  virtual void OnRefused(const char* reason) = 0;
  // The memory that bodies take has changed by so much.
  virtual void OnBodyBytes(int64_t delta) = 0;
  // Bytes of answers that wait for their clients have become more, or less.
  virtual void OnUnsent(int64_t delta_bytes) = 0;
};

}  // namespace flotilla
