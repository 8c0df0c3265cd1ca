// Text within text, in linear time: std::string's find() takes the product of both lengths if it is
// given "aaa…" and "aaa…b", and templates may be hostile.
//
// Positions are bytes; npos: not there. An empty part is found at once. Threads: pure functions.
#pragma once

#include <cstddef>
#include <string_view>

namespace flotilla::jinja {

// The first place of `part` at or behind text[from].
size_t FindText(std::string_view text, std::string_view part, size_t from = 0);
// The last place of `part`.
size_t RFindText(std::string_view text, std::string_view part);

}  // namespace flotilla::jinja
