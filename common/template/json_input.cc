#include "common/template/json_input.h"

#include <utility>
#include <vector>

#include "common/base/utf8.h"

namespace flotilla::jinja {
namespace {

namespace json = boost::json;

StatusOr<Value> FromArray(Runtime& rt, const json::array& array) {
  std::vector<Value> items;
  items.reserve(array.size());
  for (const json::value& item : array) {
    ASSIGN_OR_RETURN(items.emplace_back(), FromJson(rt, item));
  }
  return rt.NewList(std::move(items));
}

StatusOr<Value> FromObject(Runtime& rt, const json::object& object) {
  Dict dict;
  for (const json::key_value_pair& entry : object) {
    ASSIGN_OR_RETURN(Value key, FromText(rt, {entry.key().data(), entry.key().size()}));
    ASSIGN_OR_RETURN(Value value, FromJson(rt, entry.value()));
    dict.Set(std::move(key), std::move(value));
  }
  return rt.NewDict(std::move(dict));
}

}  // namespace

StatusOr<Value> FromText(Runtime& rt, std::string_view text) {
  if (const auto invalid = FindInvalidUtf8(text)) {
    return absl::InvalidArgumentError(StrCat("invalid UTF-8 at offset ", *invalid));
  }
  return rt.NewStr(text);
}

StatusOr<Value> FromJson(Runtime& rt, const json::value& value) {
  const DepthGuard guard(rt);
  RETURN_IF_ERROR(guard.status());
  switch (value.kind()) {
    case json::kind::null:
      return Value::None();
    case json::kind::bool_:
      return Value::Bool(value.get_bool());
    case json::kind::int64:
      return Value::Int(value.get_int64());
    case json::kind::uint64:
      if (value.get_uint64() > static_cast<uint64_t>(INT64_MAX)) {
        return Value::WideInt(value.get_uint64());
      }
      return Value::Int(static_cast<int64_t>(value.get_uint64()));
    case json::kind::double_:
      return Value::Float(value.get_double());
    case json::kind::string:
      return FromText(rt, {value.get_string().data(), value.get_string().size()});
    case json::kind::array:
      return FromArray(rt, value.get_array());
    case json::kind::object:
      return FromObject(rt, value.get_object());
  }
  return Value();
}

}  // namespace flotilla::jinja
