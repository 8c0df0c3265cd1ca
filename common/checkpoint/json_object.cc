#include "common/checkpoint/json_object.h"

#include <boost/json/array.hpp>

#include "common/base/strict_json.h"

namespace flotilla::internal {

bool JsonObject::Contains(std::string_view key) const {
  return object_->if_contains({key.data(), key.size()}) != nullptr;
}

bool JsonObject::Has(std::string_view key) const {
  const boost::json::value* value = object_->if_contains({key.data(), key.size()});
  return value != nullptr && !value->is_null();
}

Status JsonObject::Error(std::string_view key, std::string_view problem) const {
  return absl::InvalidArgumentError(StrCat(path_, key.substr(0, 80), " ", problem));
}

StatusOr<const boost::json::value*> JsonObject::Find(std::string_view key) const {
  const boost::json::value* value = object_->if_contains({key.data(), key.size()});
  if (value == nullptr) return absl::NotFoundError(StrCat(path_, key.substr(0, 80), " is missing"));
  return value;
}

StatusOr<uint64_t> JsonObject::Uint(std::string_view key) const {
  ASSIGN_OR_RETURN(const boost::json::value* value, Find(key));
  if (const int64_t* number = value->if_int64(); number != nullptr && *number >= 0)
    return static_cast<uint64_t>(*number);
  if (const uint64_t* number = value->if_uint64()) return *number;
  return Error(key, "must be an unsigned integer");
}

StatusOr<double> JsonObject::Float(std::string_view key) const {
  ASSIGN_OR_RETURN(const boost::json::value* value, Find(key));
  if (const double* number = value->if_double()) return *number;
  if (const int64_t* number = value->if_int64()) return static_cast<double>(*number);
  if (const uint64_t* number = value->if_uint64()) return static_cast<double>(*number);
  return Error(key, "must be a number");
}

StatusOr<bool> JsonObject::BoolOr(std::string_view key, bool fallback) const {
  if (!Has(key)) return fallback;
  ASSIGN_OR_RETURN(const boost::json::value* value, Find(key));
  if (!value->is_bool()) return Error(key, "must be true or false");
  return value->get_bool();
}

StatusOr<std::string_view> JsonObject::String(std::string_view key) const {
  ASSIGN_OR_RETURN(const boost::json::value* value, Find(key));
  const boost::json::string* text = value->if_string();
  if (text == nullptr) return Error(key, "must be a string");
  return std::string_view(text->data(), text->size());
}

StatusOr<JsonObject> JsonObject::Object(std::string_view key) const {
  ASSIGN_OR_RETURN(const boost::json::value* value, Find(key));
  const boost::json::object* object = value->if_object();
  if (object == nullptr) return Error(key, "must be an object");
  return JsonObject(object, StrCat(path_, key, "."));
}

StatusOr<std::vector<std::string_view>> JsonObject::Strings(std::string_view key) const {
  ASSIGN_OR_RETURN(const boost::json::value* value, Find(key));
  const boost::json::array* array = value->if_array();
  if (array == nullptr) return Error(key, "must be an array of strings");
  std::vector<std::string_view> strings;
  strings.reserve(array->size());
  for (const boost::json::value& element : *array) {
    const boost::json::string* text = element.if_string();
    if (text == nullptr) return Error(key, "must be an array of strings");
    strings.emplace_back(text->data(), text->size());
  }
  return strings;
}

StatusOr<std::vector<int64_t>> JsonObject::Ints(std::string_view key) const {
  ASSIGN_OR_RETURN(const boost::json::value* value, Find(key));
  const boost::json::array* array = value->if_array();
  if (array == nullptr) return Error(key, "must be an array of integers");
  std::vector<int64_t> ints;
  ints.reserve(array->size());
  for (const boost::json::value& element : *array) {
    const int64_t* number = element.if_int64();
    if (number == nullptr) return Error(key, "must be an array of integers");
    ints.push_back(*number);
  }
  return ints;
}

StatusOr<std::vector<double>> JsonObject::Floats(std::string_view key) const {
  ASSIGN_OR_RETURN(const boost::json::value* value, Find(key));
  const boost::json::array* array = value->if_array();
  if (array == nullptr) return Error(key, "must be an array of numbers");
  std::vector<double> numbers;
  numbers.reserve(array->size());
  for (const boost::json::value& element : *array) {
    if (!element.is_number()) return Error(key, "must be an array of numbers");
    numbers.push_back(element.to_number<double>());
  }
  return numbers;
}

StatusOr<boost::json::value> ParseJsonObject(std::string_view file, std::string_view text,
                                             size_t max_bytes) {
  if (text.size() > max_bytes) {
    return absl::InvalidArgumentError(
        StrCat(file, " has ", text.size(), " bytes; at most ", max_bytes, " are read"));
  }
  boost::json::value document;
  StrictJsonError error;
  if (!ParseStrictJson(text, &document, &error))
    return absl::InvalidArgumentError(StrCat(file, ": ", error.message));
  if (!document.is_object()) return absl::InvalidArgumentError(StrCat(file, " must be an object"));
  return document;
}

}  // namespace flotilla::internal
