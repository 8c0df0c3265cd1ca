#include "common/text/nfc.h"

#include <utf8proc.h>

#include <algorithm>
#include <iterator>
#include <vector>

#include "common/base/check.h"
#include "common/base/utf8.h"

namespace flotilla {
namespace {

struct Range {
  char32_t first;
  char32_t last;
};
// Marks that Unicode 9 does not have, and what only composes since.
constexpr Range kNewer[] = {
    {0x5C8, 0x5C9},     {0x7FD, 0x7FD},     {0x897, 0x89F},     {0x8CA, 0x8D3},
    {0x9FE, 0x9FE},     {0xC3C, 0xC3C},     {0xD3B, 0xD3C},     {0xEBA, 0xEBA},
    {0x1715, 0x1715},   {0x1ABF, 0x1AF0},   {0x1DF6, 0x1DFA},   {0xA82C, 0xA82C},
    {0x105D2, 0x105D2}, {0x105DA, 0x105DA}, {0x10D24, 0x10D27}, {0x10D69, 0x10D6D},
    {0x10EAB, 0x10EAC}, {0x10ECB, 0x10ECF}, {0x10EF0, 0x10EFB}, {0x10EFD, 0x10EFF},
    {0x10F46, 0x10F50}, {0x10F82, 0x10F85}, {0x11070, 0x11070}, {0x1133B, 0x1133B},
    {0x11382, 0x11382}, {0x11384, 0x11384}, {0x1138B, 0x1138B}, {0x11390, 0x11390},
    {0x113C2, 0x113C2}, {0x113CE, 0x113D0}, {0x1145E, 0x1145E}, {0x11839, 0x1183A},
    {0x11935, 0x11935}, {0x1193D, 0x1193E}, {0x11943, 0x11943}, {0x119E0, 0x119E0},
    {0x11A34, 0x11A34}, {0x11A47, 0x11A47}, {0x11A99, 0x11A99}, {0x11D42, 0x11D42},
    {0x11D44, 0x11D45}, {0x11D97, 0x11D97}, {0x11F41, 0x11F42}, {0x1611E, 0x1611E},
    {0x16129, 0x16129}, {0x1612F, 0x1612F}, {0x16D63, 0x16D63}, {0x16D67, 0x16D67},
    {0x16FF0, 0x16FF1}, {0x1D127, 0x1D128}, {0x1D250, 0x1D252}, {0x1D25F, 0x1D25F},
    {0x1D280, 0x1D281}, {0x1E08F, 0x1E08F}, {0x1E130, 0x1E136}, {0x1E2AE, 0x1E2AE},
    {0x1E2EC, 0x1E2EF}, {0x1E4EC, 0x1E4EF}, {0x1E5EE, 0x1E5EF}, {0x1E6E3, 0x1E6E3},
    {0x1E6E6, 0x1E6E6}, {0x1E6EE, 0x1E6EF}, {0x1E6F5, 0x1E6F5}};

bool IsNewer(char32_t c) {
  const Range* range = std::upper_bound(std::begin(kNewer), std::end(kNewer), c,
                                        [](char32_t value, Range r) { return value < r.first; });
  return range != std::begin(kNewer) && c <= std::prev(range)->last;
}

uint16_t CombiningClass(utf8proc_int32_t c) { return utf8proc_get_property(c)->combining_class; }

// Characters of which none composes with what stands before or after them all.
class Stretch {
 public:
  void Add(char32_t c) {
    constexpr size_t kMost = 8;  // canonical decompositions have at most four characters
    utf8proc_int32_t parts[kMost];
    int boundary_class = 0;
    const utf8proc_ssize_t count = utf8proc_decompose_char(
        static_cast<utf8proc_int32_t>(c), parts, kMost, UTF8PROC_DECOMPOSE, &boundary_class);
    CHECK(count > 0 && count <= static_cast<utf8proc_ssize_t>(kMost));
    characters_.insert(characters_.end(), parts, parts + count);
  }

  void Flush(std::string* out) {
    OrderMarks();
    const utf8proc_ssize_t count = utf8proc_normalize_utf32(
        characters_.data(), static_cast<utf8proc_ssize_t>(characters_.size()),
        static_cast<utf8proc_option_t>(UTF8PROC_COMPOSE | UTF8PROC_STABLE));
    CHECK(count >= 0);
    for (utf8proc_ssize_t i = 0; i < count; ++i)
      AppendUtf8(static_cast<char32_t>(characters_[i]), out);
    characters_.clear();
  }

 private:
  // Each run of marks by class, those of one class as they came.
  void OrderMarks() {
    const auto is_mark = [](utf8proc_int32_t c) { return CombiningClass(c) > 0; };
    auto begin = characters_.begin();
    while (true) {
      begin = std::find_if(begin, characters_.end(), is_mark);
      if (begin == characters_.end()) return;
      const auto end = std::find_if_not(begin, characters_.end(), is_mark);
      std::stable_sort(begin, end, [](utf8proc_int32_t a, utf8proc_int32_t b) {
        return CombiningClass(a) < CombiningClass(b);
      });
      begin = end;
    }
  }

  std::vector<utf8proc_int32_t> characters_;
};

}  // namespace

bool IsPlainlyNfc(std::string_view text) {
  return std::all_of(text.begin(), text.end(),
                     [](char c) { return static_cast<uint8_t>(c) < 0xcc; });  // U+0300: CC 80
}

std::string ToNfc(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  Stretch stretch;
  for (size_t i = 0; i < text.size();) {
    size_t length = 0;
    const char32_t c = CodePointAt(text, i, &length);
    i += length;
    const bool newer = IsNewer(c);
    if (c < 0x80 || newer) stretch.Flush(&out);
    if (newer) {
      AppendUtf8(c, &out);
    } else {
      stretch.Add(c);
    }
  }
  stretch.Flush(&out);
  return out;
}

}  // namespace flotilla
