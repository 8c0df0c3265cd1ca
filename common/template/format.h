// Python's three ways to format: "%" (and the filter `format`), str.format, and the format
// specifications of the latter.
//
// Threads: one. Errors: TypeError and ValueError as in Python; kUnimplemented for what is left out:
// format_map, Markup's own formatting, nested replacement fields, the type "n".
#pragma once

#include <string>
#include <string_view>

#include "common/base/status.h"
#include "common/template/builtin.h"
#include "common/template/runtime.h"
#include "common/template/value.h"

namespace flotilla::jinja {

// format % args, where args is one value, a tuple of them, or a dict for "%(key)s".
StatusOr<Value> PercentFormat(Runtime& rt, const Value& format, const Value& args);
// format.format(…).
StatusOr<Value> BraceFormat(Runtime& rt, const Value& format, const CallArgs& args);
// format(value, spec), as the text behind a field's ":" is.
StatusOr<std::string> FormatField(Runtime& rt, const Value& value, std::string_view spec);

// How one number or string is laid out; what both languages have in common.
struct Layout {
  std::string fill = " ";  // one character
  char align = 0;          // '<', '>', '^', '=' (between sign and digits) or 0: the default
  char sign = '-';         // '-': only if negative; '+' or ' ': what stands before others
  bool alternate = false;  // "#"
  char grouping = 0;       // ',' or '_' between each three digits (four of b, o, x)
  int64_t width = 0;       // characters
  int64_t precision = -1;  // -1: not given
};
// `number`: with its sign and prefix, if any, being the first `head` bytes.
StatusOr<std::string> Pad(Runtime& rt, std::string_view text, size_t head, char default_align,
                          const Layout& layout);
// type: 'd', 'b', 'o', 'x' or 'X'.
StatusOr<std::string> FormatInteger(Runtime& rt, int64_t value, char type, const Layout& layout);
// type: 'e', 'E', 'f', 'F', 'g', 'G' or '%'.
StatusOr<std::string> FormatFloat(Runtime& rt, double value, char type, const Layout& layout);
// The first `precision` characters, padded.
StatusOr<std::string> FormatText(Runtime& rt, std::string_view text, const Layout& layout);

}  // namespace flotilla::jinja
