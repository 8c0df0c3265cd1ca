// Structured logs (spdlog) on stderr, one line an event: "time level process  message key=value …",
// or with --log-format json an object with ts, level, process, message and the keys as members.
//
//   Log().info("listening {}", Kv("url", url));        // ... listening url=http://…
//   Log().warn("request refused {} {}", Kv("request_id", id), Kv("reason", reason));
//
// What comes from a client goes into a Kv, never into the message: values are escaped and cut at
// 256 bytes (common/base/log_text.h). A line about one request has its request_id. Keys are
// lower_case and none of ts, level, process and message (nor, but in the router, replica).
// A reader who stalls loses lines, and holds nobody up (common/base/line_writer.h).
// Threads: any. InitLog is called once, first thing in main.
#pragma once

#include <spdlog/spdlog.h>

#include <string>
#include <string_view>

#include "common/base/log_text.h"

namespace flotilla {

struct LogOptions {
  std::string process;          // "router", "scheduler", "worker-0", …
  std::string level = "info";   // trace | debug | info | warn | error
  std::string format = "text";  // text | json
  bool tagged = false;          // text: "[process] " in front, as the launcher writes for others
};

void InitLog(const LogOptions& options);

// The process's logger. Usable before InitLog (plain text on stderr).
spdlog::logger& Log();
// Whether debug lines are written: for those of every request, whose Kv costs more than the line
// that nobody wants.
inline bool LogsDebug() { return Log().should_log(spdlog::level::debug); }

// Puts a line, '\n' included, among those of Log(), as it is.
void WriteToStderr(std::string_view line);

// A line as Log() would write it now, '\n' included.
std::string FormatLogLine(const LogOptions& options, spdlog::level::level_enum level,
                          std::string_view message);

// `key=value`, with the value in quotes and escaped where it needs to be.
std::string Kv(std::string_view key, std::string_view value);
std::string Kv(std::string_view key, double value);
template <typename T>
requires std::is_integral_v<T> std::string Kv(std::string_view key, T value) {
  std::string text;
  if constexpr (std::is_same_v<T, bool>)
    text = value ? "true" : "false";
  else
    text = std::to_string(value);
  return kFieldMark + std::string(key) + "=" + text;
}

}  // namespace flotilla
