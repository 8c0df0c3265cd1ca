// Structured logs (spdlog) on stderr: one line an event, "time level process message key=value …",
// or one JSON object a line with --log-format json.
//
//   Log().info("listening {}", Kv("url", url));        // ... listening url=http://…
//   Log().warn("request refused {} {}", Kv("request", id), Kv("reason", reason));
//
// Values are escaped and cut at 256 bytes: bytes of clients never break a line.
// Threads: any. InitLog is called once, first thing in main.
#pragma once

#include <spdlog/spdlog.h>

#include <string>
#include <string_view>

namespace flotilla {

struct LogOptions {
  std::string process;          // "router", "scheduler", "worker-0", …
  std::string level = "info";   // trace | debug | info | warn | error
  std::string format = "text";  // text | json
};

void InitLog(const LogOptions& options);

// The process's logger. Usable before InitLog (plain text on stderr).
spdlog::logger& Log();

// `key=value` with the value escaped where it needs to be (quotes, control characters, spaces).
std::string Kv(std::string_view key, std::string_view value);
std::string Kv(std::string_view key, double value);
template <typename T>
requires std::is_integral_v<T> std::string Kv(std::string_view key, T value) {
  return std::string(key) + "=" + std::to_string(value);
}

}  // namespace flotilla
