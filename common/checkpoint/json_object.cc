#include "common/checkpoint/json_object.h"

#include <boost/json/array.hpp>
#include <optional>

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

// `read`: an element as a std::optional<T>.
template <typename T, typename Read>
StatusOr<std::vector<T>> JsonObject::Elements(std::string_view key, std::string_view of,
                                              const Read& read) const {
  ASSIGN_OR_RETURN(const boost::json::value* value, Find(key));
  const boost::json::array* array = value->if_array();
  if (array == nullptr) return Error(key, StrCat("must be an array of ", of));
  std::vector<T> elements;
  elements.reserve(array->size());
  for (const boost::json::value& each : *array) {
    const std::optional<T> element = read(each);
    if (!element.has_value()) return Error(key, StrCat("must be an array of ", of));
    elements.push_back(*element);
  }
  return elements;
}

StatusOr<std::vector<std::string_view>> JsonObject::Strings(std::string_view key) const {
  using Text = std::optional<std::string_view>;
  return Elements<std::string_view>(key, "strings", [](const boost::json::value& value) -> Text {
    const boost::json::string* text = value.if_string();
    return text == nullptr ? Text() : std::string_view(text->data(), text->size());
  });
}

StatusOr<std::vector<int64_t>> JsonObject::Ints(std::string_view key) const {
  using Int = std::optional<int64_t>;
  return Elements<int64_t>(key, "integers", [](const boost::json::value& value) {
    const int64_t* number = value.if_int64();
    return number == nullptr ? Int() : Int(*number);
  });
}

StatusOr<std::vector<double>> JsonObject::Floats(std::string_view key) const {
  using Number = std::optional<double>;
  return Elements<double>(key, "numbers", [](const boost::json::value& value) {
    return value.is_number() ? Number(value.to_number<double>()) : Number();
  });
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
