#include "common/base/flag_checks.h"

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <string>
#include <string_view>

#include "absl/strings/str_cat.h"

namespace flotilla {
namespace {

// scheme://host[:port], in small letters and without the scheme's own port (RFC 6454, 6.2), or the
// "null" of pages that have no origin.
bool IsOrigin(std::string_view text) {
  if (text == "null") return true;
  const size_t colon = text.find("://");
  if (colon == 0 || colon == std::string_view::npos) return false;
  const std::string_view scheme = text.substr(0, colon), host = text.substr(colon + 3);
  const auto all_of = [](std::string_view part, std::string_view more) {
    return !part.empty() && std::all_of(part.begin(), part.end(), [&](char c) {
      return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') ||
             more.find(c) != std::string_view::npos;
    });
  };
  const size_t bracket = host.starts_with('[') ? host.find(']') : 0;
  if (bracket == std::string_view::npos) return false;
  const size_t port = host.find(':', bracket);
  const std::string_view name = host.substr(0, port);
  if (!all_of(scheme, "+-.") || !all_of(name, "-._[:]")) return false;
  if (port == std::string_view::npos) return true;
  const std::string_view digits = host.substr(port + 1);
  uint16_t number = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), number);
  if (error != std::errc() || end != digits.data() + digits.size() || digits[0] == '0')
    return false;
  return number != (scheme == "http" ? 80 : scheme == "https" ? 443 : 0);
}

}  // namespace

CLI::Validator OriginFlag() {
  return CLI::Validator(
      [](const std::string& text) -> std::string {
        if (text == "*" || IsOrigin(text)) return {};
        return absl::StrCat(
            "'", text,
            "' is not what a browser sends as Origin: scheme://host[:port] in small "
            "letters, without a path or the scheme's own port, such as "
            "https://chat.example.com; '*' is any");
      },
      "");
}

CLI::Validator PortFlag() { return CLI::Range(0u, 65535u); }

}  // namespace flotilla
