// What Python's str methods know about characters beyond ASCII, as tables sorted by code point.
//
// Source: unicode_tables.cc is written by tests/common/make_unicode_tables.py from Python's own
// str.
#pragma once

#include <cstddef>
#include <cstdint>

namespace flotilla::jinja {

struct CodeRange {
  uint32_t first;
  uint32_t last;
};
// Every stride-th character from first to last has the other case at a distance of delta.
struct CaseRange {
  uint32_t first;
  uint32_t last;
  uint32_t stride;
  int32_t delta;
};
// Zeros fill up the end. Only for characters that CaseRange can't describe.
struct SpecialCase {
  uint32_t code;
  uint32_t upper[3];
  uint32_t title[3];
};
struct CasedRange {
  uint32_t first;
  uint32_t last;
  uint32_t is_upper;
};

extern const CodeRange kNotPrintable[];
extern const size_t kNotPrintableCount;
extern const CaseRange kUpperCase[];
extern const size_t kUpperCaseCount;
extern const CaseRange kLowerCase[];
extern const size_t kLowerCaseCount;
extern const SpecialCase kSpecialCase[];
extern const size_t kSpecialCaseCount;
extern const CasedRange kCasedOther[];  // letters with a case but no counterpart, such as ª and 𝐀
extern const size_t kCasedOtherCount;

}  // namespace flotilla::jinja
