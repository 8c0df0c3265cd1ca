// The "byte level" alphabet of GPT-2: each byte is written as one printable character in a
// vocabulary file, so that tokens and merges are plain text (a space is Ġ, a newline Ċ).
//
// Threads: pure functions. Source: GPT-2's encoder.py (bytes_to_unicode).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace flotilla {

// The character that stands for a byte.
char32_t ByteLevelCharacter(uint8_t byte);

// The bytes that `written` stands for; none if a character of it stands for no byte (or it is not
// UTF-8).
std::optional<std::string> ByteLevelToBytes(std::string_view written);

}  // namespace flotilla
