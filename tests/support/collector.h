// An OpenTelemetry collector for tests: takes OTLP's JSON by HTTP and keeps the spans.
//
// Threads: one of its own; the methods any. Every connection carries one request.
#pragma once

#include <sys/socket.h>

#include <boost/json.hpp>
#include <condition_variable>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "common/base/listen.h"
#include "tests/support/patience.h"

namespace flotilla::testing {

class Collector {
 public:
  enum Kind { kAnswers, kSilent };
  explicit Collector(Kind kind = kAnswers)
      : kind_(kind),
        listener_(ListenTcp("127.0.0.1", 0, &port_).value()),
        thread_([this] { Run(); }) {}
  ~Collector() {
    shutdown(listener_.get(), SHUT_RDWR);
    thread_.join();
  }

  std::string url() const { return StrCat("http://127.0.0.1:", port_, "/v1/traces"); }
  // As soon as there are so many of that name; what there is if they don't come.
  boost::json::array WaitForSpans(const std::string& name, size_t count) {
    std::unique_lock lock(mutex_);
    const auto named = [&] {
      boost::json::array found;
      for (const boost::json::value& span : spans_)
        if (span.at("name").as_string() == name) found.push_back(span);
      return found;
    };
    came_.wait_for(lock, kPatience, [&] { return named().size() >= count; });
    return named();
  }

 private:
  void Run() {
    std::vector<UniqueFd> silent;
    for (;;) {
      UniqueFd client(accept(listener_.get(), nullptr, nullptr));
      if (!client.valid()) return;
      if (kind_ == kSilent) {
        silent.push_back(std::move(client));
        continue;
      }
      Take(Body(client.get()));
      constexpr std::string_view kAnswer = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}";
      send(client.get(), kAnswer.data(), kAnswer.size(), MSG_NOSIGNAL);
    }
  }

  static std::string Body(int fd) {
    std::string head;
    char byte = 0;
    while (!head.ends_with("\r\n\r\n") && recv(fd, &byte, 1, 0) == 1) head.push_back(byte);
    const size_t at = head.find("Content-Length: ");
    if (at == std::string::npos) return "";
    std::string body(std::stoul(head.substr(at + 16)), ' ');
    recv(fd, body.data(), body.size(), MSG_WAITALL);
    return body;
  }

  void Take(const std::string& body) {
    const boost::json::value export_request = boost::json::parse(body);
    const std::lock_guard lock(mutex_);
    for (const auto& resource : export_request.at("resourceSpans").as_array())
      for (const auto& scope : resource.at("scopeSpans").as_array())
        for (const auto& span : scope.at("spans").as_array()) spans_.push_back(span);
    came_.notify_all();
  }

  const Kind kind_;
  uint16_t port_ = 0;
  UniqueFd listener_;
  std::mutex mutex_;
  std::condition_variable came_;
  std::vector<boost::json::value> spans_;
  std::thread thread_;
};

// -1: it has none of that name.
inline int64_t IntAttribute(const boost::json::value& span, const std::string& key) {
  for (const auto& attribute : span.at("attributes").as_array())
    if (attribute.at("key").as_string() == key)
      return std::stoll(std::string(attribute.at("value").at("intValue").as_string()));
  return -1;
}

}  // namespace flotilla::testing
