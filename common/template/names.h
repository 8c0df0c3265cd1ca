// Walks over the names in a syntax tree in the order in which jinja2's visitors do.
//
// Threads: pure functions.
#pragma once

#include <string_view>

#include "common/template/ast.h"

namespace flotilla::jinja {

// What the first mention of `name` in `body` does, nested macros and loops included.
enum class FirstUse : uint8_t { kNone, kLoad, kStore };
FirstUse FindFirstUse(const Block& body, std::string_view name);

}  // namespace flotilla::jinja
