// JSON from outside: refuses what RFC 8259 refuses (NaN, comments, trailing commas, lone
// surrogates), invalid UTF-8, a key twice in one object, and nesting deeper than max_depth.
//
// Threads: any. Errors: false, and `error` says what and where.
#pragma once

#include <boost/json/value.hpp>
#include <string>
#include <string_view>

namespace flotilla {

inline constexpr size_t kMaxJsonDepth = 32;
// Of structural tags: formats around a schema, which may be as deep as a schema alone.
inline constexpr size_t kMaxStructuralTagDepth = kMaxJsonDepth + 16;

struct StrictJsonError {
  std::string message;        // "syntax error at byte 17"
  std::string duplicate_key;  // empty: another error
};

bool ParseStrictJson(std::string_view text, boost::json::value* out, StrictJsonError* error,
                     size_t max_depth = kMaxJsonDepth);

}  // namespace flotilla
