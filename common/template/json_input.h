// JSON → values, as Python's json.loads has them.
//
// Threads: one. Errors: kInvalidArgument for invalid UTF-8; limits.
#pragma once

#include <boost/json/value.hpp>
#include <string_view>

#include "common/base/status.h"
#include "common/template/runtime.h"
#include "common/template/value.h"

namespace flotilla::jinja {

StatusOr<Value> FromJson(Runtime& rt, const boost::json::value& json);
StatusOr<Value> FromText(Runtime& rt, std::string_view text);

}  // namespace flotilla::jinja
