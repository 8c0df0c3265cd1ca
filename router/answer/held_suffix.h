// How much of a text's end may be the beginning of a tag, and how much of its beginning is white
// space, for parsers that get their text in pieces.
//
// Threads: pure functions.
#pragma once

#include <algorithm>
#include <string_view>

namespace flotilla {

// Bytes at the end of `text` that `tag` begins with; less than the whole tag.
inline size_t HeldSuffix(std::string_view text, std::string_view tag) {
  size_t size = tag.empty() ? 0 : std::min(text.size(), tag.size() - 1);
  while (size > 0 && !text.ends_with(tag.substr(0, size))) --size;
  return size;
}

inline bool IsJsonSpace(char c) { return c == ' ' || c == '\n' || c == '\r' || c == '\t'; }

inline size_t LeadingSpace(std::string_view text) {
  size_t size = 0;
  while (size < text.size() && IsJsonSpace(text[size])) ++size;
  return size;
}

}  // namespace flotilla
