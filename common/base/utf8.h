// Strict UTF-8 (RFC 3629: no surrogates, no overlong forms, at most U+10FFFF), byte by byte.
//
// Offsets are bytes. Threads: pure functions. Source: Unicode 15, table 3-7, and its "maximal
// subpart" practice for replacement, which Python, Rust and browsers follow.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace flotilla {

// What the first bytes of a string are. `length` counts bytes and is ≥ 1 for a non-empty string.
struct Utf8Sequence {
  enum class Kind {
    kCharacter,   // one whole character of `length` bytes
    kInvalid,     // `length` bytes that become one U+FFFD
    kUnfinished,  // all bytes that are left; more bytes may make a character of them
  };
  Kind kind;
  size_t length;
};
// `bytes` must not be empty.
Utf8Sequence NextUtf8Sequence(std::string_view bytes);

// Offset of the first byte that is not part of a whole character; none if `text` is valid.
std::optional<size_t> FindInvalidUtf8(std::string_view text);

// With U+FFFD for what is none, so that it may stand where only valid UTF-8 may (a string of
// protobuf).
std::string ToValidUtf8(std::string_view bytes);

void AppendUtf8(char32_t code_point, std::string* out);

// The code point that begins at offset `begin` of valid UTF-8, and its bytes in *length.
char32_t CodePointAt(std::string_view text, size_t begin, size_t* length);

// Of valid UTF-8.
int32_t CountCodePoints(std::string_view text);

inline constexpr std::string_view kReplacementCharacter = "\xef\xbf\xbd";  // U+FFFD

}  // namespace flotilla
