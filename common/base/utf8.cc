#include "common/base/utf8.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

namespace flotilla {
namespace {

// Length of the character a lead byte announces (0: not a lead byte) and the range of its second
// byte; third and fourth bytes are always 80..BF.
struct Lead {
  uint8_t length;
  uint8_t second_min;
  uint8_t second_max;
};

Lead LeadOf(uint8_t byte) {
  if (byte < 0x80) return {1, 0, 0};
  if (byte < 0xc2) return {0, 0, 0};
  if (byte < 0xe0) return {2, 0x80, 0xbf};
  if (byte < 0xf0) {
    return {3, static_cast<uint8_t>(byte == 0xe0 ? 0xa0 : 0x80),
            static_cast<uint8_t>(byte == 0xed ? 0x9f : 0xbf)};
  }
  if (byte < 0xf5) {
    return {4, static_cast<uint8_t>(byte == 0xf0 ? 0x90 : 0x80),
            static_cast<uint8_t>(byte == 0xf4 ? 0x8f : 0xbf)};
  }
  return {0, 0, 0};
}

// Bytes at the start of `text` that are ASCII, found eight at a time.
size_t AsciiPrefix(std::string_view text) {
  size_t i = 0;
  for (; i + 8 <= text.size(); i += 8) {
    uint64_t word;
    std::memcpy(&word, text.data() + i, sizeof(word));
    if ((word & 0x8080808080808080ull) != 0) break;
  }
  while (i < text.size() && static_cast<uint8_t>(text[i]) < 0x80) ++i;
  return i;
}

}  // namespace

Utf8Sequence NextUtf8Sequence(std::string_view bytes) {
  using Kind = Utf8Sequence::Kind;
  const Lead lead = LeadOf(static_cast<uint8_t>(bytes[0]));
  if (lead.length == 0) return {Kind::kInvalid, 1};
  for (size_t i = 1; i < lead.length; ++i) {
    if (i == bytes.size()) return {Kind::kUnfinished, i};
    const uint8_t byte = static_cast<uint8_t>(bytes[i]);
    const uint8_t min = i == 1 ? lead.second_min : 0x80;
    const uint8_t max = i == 1 ? lead.second_max : 0xbf;
    if (byte < min || byte > max) return {Kind::kInvalid, i};
  }
  return {Kind::kCharacter, lead.length};
}

std::optional<size_t> FindInvalidUtf8(std::string_view text) {
  size_t i = 0;
  while (true) {
    i += AsciiPrefix(text.substr(i));
    if (i == text.size()) return std::nullopt;
    const Utf8Sequence next = NextUtf8Sequence(text.substr(i));
    if (next.kind != Utf8Sequence::Kind::kCharacter) return i;
    i += next.length;
  }
}

std::string ToValidUtf8(std::string_view bytes) {
  std::string out;
  while (!bytes.empty()) {
    const Utf8Sequence next = NextUtf8Sequence(bytes);
    const bool valid = next.kind == Utf8Sequence::Kind::kCharacter;
    out.append(valid ? bytes.substr(0, next.length) : kReplacementCharacter);
    bytes.remove_prefix(next.length);
  }
  return out;
}

void AppendUtf8(char32_t code_point, std::string* out) {
  const auto put = [out](uint32_t byte) { out->push_back(static_cast<char>(byte)); };
  const uint32_t c = code_point;
  if (c < 0x80) {
    put(c);
  } else if (c < 0x800) {
    put(0xc0 | c >> 6);
    put(0x80 | (c & 0x3f));
  } else if (c < 0x10000) {
    put(0xe0 | c >> 12);
    put(0x80 | (c >> 6 & 0x3f));
    put(0x80 | (c & 0x3f));
  } else {
    put(0xf0 | c >> 18);
    put(0x80 | (c >> 12 & 0x3f));
    put(0x80 | (c >> 6 & 0x3f));
    put(0x80 | (c & 0x3f));
  }
}

char32_t CodePointAt(std::string_view text, size_t begin, size_t* length) {
  const auto tail = [&](size_t i) { return static_cast<uint8_t>(text[begin + i]) & 0x3fu; };
  const uint32_t lead = static_cast<uint8_t>(text[begin]);
  *length = LeadOf(static_cast<uint8_t>(lead)).length;
  switch (*length) {
    case 2:
      return (lead & 0x1f) << 6 | tail(1);
    case 3:
      return (lead & 0x0f) << 12 | tail(1) << 6 | tail(2);
    case 4:
      return (lead & 0x07) << 18 | tail(1) << 12 | tail(2) << 6 | tail(3);
    default:
      return lead;
  }
}

int32_t CountCodePoints(std::string_view text) {
  return static_cast<int32_t>(
      std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xc0) != 0x80; }));
}

}  // namespace flotilla
