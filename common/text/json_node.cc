#include "common/text/json_node.h"

namespace flotilla::internal {

JsonNode JsonNode::operator[](std::string_view key) const {
  const boost::json::object* object = value_ == nullptr ? nullptr : value_->if_object();
  const boost::json::value* field =
      object == nullptr ? nullptr : object->if_contains({key.data(), key.size()});
  return {field, path_.empty() ? std::string(key) : StrCat(path_, ".", key)};
}

StatusOr<const boost::json::array*> JsonNode::Array() const {
  const boost::json::array* array = value_ == nullptr ? nullptr : value_->if_array();
  if (array == nullptr) return MustBe("an array");
  return array;
}

StatusOr<const boost::json::object*> JsonNode::Object() const {
  const boost::json::object* object = value_ == nullptr ? nullptr : value_->if_object();
  if (object == nullptr) return MustBe("an object");
  return object;
}

JsonNode JsonNode::Element(const boost::json::value& value, size_t index) const {
  return {&value, StrCat(path_, "[", index, "]")};
}

StatusOr<std::string_view> JsonNode::String() const {
  const boost::json::string* string = value_ == nullptr ? nullptr : value_->if_string();
  if (string == nullptr) return MustBe("a string");
  return std::string_view(string->data(), string->size());
}

StatusOr<bool> JsonNode::Bool() const {
  if (value_ == nullptr || !value_->is_bool()) return MustBe("true or false");
  return value_->get_bool();
}

StatusOr<bool> JsonNode::BoolOr(bool fallback) const {
  if (is_null()) return fallback;
  return Bool();
}

StatusOr<uint32_t> JsonNode::Uint(uint32_t max) const {
  const int64_t* number = value_ == nullptr ? nullptr : value_->if_int64();
  if (number == nullptr || *number < 0 || *number > max)
    return MustBe(StrCat("an integer from 0 to ", max));
  return static_cast<uint32_t>(*number);
}

StatusOr<std::string_view> JsonNode::Type() const {
  const JsonNode type = (*this)["type"];
  if (type.is_null()) return std::string_view();
  return type.String();
}

Status JsonNode::Error(std::string_view problem) const {
  return absl::InvalidArgumentError(StrCat("tokenizer.json: ", path_, " ", problem));
}

Status JsonNode::Unsupported(std::string_view type, std::string_view known) const {
  return Error(
      StrCat("has the type '", type.substr(0, 64), "', which is not supported; known: ", known));
}

}  // namespace flotilla::internal
