#include "common/base/log_text.h"

#include <algorithm>
#include <cstdio>

#include "common/base/utf8.h"

namespace flotilla {
namespace {

// What moves the cursor, ends a line for some reader, or changes the order of what is shown.
bool IsUnsafe(char32_t code) {
  return code < 0x20 || (code >= 0x7F && code < 0xA0) || code == 0x61C ||
         (code >= 0x200E && code <= 0x200F) || (code >= 0x2028 && code <= 0x202E) ||
         (code >= 0x2066 && code <= 0x2069) || code == 0xFEFF;
}

struct Field {
  std::string_view key;
  std::string_view value;  // as Kv wrote it
};

// The field whose mark is at payload[at]; *end: past it.
Field TakeField(std::string_view payload, size_t at, size_t* end) {
  const std::string_view rest = payload.substr(at + 1);
  const size_t equals = std::min(rest.find('='), rest.size());
  size_t i = std::min(equals + 1, rest.size());
  if (i < rest.size() && rest[i] == '"') {
    for (++i; i < rest.size() && rest[i] != '"'; ++i) i += rest[i] == '\\';
    i = std::min(i + 1, rest.size());
  } else {
    i = std::min({rest.find(' ', i), rest.find(kFieldMark, i), rest.size()});
  }
  *end = at + 1 + i;
  return {rest.substr(0, equals),
          rest.substr(std::min(equals + 1, i), i - std::min(equals + 1, i))};
}

// A JSON string as Kv writes it. (Raw text that holds a mark may look like anything.)
bool IsQuoted(std::string_view value) {
  if (value.size() < 2 || value.front() != '"' || value.back() != '"') return false;
  const std::string_view inner = value.substr(1, value.size() - 2);
  for (size_t i = 0; i < inner.size(); ++i) {
    if (static_cast<unsigned char>(inner[i]) < 0x20 || inner[i] == '"') return false;
    if (inner[i] != '\\') continue;
    const std::string_view escape = inner.substr(++i, 5);
    if (escape.starts_with('"') || escape.starts_with('\\')) continue;
    if (escape.size() < 5 || escape[0] != 'u' ||
        escape.find_first_not_of("0123456789abcdef", 1) != std::string_view::npos)
      return false;
  }
  return true;
}

void AppendJsonValue(std::string_view value, std::string* out) {
  if (IsQuoted(value))
    AppendPrintable(value, Quoted::kNo, out);
  else if (IsJsonNumber(value) || IsJsonBool(value))
    out->append(value);
  else
    out->append(QuotedText(value));
}

}  // namespace

void AppendPrintable(std::string_view bytes, Quoted quoted, std::string* out) {
  while (!bytes.empty()) {
    const Utf8Sequence next = NextUtf8Sequence(bytes);
    const std::string_view sequence = bytes.substr(0, next.length);
    bytes.remove_prefix(next.length);
    if (next.kind != Utf8Sequence::Kind::kCharacter) {
      out->append(kReplacementCharacter);
      continue;
    }
    size_t length = 0;
    const char32_t code = CodePointAt(sequence, 0, &length);
    if (IsUnsafe(code)) {
      char buffer[8];
      std::snprintf(buffer, sizeof(buffer), "\\u%04x", static_cast<unsigned>(code & 0xFFFF));
      out->append(buffer);
      continue;
    }
    if (quoted == Quoted::kYes && (code == '"' || code == '\\')) out->push_back('\\');
    out->append(sequence);
  }
}

std::string QuotedText(std::string_view bytes) {
  std::string out = "\"";
  AppendPrintable(bytes, Quoted::kYes, &out);
  return out + '"';
}

void AppendTextPayload(std::string_view payload, std::string* out) {
  std::string unmarked(payload);
  std::erase(unmarked, kFieldMark);
  AppendPrintable(unmarked, Quoted::kNo, out);
}

void AppendJsonPayload(std::string_view payload, std::string* out) {
  std::string message, fields;
  for (size_t at = 0; at < payload.size();) {
    if (payload[at] != kFieldMark) {
      const size_t end = std::min(payload.find(kFieldMark, at), payload.size());
      message.append(payload.substr(at, end - at));
      at = end;
      continue;
    }
    while (message.ends_with(' ')) message.pop_back();
    const Field field = TakeField(payload, at, &at);
    fields.append(",").append(QuotedText(field.key)).append(":");
    AppendJsonValue(field.value, &fields);
  }
  while (message.ends_with(' ')) message.pop_back();
  out->append("\"message\":").append(QuotedText(message)).append(fields);
}

bool IsJsonNumber(std::string_view text) {
  const auto digits = [&] {
    const size_t count = std::min(text.find_first_not_of("0123456789"), text.size());
    text.remove_prefix(count);
    return count;
  };
  const auto take = [&](std::string_view set) {
    const bool there = !text.empty() && set.find(text[0]) != std::string_view::npos;
    if (there) text.remove_prefix(1);
    return there;
  };
  take("-");
  const bool zero = text.starts_with('0');
  const size_t whole = digits();
  if (whole == 0 || (zero && whole > 1)) return false;
  if (take(".") && digits() == 0) return false;
  if (take("eE")) {
    take("+-");
    if (digits() == 0) return false;
  }
  return text.empty();
}

}  // namespace flotilla
