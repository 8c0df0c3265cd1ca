// value.name, value[key] and value[start:stop:step], as jinja2's immutable sandbox allows them.
//
// What is absent, or forbidden (names that begin with "_", methods that would change a list or
// dict), is an Undefined value: only using it is an error. Threads: one.
// Source: jinja2 3.1's sandbox.py and runtime.py.
#pragma once

#include <string_view>

#include "common/base/status.h"
#include "common/template/runtime.h"
#include "common/template/value.h"

namespace flotilla::jinja {

// value.name: the attribute; if there is none, the item.
StatusOr<Value> GetAttribute(Runtime& rt, const Value& value, std::string_view name);
// value[key]: the item; if there is none and the key is a string, the attribute.
StatusOr<Value> GetItem(Runtime& rt, const Value& value, const Value& key);
// Each bound may be None.
StatusOr<Value> GetSlice(Runtime& rt, const Value& value, const Value& start, const Value& stop,
                         const Value& step);

}  // namespace flotilla::jinja
