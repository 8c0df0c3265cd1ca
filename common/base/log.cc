#include "common/base/log.h"

#include <spdlog/details/os.h>
#include <spdlog/pattern_formatter.h>
#include <spdlog/sinks/base_sink.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <memory>
#include <mutex>

#include "common/base/line_writer.h"

namespace flotilla {
namespace {

constexpr size_t kMaxValueBytes = 256;

bool NeedsQuotes(std::string_view value) {
  static constexpr std::string_view kSpecial = "\"\\=";
  return value.empty() || IsJsonNumber(value) || IsJsonBool(value) ||
         std::any_of(value.begin(), value.end(), [](unsigned char c) {
           return c <= ' ' || c >= 0x7f ||
                  kSpecial.find(static_cast<char>(c)) != std::string_view::npos;
         });
}

// %* of the patterns below.
class PayloadFlag final : public spdlog::custom_flag_formatter {
 public:
  explicit PayloadFlag(bool json) : json_(json) {}
  void format(const spdlog::details::log_msg& msg, const std::tm&,
              spdlog::memory_buf_t& dest) override {
    const std::string_view payload(msg.payload.data(), msg.payload.size());
    std::string out;
    if (json_)
      AppendJsonPayload(payload, &out);
    else
      AppendTextPayload(payload, &out);
    dest.append(out.data(), out.data() + out.size());
  }
  std::unique_ptr<custom_flag_formatter> clone() const override {
    return spdlog::details::make_unique<PayloadFlag>(json_);
  }

 private:
  const bool json_;
};

// %l of the patterns below: levels as --log-level names them.
class LevelFlag final : public spdlog::custom_flag_formatter {
 public:
  explicit LevelFlag(size_t width) : width_(width) {}
  void format(const spdlog::details::log_msg& msg, const std::tm&,
              spdlog::memory_buf_t& dest) override {
    const auto name = spdlog::level::to_string_view(msg.level);
    std::string out =
        msg.level == spdlog::level::warn ? "warn" : std::string(name.data(), name.size());
    if (out.size() < width_) out.resize(width_, ' ');
    dest.append(out.data(), out.data() + out.size());
  }
  std::unique_ptr<custom_flag_formatter> clone() const override {
    return spdlog::details::make_unique<LevelFlag>(width_);
  }

 private:
  const size_t width_;
};

const char* PatternOf(const LogOptions& options) {
  if (options.format == "json")
    return R"({"ts":"%Y-%m-%dT%H:%M:%S.%e%z","level":"%l","process":"%n",%*})";
  return options.tagged ? "[%n] %H:%M:%S.%e %^%l%$ %*" : "%H:%M:%S.%e %^%l%$ %n  %*";
}

std::unique_ptr<spdlog::formatter> MakeFormatter(const LogOptions& options) {
  auto formatter = std::make_unique<spdlog::pattern_formatter>();
  const bool json = options.format == "json";
  formatter->add_flag<PayloadFlag>('*', json).add_flag<LevelFlag>('l', json ? 0 : 5);
  formatter->set_pattern(PatternOf(options));
  return formatter;
}

// As InitLog was told.
LogOptions& Options() {
  static auto* options = new LogOptions{.process = "flotilla"};
  return *options;
}

LineWriter& Stderr() {
  static auto* writer = new LineWriter(STDERR_FILENO, [](uint64_t lines) {
    return FormatLogLine(Options(), spdlog::level::warn,
                         "nobody read this log, so lines of it are missing " + Kv("lines", lines));
  });
  return *writer;
}

// The level in colour if it is a terminal.
class StderrSink final : public spdlog::sinks::base_sink<std::mutex> {
 private:
  void sink_it_(const spdlog::details::log_msg& msg) override {
    // white, cyan, green, bold yellow, bold red, bold on red
    static constexpr std::array kColors = {"\033[37m",        "\033[36m",        "\033[32m",
                                           "\033[33m\033[1m", "\033[31m\033[1m", "\033[1m\033[41m"};
    msg.color_range_start = msg.color_range_end = 0;
    spdlog::memory_buf_t formatted;
    formatter_->format(msg, formatted);
    std::string line(formatted.data(), formatted.size());
    const auto level = static_cast<size_t>(msg.level);
    if (colors_ && msg.color_range_end > msg.color_range_start && level < kColors.size()) {
      line.insert(msg.color_range_end, "\033[m").insert(msg.color_range_start, kColors[level]);
    }
    Stderr().Write(line);
  }
  void flush_() override {}

  const bool colors_ =
      spdlog::details::os::in_terminal(stderr) && spdlog::details::os::is_color_terminal();
};

std::shared_ptr<spdlog::logger> MakeLogger(const LogOptions& options) {
  auto logger = std::make_shared<spdlog::logger>(options.process, std::make_shared<StderrSink>());
  logger->set_level(spdlog::level::from_str(options.level));
  logger->set_formatter(MakeFormatter(options));
  return logger;
}

std::shared_ptr<spdlog::logger>& Instance() {
  static auto* logger = new std::shared_ptr<spdlog::logger>(MakeLogger(Options()));
  return *logger;
}

// The longest beginning of whole characters that fits.
std::string_view Cut(std::string_view value) {
  size_t size = kMaxValueBytes;
  while (size > kMaxValueBytes - 4 && (static_cast<unsigned char>(value[size]) & 0xC0) == 0x80)
    --size;
  return value.substr(0, size);
}

}  // namespace

void InitLog(const LogOptions& options) {
  Options() = options;
  Instance() = MakeLogger(options);
}

spdlog::logger& Log() { return *Instance(); }

void WriteToStderr(std::string_view line) { Stderr().Write(line); }

std::string FormatLogLine(const LogOptions& options, spdlog::level::level_enum level,
                          std::string_view message) {
  const spdlog::details::log_msg msg(spdlog::string_view_t(options.process), level,
                                     spdlog::string_view_t(message.data(), message.size()));
  spdlog::memory_buf_t line;
  MakeFormatter(options)->format(msg, line);
  return std::string(line.data(), line.size());
}

std::string Kv(std::string_view key, std::string_view value) {
  std::string out(1, kFieldMark);
  out.append(key).push_back('=');
  const bool cut = value.size() > kMaxValueBytes;
  if (cut) value = Cut(value);
  if (cut || NeedsQuotes(value)) {
    out.push_back('"');
    AppendPrintable(value, Quoted::kYes, &out);
    out.append(cut ? "…\"" : "\"");
  } else {
    out.append(value);
  }
  return out;
}

std::string Kv(std::string_view key, double value) {
  return kFieldMark + std::string(key) + "=" + fmt::format("{:.6g}", value);
}

}  // namespace flotilla
