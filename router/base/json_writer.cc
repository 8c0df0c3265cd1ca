#include "router/base/json_writer.h"

#include <charconv>
#include <cmath>

namespace flotilla {

void AppendJsonString(std::string_view text, std::string* out) {
  static constexpr char kHex[] = "0123456789abcdef";
  out->push_back('"');
  size_t clean = 0;  // start of what needs no escape
  for (size_t i = 0; i < text.size(); ++i) {
    const auto c = static_cast<unsigned char>(text[i]);
    if (c >= 0x20 && c != '"' && c != '\\' && c != 0x7f) continue;
    out->append(text, clean, i - clean);
    clean = i + 1;
    out->push_back('\\');
    switch (c) {
      case '"':
      case '\\':
        out->push_back(static_cast<char>(c));
        break;
      case '\n':
        out->push_back('n');
        break;
      case '\r':
        out->push_back('r');
        break;
      case '\t':
        out->push_back('t');
        break;
      default:
        out->append("u00");
        out->push_back(kHex[c >> 4]);
        out->push_back(kHex[c & 15]);
    }
  }
  out->append(text, clean);
  out->push_back('"');
}

void AppendJsonFloat(float value, std::string* out) {
  if (!std::isfinite(value)) {
    out->append("-9999.0");
    return;
  }
  char buffer[32];
  const auto [end, error] = std::to_chars(buffer, buffer + sizeof(buffer), value);
  const std::string_view text(buffer, static_cast<size_t>(end - buffer));
  out->append(text);
  if (text.find_first_of(".e") == std::string_view::npos) out->append(".0");
}

}  // namespace flotilla
