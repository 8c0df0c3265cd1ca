// Puts the output of all processes on our stderr, line by line, each with its process in front:
// "[router] …" (coloured on a terminal). With --log-format json, lines of our own logs get the
// replica as a member; others (a library's outcry) become objects of level "warning", so that every
// line is an object. What they hold is made safe to print either way.
//
// A line longer than kMaxLineBytes is cut. Threads: one.
#pragma once

#include <string>
#include <string_view>
#include <utility>

#include "absl/strings/string_view.h"
#include "common/base/log.h"
#include "common/base/status.h"

namespace flotilla {

// One process's share: what it wrote since the last newline, and its last whole line.
class LineBuffer {
 public:
  static constexpr size_t kMaxLineBytes = 16 * 1024;
  static constexpr std::string_view kHelpHint = "Run with --help for more information.";

  // Calls `line(text)` for each line completed by `bytes`; empty ones are dropped.
  template <typename Line>
  void Append(std::string_view bytes, Line line) {
    for (char c : bytes) {
      if (c == '\n') {
        Flush(line);
      } else if (partial_.size() < kMaxLineBytes) {
        partial_.push_back(c);
      }
    }
  }
  // What came without a newline at the end is a line too.
  template <typename Line>
  void Flush(Line line) {
    if (partial_.empty()) return;
    const std::string text = std::exchange(partial_, {});
    if (!text.ends_with(kHelpHint)) last_ = text;
    line(text);
  }
  // The last line that says something: of a refused command line the one before CLI11's hint.
  const std::string& last() const { return last_; }

 private:
  std::string partial_;
  std::string last_;
};

// "13:05:17.530 error worker-0  what is wrong" → "what is wrong"; other lines stay as they are.
std::string MessageOfLogLine(const std::string& line);

// How a line of a command's own begins that says why it failed.
inline constexpr std::string_view kErrorPrefix = "flotilla: error: ";

// Why the launcher ends: such a line on stderr, or an object in JSON. After InitLog, if at
// all.
void PrintFatal(const LogOptions& log, absl::string_view message);
// Of a command that serves nothing: the same on stderr, and the exit status 1.
int FailCommand(const Status& status);

class LogMux {
 public:
  LogMux(bool json, bool color) : json_(json), color_(color) {}
  // `process`: "router", "worker-0", or with several replicas "r0/worker-0".
  std::string Format(std::string_view process, std::string_view line) const;
  void Write(std::string_view process, std::string_view line) const;

 private:
  std::string FormatJson(std::string_view process, std::string_view line) const;

  const bool json_;
  const bool color_;
};

}  // namespace flotilla
