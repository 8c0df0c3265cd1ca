// The values of string literals: Python's "unicode-escape" codec, as jinja2 applies it.
#include <algorithm>
#include <cstdint>
#include <optional>

#include "absl/strings/str_format.h"
#include "common/base/utf8.h"
#include "common/template/lexer.h"
#include "common/template/unicode_text.h"

namespace flotilla::jinja {
namespace {

Status LiteralError(int line, std::string_view message) {
  return absl::InvalidArgumentError(StrCat("line ", line, ": ", message));
}

std::optional<uint32_t> HexDigit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return std::nullopt;
}

// Exactly `digits` hexadecimal digits at *pos.
std::optional<uint32_t> ReadHex(std::string_view text, size_t digits, size_t* pos) {
  if (text.size() - *pos < digits) return std::nullopt;
  uint32_t value = 0;
  for (size_t i = 0; i < digits; ++i) {
    const auto digit = HexDigit(text[*pos + i]);
    if (!digit.has_value()) return std::nullopt;
    value = value << 4 | *digit;
  }
  *pos += digits;
  return value;
}

uint32_t ReadOctal(std::string_view text, size_t* pos) {
  const size_t end = std::min(text.size(), *pos + 3);
  uint32_t value = 0;
  while (*pos < end && text[*pos] >= '0' && text[*pos] <= '7')
    value = value * 8 + text[(*pos)++] - '0';
  return value;
}

std::optional<char> SimpleEscape(char c) {
  switch (c) {
    case '\\':
    case '\'':
    case '"':
      return c;
    case 'a':
      return '\a';
    case 'b':
      return '\b';
    case 'f':
      return '\f';
    case 'n':
      return '\n';
    case 'r':
      return '\r';
    case 't':
      return '\t';
    case 'v':
      return '\v';
    default:
      return std::nullopt;
  }
}

// What follows "\x", "\u" or "\U".
Status AppendCodePoint(std::string_view body, char kind, int line, size_t* pos, std::string* out) {
  const size_t digits = kind == 'x' ? 2 : kind == 'u' ? 4 : 8;
  const auto code = ReadHex(body, digits, pos);
  if (!code.has_value()) return LiteralError(line, "truncated escape in a string");
  if (*code > 0x10ffff) return LiteralError(line, "illegal Unicode character in a string");
  if (*code >= 0xd800 && *code < 0xe000) {
    return LiteralError(line, "a lone surrogate in a string is not supported");
  }
  AppendUtf8(*code, out);
  return OkStatus();
}

// jinja2 writes characters beyond ASCII as escapes first. A backslash before one therefore hides
// the escape's own backslash, and the rest of the escape is what stays.
void AppendHiddenEscape(char32_t c, std::string* out) {
  const char* format = c < 0x100 ? "\\x%02x" : c < 0x10000 ? "\\u%04x" : "\\U%08x";
  char buffer[16];
  std::snprintf(buffer, sizeof(buffer), format, static_cast<unsigned>(c));
  out->append(buffer);
}

}  // namespace

StatusOr<std::string> UnescapeLiteral(std::string_view body, int line) {
  std::string out;
  out.reserve(body.size());
  for (size_t pos = 0; pos < body.size();) {
    if (body[pos] != '\\') {
      out.push_back(body[pos++]);
      continue;
    }
    if (++pos == body.size()) return LiteralError(line, "\\ at end of string");
    const char c = body[pos];
    if (static_cast<uint8_t>(c) >= 0x80) {
      AppendHiddenEscape(NextChar(body, &pos), &out);
    } else if (c >= '0' && c <= '7') {
      AppendUtf8(ReadOctal(body, &pos), &out);
    } else if (const auto simple = SimpleEscape(c)) {
      out.push_back(*simple);
      ++pos;
    } else if (c == '\n') {
      ++pos;
    } else if (c == 'x' || c == 'u' || c == 'U') {
      RETURN_IF_ERROR(AppendCodePoint(body, c, line, &++pos, &out));
    } else if (c == 'N') {
      return LiteralError(line, "characters by name (\\N{…}) are not supported");
    } else {
      out.push_back('\\');
    }
  }
  return out;
}

}  // namespace flotilla::jinja
