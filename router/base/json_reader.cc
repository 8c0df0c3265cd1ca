#include "router/base/json_reader.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "common/base/status.h"
#include "common/base/strict_json.h"

namespace flotilla {
namespace json = boost::json;

namespace {

const char* KindOf(const json::value& value) {
  switch (value.kind()) {
    case json::kind::null:
      return "null";
    case json::kind::bool_:
      return "a boolean";
    case json::kind::string:
      return "a string";
    case json::kind::array:
      return "an array";
    case json::kind::object:
      return "an object";
    default:
      return "a number";
  }
}

bool IsFraction(const json::value& value) {
  return value.is_double() && value.get_double() != std::floor(value.get_double());
}

}  // namespace

std::optional<ApiError> ParseJson(std::string_view text, json::value* out) {
  StrictJsonError error;
  if (ParseStrictJson(text, out, &error)) return std::nullopt;
  const std::string key = error.duplicate_key.substr(0, 64);
  if (!key.empty())
    return InvalidField(key, StrCat("The body has the key '", key, "' twice in one object."));
  return InvalidField("", StrCat("The body is not valid JSON: ", error.message, "."));
}

bool IsNeutral(const json::value& value) {
  switch (value.kind()) {
    case json::kind::null:
      return true;
    case json::kind::bool_:
      return !value.get_bool();
    case json::kind::string:
      return value.get_string().empty();
    case json::kind::array:
      return value.get_array().empty();
    case json::kind::object:
      return value.get_object().empty();
    default:
      return value.to_number<double>() == 0;
  }
}

std::optional<int64_t> AsInt(const json::value& value, int64_t min, int64_t max) {
  int64_t number = 0;
  if (value.is_int64()) {
    number = value.get_int64();
  } else if (value.is_double()) {
    const double d = value.get_double();
    if (!(std::abs(d) <= 9007199254740992.0) || d != std::floor(d)) return std::nullopt;
    number = static_cast<int64_t>(d);
  } else {
    return std::nullopt;  // is_uint64 is above INT64_MAX
  }
  if (number < min || number > max) return std::nullopt;
  return number;
}

const json::value* FieldReader::Find(std::string_view name) const {
  if (error_.has_value()) return nullptr;
  const json::value* value = object_.if_contains({name.data(), name.size()});
  return value == nullptr || value->is_null() ? nullptr : value;
}

void FieldReader::WrongType(std::string_view name, std::string_view must,
                            const json::value& value) {
  Fail(name, StrCat("must be ", std::string(must), ", not ",
                    IsFraction(value) ? "a fraction" : KindOf(value)));
}

void FieldReader::Fail(std::string_view name, std::string_view message) {
  if (error_.has_value()) return;
  const std::string full = StrCat(prefix_, name);
  error_ = InvalidField(full, StrCat("'", full, "' ", std::string(message), "."));
}

std::optional<int64_t> FieldReader::Int(std::string_view name, int64_t min, int64_t max) {
  const json::value* value = Find(name);
  if (value == nullptr) return std::nullopt;
  std::optional<int64_t> number = AsInt(*value, min, max);
  if (number.has_value()) return number;
  if (!value->is_number() || IsFraction(*value))
    WrongType(name, "an integer", *value);
  else
    Fail(name, StrCat("must be an integer from ", min, " to ", max));
  return number;
}

std::optional<uint64_t> FieldReader::Uint64(std::string_view name) {
  const json::value* value = Find(name);
  if (value == nullptr) return std::nullopt;
  if (value->is_uint64()) return value->get_uint64();
  const std::optional<int64_t> number = AsInt(*value, INT64_MIN, INT64_MAX);
  if (number.has_value()) return static_cast<uint64_t>(*number);
  Fail(name, "must be an integer of 64 bits");
  return std::nullopt;
}

std::optional<double> FieldReader::Number(std::string_view name) {
  const json::value* value = Find(name);
  if (value == nullptr) return std::nullopt;
  if (value->is_number()) return std::clamp(value->to_number<double>(), -1e9, 1e9);
  WrongType(name, "a number", *value);
  return std::nullopt;
}

std::optional<bool> FieldReader::Bool(std::string_view name) {
  const json::value* value = Find(name);
  if (value == nullptr) return std::nullopt;
  if (value->is_bool()) return value->get_bool();
  WrongType(name, "true or false", *value);
  return std::nullopt;
}

std::optional<std::string_view> FieldReader::String(std::string_view name) {
  const json::value* value = Find(name);
  if (value == nullptr) return std::nullopt;
  if (value->is_string()) {
    const json::string& text = value->get_string();
    return std::string_view(text.data(), text.size());
  }
  WrongType(name, "a string", *value);
  return std::nullopt;
}

std::optional<std::vector<int32_t>> FieldReader::Ints(std::string_view name, size_t max_count,
                                                      int64_t min, int64_t max) {
  const json::value* value = Find(name);
  if (value == nullptr) return std::nullopt;
  if (!value->is_array()) {
    WrongType(name, "an array of integers", *value);
    return std::nullopt;
  }
  const json::array& array = value->get_array();
  if (array.size() > max_count) {
    Fail(name, StrCat("may have at most ", max_count, " entries, not ", array.size()));
    return std::nullopt;
  }
  std::vector<int32_t> numbers;
  numbers.reserve(array.size());
  for (const json::value& entry : array) {
    const std::optional<int64_t> number = AsInt(entry, min, max);
    if (!number.has_value()) {
      Fail(name, StrCat("must have integers from ", min, " to ", max));
      return std::nullopt;
    }
    numbers.push_back(static_cast<int32_t>(*number));
  }
  return numbers;
}

const json::object* FieldReader::Object(std::string_view name) {
  const json::value* value = Find(name);
  if (value == nullptr) return nullptr;
  if (value->is_object()) return &value->get_object();
  WrongType(name, "an object", *value);
  return nullptr;
}

}  // namespace flotilla
