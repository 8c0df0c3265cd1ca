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
#include <string_view>
#include <utility>
#include <vector>

#include "router/admission/body_memory.h"
#include "router/base/api_error.h"

namespace flotilla {

struct HttpOptions {
  std::string host = "127.0.0.1";
  uint16_t port = 8000;                          // 0: any
  uint64_t max_header_bytes = 16 << 10;          // request line and fields
  uint64_t max_body_bytes = 8 << 20;             // of a request
  uint64_t max_buffered_body_bytes = 256 << 20;  // of all requests that are not answered yet
  // Of bodies beyond the first kFreeBodyBytes of each, together: whoever is beyond waits.
  uint64_t max_body_bytes_per_s = 16 << 20;
  // One more takes the place of the one that has waited longest for its client, if it has so long;
  // else it is answered with 503 and closed.
  uint32_t max_connections = 4096;
  int64_t least_wait_ms = 1000;
  uint64_t max_stream_buffer_bytes = 1 << 20;  // unsent bytes of a stream before it is dropped
  int64_t header_timeout_ms = 10'000;          // from a request's first byte to its last header
  int64_t body_timeout_ms = 60'000;            // from the last header to the body's last byte
  int64_t idle_timeout_ms = 75'000;            // between requests on a kept connection
  int64_t write_timeout_ms = 30'000;           // without a byte taken by the client
  // From a whole answer on a client has write_timeout_ms and what its bytes need at this rate.
  uint64_t least_read_bytes_per_s = 4 << 10;
  std::vector<std::string> cors_allow_origin;  // scripts of these may read answers; "*": of all
};

struct HttpHead {
  std::string method;
  std::string path;  // without the query
  std::string content_type;
  std::string content_encoding;  // the last one that is not identity
  std::string authorization;     // as sent
  std::string x_api_key;
  std::string if_none_match;
  std::string traceparent;  // as sent
  std::optional<std::string> idempotency_key;
  std::optional<std::string> request_timeout;  // as sent
  bool has_length = false;                     // Content-Length or chunked
};

struct HttpRequest {
  HttpHead head;
  std::string body;
  BodyLease body_lease;     // kept by who works on the body, even if the client leaves
  int64_t received_ns = 0;  // CLOCK_MONOTONIC, last byte
};

class HttpExchange {
 public:
  virtual ~HttpExchange() = default;
  // The client's X-Request-Id, or one made here.
  virtual const std::string& request_id() const = 0;
  void Reply(int status, std::string_view content_type, std::string_view body) {
    ReplyWith("", status, content_type, body);
  }
  // `headers`: more of them, each with its end of line.
  virtual void ReplyWith(std::string_view headers, int status, std::string_view content_type,
                         std::string_view body) = 0;
  virtual void ReplyError(const ApiError& error) = 0;
  // Server-sent events: header, then pieces, then the end, with the status that is counted: the
  // client has been told 200, whatever became of it.
  virtual void StartStream() = 0;
  virtual void Write(std::string_view data) = 0;
  virtual void EndStream(int status) = 0;
  // Memory that is accounted for until the answer has been sent, or its client is gone.
  virtual void Keep(std::shared_ptr<const void> room) = 0;
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
