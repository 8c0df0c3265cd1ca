#include "common/template/search.h"

#include <cstdint>
#include <cstring>
#include <vector>

namespace flotilla::jinja {
namespace {

// Up to here the product of both lengths is not worth a table.
constexpr size_t kShortPart = 32;

}  // namespace

// glibc's memmem is linear (the two-way algorithm).
size_t FindText(std::string_view text, std::string_view part, size_t from) {
  if (from > text.size()) return std::string_view::npos;
  if (part.empty()) return from;
  if (text.size() - from < part.size()) return std::string_view::npos;
  const void* found = memmem(text.data() + from, text.size() - from, part.data(), part.size());
  if (found == nullptr) return std::string_view::npos;
  return static_cast<size_t>(static_cast<const char*>(found) - text.data());
}

// Knuth, Morris and Pratt, backwards: they meet the last place first.
size_t RFindText(std::string_view text, std::string_view part) {
  if (part.size() <= kShortPart || part.size() > text.size()) return text.rfind(part);
  const size_t size = part.size();
  const auto at = [&part, size](size_t i) { return part[size - 1 - i]; };
  // borders[i]: how much of the reversed part its first i + 1 characters end with, all but
  // themselves.
  std::vector<uint32_t> borders(size);
  for (size_t i = 1, matched = 0; i < size; ++i) {
    while (matched > 0 && at(i) != at(matched)) matched = borders[matched - 1];
    if (at(i) == at(matched)) ++matched;
    borders[i] = static_cast<uint32_t>(matched);
  }
  size_t matched = 0;
  for (size_t i = text.size(); i > 0; --i) {
    while (matched > 0 && text[i - 1] != at(matched)) matched = borders[matched - 1];
    if (text[i - 1] == at(matched)) ++matched;
    if (matched == size) return i - 1;
  }
  return std::string_view::npos;
}

}  // namespace flotilla::jinja
