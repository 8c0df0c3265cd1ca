// A small HTTP/1.1 client over a plain socket, for tests that need to see every byte.
//
// Reads wait as long as tests are patient and then fail the test. Threads: one at a time.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/unique_fd.h"

namespace flotilla {

struct HttpAnswer {
  int status = 0;
  std::map<std::string, std::string> headers;  // lower-case names
  std::string body;                            // without chunking
};

class HttpConnection {
 public:
  explicit HttpConnection(uint16_t port, int receive_buffer_bytes = 0);
  virtual ~HttpConnection() = default;

  // False if the other side has closed.
  bool Send(std::string_view bytes);
  // Reads one whole answer; status 0 if the connection ended before one came.
  HttpAnswer Read(bool to_head = false);
  // Reads until `marker` was seen and returns all up to its end; empty if the connection ended.
  std::string ReadUntil(std::string_view marker);
  // True if the other side closes (or resets) without another byte.
  bool ReadsEof();
  void Close() { fd_.reset(); }
  // Closes with a reset instead of a goodbye.
  void Reset();
  void ShutdownWrite();

 protected:
  int fd() const { return fd_.get(); }
  // As recv and send.
  virtual ssize_t ReadSome(char* out, size_t bytes);
  virtual ssize_t WriteSome(const char* data, size_t bytes);

 private:
  bool Fill();
  std::string ReadBody(const HttpAnswer& answer);
  std::string ReadChunks();
  std::string Take(size_t bytes);

  UniqueFd fd_;
  std::string buffer_;
};

std::string GetText(std::string_view path, std::string_view more_headers = "");
std::string PostText(std::string_view path, std::string_view body,
                     std::string_view more_headers = "");
HttpAnswer Get(uint16_t port, std::string_view path);
HttpAnswer Post(uint16_t port, std::string_view path, std::string_view body);
// The "data: " payloads of a stream of server-sent events.
std::vector<std::string> Events(std::string_view body);

}  // namespace flotilla
