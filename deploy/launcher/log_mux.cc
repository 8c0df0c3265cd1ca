#include "deploy/launcher/log_mux.h"

#include <array>
#include <cstdio>

namespace flotilla {
namespace {

// How every line of Log() in JSON begins.
constexpr std::string_view kOwnObject = "{\"ts\":\"";

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

void PrintFatal(const LogOptions& log, absl::string_view message) {
  const std::string text(message);
  if (log.format == "json")
    Log().error("{}", text);
  else
    WriteToStderr(StrCat(kErrorPrefix, text, "\n"));
}

int FailCommand(const Status& status) {
  std::fprintf(stderr, "%s%s\n", kErrorPrefix.data(), std::string(status.message()).c_str());
  return 1;
}

std::string LogMux::Format(std::string_view process, std::string_view line) const {
  if (json_) return FormatJson(process, line);
  std::string out;
  if (color_) out += "\x1b[" + std::to_string(ColorOf(process)) + "m";
  out.append("[").append(process).append("]");
  if (color_) out += "\x1b[0m";
  AppendPrintable(line, Quoted::kNo, &out.append(" "));
  return out + '\n';
}

std::string LogMux::FormatJson(std::string_view process, std::string_view line) const {
  const size_t slash = process.find('/');
  const std::string_view replica = slash == process.npos ? "" : process.substr(0, slash);
  std::string out(line);
  if (!line.starts_with(kOwnObject) || !line.ends_with('}')) {
    LogOptions options{.process = std::string(process.substr(replica.empty() ? 0 : slash + 1))};
    options.format = "json";
    std::string text(line);
    std::erase(text, kFieldMark);  // no field is taken from it
    out = FormatLogLine(options, spdlog::level::warn, text);
    out.pop_back();  // '\n'
  }
  if (!replica.empty()) out.insert(out.size() - 1, ",\"replica\":" + QuotedText(replica));
  return out + '\n';
}

void LogMux::Write(std::string_view process, std::string_view line) const {
  WriteToStderr(Format(process, line));
}

}  // namespace flotilla
