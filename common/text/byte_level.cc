#include "common/text/byte_level.h"

#include <array>

#include "common/base/utf8.h"

namespace flotilla {
namespace {

// Printable Latin-1 stands for itself; the other 68 bytes are moved to U+0100 and up, in order.
constexpr bool StandsForItself(uint32_t byte) {
  return (byte >= 0x21 && byte <= 0x7e) || (byte >= 0xa1 && byte <= 0xac) || byte >= 0xae;
}

constexpr uint32_t kNumMoved = 68;

constexpr std::array<uint16_t, 256> kToCharacter = [] {
  std::array<uint16_t, 256> table{};
  uint16_t next = 0x100;
  for (uint32_t b = 0; b < 256; ++b) {
    table[b] = StandsForItself(b) ? static_cast<uint16_t>(b) : next++;
  }
  return table;
}();
static_assert(kToCharacter[0xad] == 0x100 + kNumMoved - 1);

// −1: stands for no byte.
constexpr std::array<int16_t, 0x100 + kNumMoved> kToByte = [] {
  std::array<int16_t, 0x100 + kNumMoved> table{};
  for (int16_t& b : table) b = -1;
  for (uint32_t b = 0; b < 256; ++b) table[kToCharacter[b]] = static_cast<int16_t>(b);
  return table;
}();

}  // namespace

char32_t ByteLevelCharacter(uint8_t byte) { return kToCharacter[byte]; }

std::optional<std::string> ByteLevelToBytes(std::string_view written) {
  std::string bytes;
  bytes.reserve(written.size());
  for (size_t i = 0; i < written.size();) {
    const Utf8Sequence next = NextUtf8Sequence(written.substr(i));
    if (next.kind != Utf8Sequence::Kind::kCharacter || next.length > 2) return std::nullopt;
    size_t length = 0;
    const char32_t character = CodePointAt(written, i, &length);
    if (character >= kToByte.size() || kToByte[character] < 0) return std::nullopt;
    bytes.push_back(static_cast<char>(kToByte[character]));
    i += next.length;
  }
  return bytes;
}

}  // namespace flotilla
