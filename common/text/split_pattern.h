// Writes a regular expression of a tokenizer.json for PCRE2.
//
// The tokenizers library searches with Oniguruma, which knows Unicode 16; PCRE2 10.42 knows
// Unicode 14. The letters, marks, numbers, punctuation and symbols added since are spelt out, and
// so is white space (PCRE2's \s has U+180E, which is none since Unicode 6.3), so that both find the
// same. tests/common/tokenizer_live_test.py compares every code point.
//
// Threads: pure function. Two classes of our own stand for what components of the library call so:
// \p{is_numeric} (Digits: Rust's char::is_numeric, Unicode 17) and, only outside [ ],
// \p{is_punctuation} (Punctuation: its ASCII, and Unicode 8's).
#pragma once

#include <string>
#include <string_view>

namespace flotilla {

std::string ToPcre2(std::string_view pattern);

}  // namespace flotilla
