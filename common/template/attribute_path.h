// The `attribute` argument of filters: "function.name", "0" or 0.
//
// Threads: one. Source: jinja2 3.1's make_attrgetter.
#pragma once

#include <vector>

#include "common/base/status.h"
#include "common/template/runtime.h"
#include "common/template/value.h"

namespace flotilla::jinja {

class AttributePath {
 public:
  AttributePath() = default;  // leads to the value itself
  static StatusOr<AttributePath> Parse(Runtime& rt, const Value& attribute);

  // Where a step leads to nothing, `default_value` (unless it is None or missing) takes its place.
  StatusOr<Value> Get(Runtime& rt, Value value, const Value& default_value = Value()) const;

 private:
  std::vector<Value> parts_;
};

// The value in lower case if it is a string: by what filters compare unless told otherwise.
StatusOr<Value> IgnoreCase(Runtime& rt, const Value& value);

}  // namespace flotilla::jinja
