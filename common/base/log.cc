#include "common/base/log.h"

#include <spdlog/pattern_formatter.h>
#include <spdlog/sinks/stdout_color_sinks.h>

#include <cstdio>
#include <memory>

namespace flotilla {
namespace {

constexpr size_t kMaxValueBytes = 256;

bool NeedsQuotes(std::string_view value) {
  if (value.empty()) return true;
  for (unsigned char c : value) {
    if (c <= ' ' || c == '"' || c == '\\' || c == '=' || c >= 0x7f) return true;
  }
  return false;
}

void AppendEscaped(std::string_view value, std::string* out) {
  for (unsigned char c : value) {
    if (c == '"' || c == '\\') {
      out->push_back('\\');
      out->push_back(static_cast<char>(c));
    } else if (c < 0x20 || c == 0x7f) {
      char buffer[8];
      std::snprintf(buffer, sizeof(buffer), "\\u%04x", c);
      out->append(buffer);
    } else {
      out->push_back(static_cast<char>(c));
    }
  }
}

// %v of the JSON format: the message as the inside of a JSON string.
class JsonMessageFlag final : public spdlog::custom_flag_formatter {
 public:
  void format(const spdlog::details::log_msg& msg, const std::tm&,
              spdlog::memory_buf_t& dest) override {
    std::string escaped;
    AppendEscaped(std::string_view(msg.payload.data(), msg.payload.size()), &escaped);
    dest.append(escaped.data(), escaped.data() + escaped.size());
  }
  std::unique_ptr<custom_flag_formatter> clone() const override {
    return spdlog::details::make_unique<JsonMessageFlag>();
  }
};

std::shared_ptr<spdlog::logger>& Instance() {
  static auto* logger = new std::shared_ptr<spdlog::logger>(std::make_shared<spdlog::logger>(
      "flotilla", std::make_shared<spdlog::sinks::stderr_color_sink_mt>()));
  return *logger;
}

}  // namespace

void InitLog(const LogOptions& options) {
  auto sink = std::make_shared<spdlog::sinks::stderr_color_sink_mt>();
  auto logger = std::make_shared<spdlog::logger>(options.process, sink);
  logger->set_level(spdlog::level::from_str(options.level));
  logger->flush_on(spdlog::level::info);
  auto formatter = std::make_unique<spdlog::pattern_formatter>();
  if (options.format == "json") {
    formatter->add_flag<JsonMessageFlag>('*');
    formatter->set_pattern(
        R"({"time":"%Y-%m-%dT%H:%M:%S.%e%z","level":"%l","process":"%n","message":"%*"})");
  } else {
    formatter->set_pattern("%H:%M:%S.%e %^%-5l%$ %n  %v");
  }
  logger->set_formatter(std::move(formatter));
  Instance() = std::move(logger);
}

spdlog::logger& Log() { return *Instance(); }

std::string Kv(std::string_view key, std::string_view value) {
  std::string out(key);
  out.push_back('=');
  const bool cut = value.size() > kMaxValueBytes;
  if (cut) value = value.substr(0, kMaxValueBytes);
  if (NeedsQuotes(value)) {
    out.push_back('"');
    AppendEscaped(value, &out);
    out.append(cut ? "…\"" : "\"");
  } else {
    out.append(value);
    if (cut) out.append("…");
  }
  return out;
}

std::string Kv(std::string_view key, double value) {
  return std::string(key) + "=" + fmt::format("{:.6g}", value);
}

}  // namespace flotilla
