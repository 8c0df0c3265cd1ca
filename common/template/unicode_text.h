// Text as Python's str sees it: characters, not bytes; white space, case and printability as
// Unicode 14 has them (unicode_tables.h).
//
// Every string given must be valid UTF-8 (the engine checks what comes in once). Positions are
// characters where a name says "char", bytes otherwise. Threads: pure functions.
// Source: CPython 3.11's Objects/unicodeobject.c and unicodectype.c.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace flotilla::jinja {

size_t CountChars(std::string_view text);
// The byte at which the char_index-th character begins; text.size() if there are fewer.
size_t ByteOfChar(std::string_view text, size_t char_index);
// The character at text[*byte]; *byte moves behind it. `*byte` must be less than text.size().
char32_t NextChar(std::string_view text, size_t* byte);
// The character that ends before text[*byte]; *byte moves to its start. `*byte` must be > 0.
char32_t PreviousChar(std::string_view text, size_t* byte);

bool IsSpace(char32_t c);      // str.isspace(), and \s of Python's re
bool IsPrintable(char32_t c);  // str.isprintable(): what repr() shows as it is
bool IsLower(char32_t c);
bool IsUpper(char32_t c);
bool IsCased(char32_t c);  // lower, upper or title case

std::string Lower(std::string_view text);
std::string Upper(std::string_view text);
std::string Capitalize(std::string_view text);  // the first character in title case, lower after it
std::string Title(std::string_view text);       // str.title()
std::string SwapCase(std::string_view text);

bool IsLowerText(std::string_view text);  // str.islower(): some letter, and no upper or title case
bool IsUpperText(std::string_view text);
// The first line of *rest, which is not empty, and takes it off; as str.splitlines() cuts.
std::string_view TakeLine(std::string_view* rest, bool keep_end);

enum class Side : uint8_t { kBoth, kLeft, kRight };
std::string_view StripSpace(std::string_view text, Side side = Side::kBoth);
// Strips characters that are in `chars`.
std::string_view StripChars(std::string_view text, std::string_view chars, Side side = Side::kBoth);

}  // namespace flotilla::jinja
