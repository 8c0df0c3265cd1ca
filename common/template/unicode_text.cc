#include "common/template/unicode_text.h"

#include <algorithm>

#include "common/base/utf8.h"
#include "common/template/unicode_tables.h"

namespace flotilla::jinja {
namespace {

constexpr char32_t kCapitalSigma = 0x3a3;
constexpr char32_t kFinalSigma = 0x3c2;
constexpr char32_t kCapitalIWithDot = 0x130;

bool IsContinuation(char byte) { return (static_cast<uint8_t>(byte) & 0xc0) == 0x80; }

// The first row of a sorted table whose `last` is not below c; the table's end if there is none.
template <typename Row>
const Row* FindRow(const Row* table, size_t count, char32_t c) {
  return std::lower_bound(table, table + count, c,
                          [](const Row& row, char32_t code) { return row.last < code; });
}

char32_t MapCase(const CaseRange* table, size_t count, char32_t c) {
  const CaseRange* row = FindRow(table, count, c);
  if (row == table + count || c < row->first || (c - row->first) % row->stride != 0) return c;
  return static_cast<char32_t>(static_cast<int64_t>(c) + row->delta);
}

const SpecialCase* FindSpecial(char32_t c) {
  const SpecialCase* end = kSpecialCase + kSpecialCaseCount;
  const SpecialCase* row = std::lower_bound(
      kSpecialCase, end, c, [](const SpecialCase& row, char32_t code) { return row.code < code; });
  return row != end && row->code == c ? row : nullptr;
}

void AppendAll(const uint32_t (&codes)[3], std::string* out) {
  for (uint32_t code : codes) {
    if (code != 0) AppendUtf8(code, out);
  }
}

void AppendUpper(char32_t c, std::string* out) {
  if (c < 0x80) {
    out->push_back(static_cast<char>(c >= 'a' && c <= 'z' ? c - 32 : c));
  } else if (const SpecialCase* special = FindSpecial(c)) {
    AppendAll(special->upper, out);
  } else {
    AppendUtf8(MapCase(kUpperCase, kUpperCaseCount, c), out);
  }
}

void AppendTitle(char32_t c, std::string* out) {
  const SpecialCase* special = c < 0x80 ? nullptr : FindSpecial(c);
  if (special == nullptr) return AppendUpper(c, out);
  AppendAll(special->title, out);
}

char32_t SimpleLower(char32_t c) {
  if (c < 0x80) return c >= 'A' && c <= 'Z' ? c + 32 : c;
  return MapCase(kLowerCase, kLowerCaseCount, c);
}

bool HasUpper(char32_t c) {
  if (c < 0x80) return c >= 'a' && c <= 'z';
  const SpecialCase* special = FindSpecial(c);
  if (special != nullptr) return special->upper[0] != c || special->upper[1] != 0;
  return MapCase(kUpperCase, kUpperCaseCount, c) != c;
}

bool HasLower(char32_t c) { return c == kCapitalIWithDot || SimpleLower(c) != c; }

const CasedRange* FindCasedOther(char32_t c) {
  const CasedRange* row = FindRow(kCasedOther, kCasedOtherCount, c);
  return row == kCasedOther + kCasedOtherCount || c < row->first ? nullptr : row;
}

// The marks inside of Greek words. Unicode's property Case_Ignorable has more; it matters to
// nothing but a capital sigma beside one of the others.
bool IsCaseIgnorable(char32_t c) {
  switch (c) {
    case '\'':
    case '.':
    case ':':
    case '^':
    case '`':
    case 0xa8:
    case 0xad:
    case 0xb7:
    case 0x2019:
      return true;
    default:
      return (c >= 0x2b0 && c < 0x370) || (c >= 0x200b && c < 0x2010);
  }
}

// Whether the sigma that ends before text[after] is the last letter of a word: then it is ς.
bool IsFinalSigma(std::string_view text, size_t sigma, size_t after) {
  bool letter_before = false;
  for (size_t i = sigma; i > 0;) {
    const char32_t c = PreviousChar(text, &i);
    if (IsCaseIgnorable(c)) continue;
    letter_before = IsCased(c);
    break;
  }
  if (!letter_before) return false;
  for (size_t i = after; i < text.size();) {
    const char32_t c = NextChar(text, &i);
    if (!IsCaseIgnorable(c)) return !IsCased(c);
  }
  return true;
}

// The character c, which lies at text[begin] and ends before text[end], in lower case.
void AppendLower(std::string_view text, size_t begin, size_t end, char32_t c, std::string* out) {
  if (c == kCapitalIWithDot) {
    out->append("i\xcc\x87");
  } else if (c == kCapitalSigma && IsFinalSigma(text, begin, end)) {
    AppendUtf8(kFinalSigma, out);
  } else {
    AppendUtf8(SimpleLower(c), out);
  }
}

}  // namespace

size_t CountChars(std::string_view text) {
  size_t count = 0;
  for (char byte : text) count += IsContinuation(byte) ? 0 : 1;
  return count;
}

size_t ByteOfChar(std::string_view text, size_t char_index) {
  size_t byte = 0;
  for (; byte < text.size(); ++byte) {
    if (IsContinuation(text[byte])) continue;
    if (char_index == 0) break;
    --char_index;
  }
  return byte;
}

char32_t NextChar(std::string_view text, size_t* byte) {
  const auto at = [&](size_t i) { return static_cast<char32_t>(static_cast<uint8_t>(text[i])); };
  const size_t i = *byte;
  const char32_t lead = at(i);
  if (lead < 0x80) {
    *byte = i + 1;
    return lead;
  }
  if (lead < 0xe0) {
    *byte = i + 2;
    return (lead & 0x1f) << 6 | (at(i + 1) & 0x3f);
  }
  if (lead < 0xf0) {
    *byte = i + 3;
    return (lead & 0xf) << 12 | (at(i + 1) & 0x3f) << 6 | (at(i + 2) & 0x3f);
  }
  *byte = i + 4;
  return (lead & 7) << 18 | (at(i + 1) & 0x3f) << 12 | (at(i + 2) & 0x3f) << 6 | (at(i + 3) & 0x3f);
}

char32_t PreviousChar(std::string_view text, size_t* byte) {
  --*byte;
  while (IsContinuation(text[*byte])) --*byte;
  size_t start = *byte;
  return NextChar(text, &start);
}

bool IsSpace(char32_t c) {
  if (c < 0x80) return (c >= 9 && c <= 13) || (c >= 28 && c <= 32);
  return c == 0x85 || c == 0xa0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200a) || c == 0x2028 ||
         c == 0x2029 || c == 0x202f || c == 0x205f || c == 0x3000;
}

bool IsPrintable(char32_t c) {
  if (c < 0x7f) return c >= 0x20;
  const CodeRange* row = FindRow(kNotPrintable, kNotPrintableCount, c);
  return row == kNotPrintable + kNotPrintableCount || c < row->first;
}

bool IsLower(char32_t c) {
  if (HasUpper(c)) return !HasLower(c);
  const CasedRange* other = FindCasedOther(c);
  return other != nullptr && other->is_upper == 0;
}

bool IsUpper(char32_t c) {
  if (HasLower(c)) return !HasUpper(c);
  const CasedRange* other = FindCasedOther(c);
  return other != nullptr && other->is_upper != 0;
}

bool IsCased(char32_t c) { return HasUpper(c) || HasLower(c) || FindCasedOther(c) != nullptr; }

std::string Lower(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (size_t i = 0; i < text.size();) {
    const size_t begin = i;
    const char32_t c = NextChar(text, &i);
    AppendLower(text, begin, i, c, &out);
  }
  return out;
}

std::string Upper(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (size_t i = 0; i < text.size();) AppendUpper(NextChar(text, &i), &out);
  return out;
}

std::string Capitalize(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size();) {
    const size_t begin = i;
    const char32_t c = NextChar(text, &i);
    if (begin == 0) {
      AppendTitle(c, &out);
    } else {
      AppendLower(text, begin, i, c, &out);
    }
  }
  return out;
}

std::string Title(std::string_view text) {
  std::string out;
  bool in_word = false;
  for (size_t i = 0; i < text.size();) {
    const size_t begin = i;
    const char32_t c = NextChar(text, &i);
    if (in_word) {
      AppendLower(text, begin, i, c, &out);
    } else {
      AppendTitle(c, &out);
    }
    in_word = IsCased(c);
  }
  return out;
}

std::string SwapCase(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size();) {
    const size_t begin = i;
    const char32_t c = NextChar(text, &i);
    if (IsUpper(c)) {
      AppendLower(text, begin, i, c, &out);
    } else if (IsLower(c)) {
      AppendUpper(c, &out);
    } else {
      AppendUtf8(c, &out);
    }
  }
  return out;
}

namespace {

bool IsLineEnd(char32_t c) {
  return (c >= 0x0a && c <= 0x0d) || (c >= 0x1c && c <= 0x1e) || c == 0x85 || c == 0x2028 ||
         c == 0x2029;
}

// Whether some character has a case, and all that have one have the one that `is` asks for.
template <typename Is>
bool AllCasedAre(std::string_view text, Is is) {
  bool any = false;
  for (size_t i = 0; i < text.size();) {
    const char32_t c = NextChar(text, &i);
    if (!IsCased(c)) continue;
    if (!is(c)) return false;
    any = true;
  }
  return any;
}

template <typename InSet>
std::string_view Strip(std::string_view text, Side side, InSet in_set) {
  size_t begin = 0;
  size_t end = text.size();
  while (side != Side::kRight && begin < end) {
    size_t next = begin;
    if (!in_set(NextChar(text, &next))) break;
    begin = next;
  }
  while (side != Side::kLeft && end > begin) {
    size_t before = end;
    if (!in_set(PreviousChar(text, &before))) break;
    end = before;
  }
  return text.substr(begin, end - begin);
}

}  // namespace

bool IsLowerText(std::string_view text) { return AllCasedAre(text, IsLower); }

bool IsUpperText(std::string_view text) { return AllCasedAre(text, IsUpper); }

std::string_view StripSpace(std::string_view text, Side side) {
  return Strip(text, side, [](char32_t c) { return IsSpace(c); });
}

std::string_view StripChars(std::string_view text, std::string_view chars, Side side) {
  std::u32string set;
  for (size_t i = 0; i < chars.size();) set.push_back(NextChar(chars, &i));
  std::sort(set.begin(), set.end());
  return Strip(text, side,
               [&set](char32_t c) { return std::binary_search(set.begin(), set.end(), c); });
}

std::string_view TakeLine(std::string_view* rest, bool keep_end) {
  const std::string_view text = *rest;
  size_t end = text.size();
  size_t i = 0;
  while (i < text.size()) {
    const size_t at = i;
    const char32_t c = NextChar(text, &i);
    if (!IsLineEnd(c)) continue;
    end = at;
    if (c == '\r' && i < text.size() && text[i] == '\n') ++i;
    break;
  }
  rest->remove_prefix(i);
  return text.substr(0, keep_end ? i : end);
}

}  // namespace flotilla::jinja
