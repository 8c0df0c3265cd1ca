// Equality, order, membership and dict keys, as Python has them.
//
// Threads: one. Errors: TypeError where Python raises it; limits, as shared lists can make a
// comparison exponentially long.
#pragma once

#include "common/base/status.h"
#include "common/template/ast.h"
#include "common/template/runtime.h"
#include "common/template/value.h"

namespace flotilla::jinja {

// a == b.
StatusOr<bool> Equals(Runtime& rt, const Value& a, const Value& b);
// One of ==, !=, <, <=, >, >=, in, not in.
StatusOr<bool> Compare(Runtime& rt, Comparison comparison, const Value& a, const Value& b);
// a < b.
StatusOr<bool> Less(Runtime& rt, const Value& a, const Value& b);
// `item in container`.
StatusOr<bool> Contains(Runtime& rt, const Value& container, const Value& item);

// dict[key]; null if absent.
StatusOr<const Value*> FindKey(Runtime& rt, const Dict& dict, const Value& key);
Status SetKey(Runtime& rt, Dict* dict, Value key, Value value);

}  // namespace flotilla::jinja
