// JSON schemas written in another way that says the same, where xgrammar takes the other way
// better.
//
// Each changes one object of a schema, whose inner schemas are done already, and says whether it
// did. Threads: one at a time. Errors: InvalidArgument with what is wrong, without the field.
#pragma once

#include <boost/json/object.hpp>
#include <boost/json/value.hpp>

#include "common/base/status.h"

namespace flotilla {

// Whether the value is of the `type` that a schema writes: a name or a list of names.
bool IsOfType(const boost::json::value& value, const boost::json::value& type);

// {"type": "string", "maxLength": n} as a pattern.
bool RewriteShortString(boost::json::object* schema);

class RequiredKeys {
 public:
  // Keys of `required` that `properties` has not, which xgrammar would pass over, get there, with
  // the schema that is theirs.
  StatusOr<bool> AddTo(boost::json::object* schema);

 private:
  size_t added_bytes_ = 0;  // of copied schemas
};

}  // namespace flotilla
