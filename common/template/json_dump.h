// json.dumps(value, …) as transformers' filter `tojson` calls it, byte for byte.
//
// Threads: one. Errors: TypeError for what JSON doesn't have (Undefined among it); limits.
// Source: CPython's json/encoder.py.
#pragma once

#include <optional>
#include <string>

#include "common/base/status.h"
#include "common/template/runtime.h"
#include "common/template/value.h"

namespace flotilla::jinja {

struct JsonOptions {
  bool ensure_ascii = false;
  std::optional<std::string> indent;  // of one level; without it all stands on one line
  std::string item_separator = ", ";
  std::string key_separator = ": ";
  bool sort_keys = false;
};

StatusOr<std::string> DumpJson(Runtime& rt, const Value& value, const JsonOptions& options);

}  // namespace flotilla::jinja
