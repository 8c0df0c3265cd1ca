#include "tests/router/http_client.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstdlib>

#include "common/base/status.h"
#include "tests/support/patience.h"

namespace flotilla {

HttpConnection::HttpConnection(uint16_t port, int receive_buffer_bytes)
    : fd_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
  const timeval limit{.tv_sec = kPatience.count(), .tv_usec = 0};
  setsockopt(fd_.get(), SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
  setsockopt(fd_.get(), SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit));
  if (receive_buffer_bytes > 0)
    setsockopt(fd_.get(), SOL_SOCKET, SO_RCVBUF, &receive_buffer_bytes,
               sizeof(receive_buffer_bytes));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  EXPECT_EQ(connect(fd_.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
}

ssize_t HttpConnection::ReadSome(char* out, size_t bytes) { return recv(fd_.get(), out, bytes, 0); }

ssize_t HttpConnection::WriteSome(const char* data, size_t bytes) {
  return send(fd_.get(), data, bytes, MSG_NOSIGNAL);
}

bool HttpConnection::Send(std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t n = WriteSome(bytes.data(), bytes.size());
    if (n <= 0) return false;
    bytes.remove_prefix(static_cast<size_t>(n));
  }
  return true;
}

bool HttpConnection::Fill() {
  char bytes[16384];
  const ssize_t n = ReadSome(bytes, sizeof(bytes));
  if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
    ADD_FAILURE() << "nothing came for " << kPatience.count() << " s";
  if (n <= 0) return false;
  buffer_.append(bytes, static_cast<size_t>(n));
  return true;
}

std::string HttpConnection::Take(size_t bytes) {
  while (buffer_.size() < bytes && Fill()) {
  }
  const std::string out = buffer_.substr(0, bytes);
  buffer_.erase(0, out.size());
  return out;
}

std::string HttpConnection::ReadUntil(std::string_view marker) {
  size_t at = std::string::npos;
  while ((at = buffer_.find(marker)) == std::string::npos) {
    if (!Fill()) return "";
  }
  return Take(at + marker.size());
}

bool HttpConnection::ReadsEof() { return buffer_.empty() && !Fill(); }

void HttpConnection::Reset() {
  const linger off{.l_onoff = 1, .l_linger = 0};
  setsockopt(fd_.get(), SOL_SOCKET, SO_LINGER, &off, sizeof(off));
  fd_.reset();
}

void HttpConnection::ShutdownWrite() { shutdown(fd_.get(), SHUT_WR); }

HttpAnswer HttpConnection::Read(bool to_head) {
  HttpAnswer answer;
  const std::string head = ReadUntil("\r\n\r\n");
  if (head.empty()) return answer;
  answer.status = std::atoi(head.substr(9, 3).c_str());
  size_t line = head.find("\r\n") + 2;
  while (line < head.size() - 2) {
    const size_t end = head.find("\r\n", line);
    const size_t colon = head.find(": ", line);
    std::string name = head.substr(line, colon - line);
    std::transform(name.begin(), name.end(), name.begin(),
                   [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
    answer.headers[name] = head.substr(colon + 2, end - colon - 2);
    line = end + 2;
  }
  if (!to_head && answer.status != 100) answer.body = ReadBody(answer);
  return answer;
}

std::string HttpConnection::ReadBody(const HttpAnswer& answer) {
  if (answer.headers.contains("transfer-encoding")) return ReadChunks();
  const auto length = answer.headers.find("content-length");
  if (length != answer.headers.end()) return Take(std::stoull(length->second));
  while (Fill()) {
  }
  return Take(buffer_.size());
}

std::string HttpConnection::ReadChunks() {
  std::string body;
  while (true) {
    const std::string size_line = ReadUntil("\r\n");
    if (size_line.empty()) {
      ADD_FAILURE() << "the chunked body was cut off";
      return body;
    }
    const size_t size = std::stoull(size_line, nullptr, 16);
    body += Take(size);
    EXPECT_EQ(Take(2), "\r\n");
    if (size == 0) return body;
  }
}

std::string GetText(std::string_view path, std::string_view more_headers) {
  return StrCat("GET ", path, " HTTP/1.1\r\nHost: test\r\n", more_headers, "\r\n");
}

std::string PostText(std::string_view path, std::string_view body, std::string_view more_headers) {
  return StrCat("POST ", path, " HTTP/1.1\r\nHost: test\r\nContent-Type: application/json\r\n",
                more_headers, "Content-Length: ", body.size(), "\r\n\r\n", body);
}

HttpAnswer Get(uint16_t port, std::string_view path) {
  HttpConnection connection(port);
  connection.Send(GetText(path, "Connection: close\r\n"));
  return connection.Read();
}

HttpAnswer Post(uint16_t port, std::string_view path, std::string_view body) {
  HttpConnection connection(port);
  connection.Send(PostText(path, body, "Connection: close\r\n"));
  return connection.Read();
}

std::vector<std::string> Events(std::string_view body) {
  std::vector<std::string> events;
  while (!body.empty()) {
    if (body.starts_with("event: ")) body.remove_prefix(body.find('\n') + 1);
    const size_t end = body.find("\n\n");
    EXPECT_TRUE(body.starts_with("data: ")) << body;
    if (end == std::string_view::npos) break;
    events.emplace_back(body.substr(6, end - 6));
    body.remove_prefix(end + 2);
  }
  return events;
}

}  // namespace flotilla
