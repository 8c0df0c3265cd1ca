// Normalization form C, as the tokenizers library has it: Unicode 9's. Marks and compositions that
// later versions added are left as they are.
//
// Time: n log n for n marks in a row, linear otherwise. Memory: 16 bytes a character of the longest
// stretch without ASCII. Threads: pure functions. Source: Unicode Standard Annex 15; the
// properties and the composition are utf8proc's, the order of marks is ours (utf8proc's takes
// quadratic time).
#pragma once

#include <string>
#include <string_view>

namespace flotilla {

// True if the text is in form C by its looks: nothing at or above U+0300, the first mark.
bool IsPlainlyNfc(std::string_view text);

// `text` must be valid UTF-8.
std::string ToNfc(std::string_view text);

}  // namespace flotilla
