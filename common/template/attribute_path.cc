#include "common/template/attribute_path.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "common/template/access.h"
#include "common/template/numbers.h"
#include "common/template/unicode_text.h"

namespace flotilla::jinja {

StatusOr<AttributePath> AttributePath::Parse(Runtime& rt, const Value& attribute) {
  AttributePath path;
  if (attribute.is_none()) return path;
  if (!attribute.is_str()) {
    path.parts_.push_back(attribute);
    return path;
  }
  std::string_view rest = attribute.text();
  while (true) {
    const size_t dot = std::min(rest.find('.'), rest.size());
    const std::string_view part = rest.substr(0, dot);
    int64_t index = 0;
    RETURN_IF_ERROR(rt.Step());
    RETURN_IF_ERROR(rt.Charge(sizeof(Value)));
    const bool digits = !part.empty() && part.find_first_not_of("0123456789") == part.npos;
    if (digits && ParseInt(part, 10, &index) == IntParse::kOk) {
      path.parts_.push_back(Value::Int(index));
    } else {
      ASSIGN_OR_RETURN(path.parts_.emplace_back(), rt.NewStr(part));
    }
    if (dot == rest.size()) return path;
    rest.remove_prefix(dot + 1);
  }
}

StatusOr<Value> AttributePath::Get(Runtime& rt, Value value, const Value& default_value) const {
  for (const Value& part : parts_) {
    RETURN_IF_ERROR(rt.Step());
    ASSIGN_OR_RETURN(value, GetItem(rt, value, part));
    if (value.is_undefined() && !default_value.is_missing() && !default_value.is_none()) {
      value = default_value;
    }
  }
  return value;
}

StatusOr<Value> IgnoreCase(Runtime& rt, const Value& value) {
  if (!value.is_str()) return value;
  RETURN_IF_ERROR(rt.StepBytes(8 * value.text().size()));
  return rt.NewStr(Lower(value.text()));
}

}  // namespace flotilla::jinja
