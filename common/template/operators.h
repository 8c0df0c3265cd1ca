// Arithmetic as Python has it, on numbers of 64 bits, strings, lists and tuples.
//
// Threads: one. Errors: TypeError and ZeroDivisionError as in Python; kUnimplemented for an integer
// beyond 64 bits and for complex numbers; limits.
#pragma once

#include "common/base/status.h"
#include "common/template/ast.h"
#include "common/template/runtime.h"
#include "common/template/value.h"

namespace flotilla::jinja {

// `op` is one of kAdd … kPow.
StatusOr<Value> Arithmetic(Runtime& rt, ExprKind op, const Value& a, const Value& b);
StatusOr<Value> Negate(const Value& value);
StatusOr<Value> Plus(const Value& value);  // +value
// a ~ b ~ …: the strings of all, joined.
StatusOr<Value> Concat(Runtime& rt, const std::vector<Value>& parts);

// markupsafe.escape(): Markup stays as it is.
StatusOr<Value> EscapeHtml(Runtime& rt, const Value& value);

Status IntegerOverflow();

}  // namespace flotilla::jinja
