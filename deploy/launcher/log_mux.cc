#include "deploy/launcher/log_mux.h"

#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdio>

namespace flotilla {
namespace {

std::string JsonString(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (byte < 0x20) {
      std::array<char, 8> buffer;
      std::snprintf(buffer.data(), buffer.size(), "\\u%04x", byte);
      out += buffer.data();
    } else {
      out += c;
    }
  }
  return out + '"';
}

// A stable colour for each name: cyan, green, yellow, blue, magenta.
int ColorOf(std::string_view process) {
  static constexpr std::array<int, 5> kColors = {36, 32, 33, 34, 35};
  size_t sum = 0;
  for (const char c : process) sum = sum * 31 + static_cast<unsigned char>(c);
  return kColors[sum % kColors.size()];
}

}  // namespace

std::string MessageOfLogLine(const std::string& line) {
  static constexpr std::string_view kTime = "00:00:00.000 ";
  if (line.size() < kTime.size()) return line;
  for (size_t i = 0; i < kTime.size(); ++i) {
    if (kTime[i] == '0' ? (line[i] < '0' || line[i] > '9') : line[i] != kTime[i]) return line;
  }
  const size_t message = line.find("  ");  // two spaces follow the process's name
  return message == std::string::npos ? line : line.substr(line.find_first_not_of(' ', message));
}

std::string LogMux::Format(std::string_view process, std::string_view line) const {
  std::string out;
  if (json_) {
    if (line.starts_with('{')) return out.append(line) + '\n';
    return "{\"process\":" + JsonString(process) + ",\"message\":" + JsonString(line) + "}\n";
  }
  if (color_) out += "\x1b[" + std::to_string(ColorOf(process)) + "m";
  out.append("[").append(process).append("]");
  if (color_) out += "\x1b[0m";
  return out.append(" ").append(line) + '\n';
}

void LogMux::Write(std::string_view process, std::string_view line) const {
  const std::string text = Format(process, line);
  std::string_view rest = text;
  while (!rest.empty()) {
    const ssize_t n = write(STDERR_FILENO, rest.data(), rest.size());
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return;  // nobody reads our log: serving goes on
    rest.remove_prefix(static_cast<size_t>(n));
  }
}

}  // namespace flotilla
