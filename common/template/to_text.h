// str(value) and repr(value), byte for byte as Python has them.
//
// Threads: one. Errors: what Python would print with a memory address in it can't be printed.
#pragma once

#include <string>

#include "common/base/status.h"
#include "common/template/runtime.h"
#include "common/template/value.h"

namespace flotilla::jinja {

// Appends to *out, charged to the runtime.
Status AppendStr(Runtime& rt, const Value& value, std::string* out);
Status AppendRepr(Runtime& rt, const Value& value, std::string* out);
StatusOr<std::string> ToText(Runtime& rt, const Value& value);
// soft_str(): a string stays what it is, Markup too.
StatusOr<Value> SoftStr(Runtime& rt, const Value& value);

// repr() of a string.
std::string ReprOfText(std::string_view text);

}  // namespace flotilla::jinja
