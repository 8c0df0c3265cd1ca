#include "scheduler_proc/grammar/disjoint_schemas.h"

#include <algorithm>
#include <array>
#include <boost/json/object.hpp>
#include <boost/json/serialize.hpp>
#include <string_view>
#include <utility>
#include <vector>

namespace flotilla {

namespace json = boost::json;

bool DisjointSchemas::Spend(size_t steps) {
  if (steps > steps_left_) steps_left_ = 0;
  steps_left_ -= std::min(steps, steps_left_);
  return steps_left_ > 0;
}

// Null: it has no object, or refers to nothing that is found.
const json::object* DisjointSchemas::Resolve(const json::value& schema) {
  constexpr int kMostHops = 8;
  const json::value* at = &schema;
  for (int hops = 0; hops < kMostHops && at->is_object(); ++hops) {
    const json::value* ref = at->get_object().if_contains("$ref");
    if (ref == nullptr) return &at->get_object();
    std::string_view path = ref->is_string() ? std::string_view(ref->get_string()) : "";
    if (!path.starts_with("#/")) return nullptr;
    at = &root_;
    for (path.remove_prefix(1); !path.empty();) {
      path.remove_prefix(1);
      const std::string_view name = path.substr(0, path.find('/'));
      at = at->is_object() ? at->get_object().if_contains(name) : nullptr;
      if (at == nullptr || !Spend(1)) return nullptr;
      path.remove_prefix(name.size());
    }
  }
  return nullptr;
}

// Of an object or an array nothing is listed: its numbers may be written in many ways.
std::optional<DisjointSchemas::Values> DisjointSchemas::Listed(const json::object& schema) {
  Values values;
  const auto add = [&](const json::value& value) {
    if (value.is_structured()) return false;
    // Of numbers their double: two that are the same there count as equal. (-0.0 is 0.)
    std::string text =
        json::serialize(value.is_number() ? json::value(value.to_number<double>() + 0.0) : value);
    if (!Spend(1 + text.size())) return false;
    values.insert(std::move(text));
    return true;
  };
  if (const json::value* constant = schema.if_contains("const"))
    return add(*constant) ? std::optional(std::move(values)) : std::nullopt;
  const json::value* list = schema.if_contains("enum");
  if (list == nullptr || !list->is_array() || !Spend(list->get_array().size()) ||
      !std::ranges::all_of(list->get_array(), add))
    return std::nullopt;
  return values;
}

std::optional<DisjointSchemas::Shape> DisjointSchemas::ShapeOf(const json::value& schema) {
  const json::object* object = Resolve(schema);
  if (object == nullptr) return std::nullopt;
  Shape shape;
  shape.values = Listed(*object);
  if (shape.values.has_value()) return shape;
  const json::value* type = object->if_contains("type");
  if (type == nullptr) return std::nullopt;
  const auto add = [&](const json::value& name) {
    constexpr std::array<std::string_view, 7> kTypes = {"string", "number", "integer", "boolean",
                                                        "null",   "object", "array"};
    if (!name.is_string() || !Spend(1) ||
        std::ranges::find(kTypes, std::string_view(name.get_string())) == kTypes.end())
      return false;
    shape.types.emplace(name == "integer" ? "number" : std::string_view(name.get_string()));
    return true;
  };
  if (type->is_array() ? !std::ranges::all_of(type->get_array(), add) : !add(*type))
    return std::nullopt;
  const json::value* required = object->if_contains("required");
  const json::value* properties = object->if_contains("properties");
  if (required == nullptr || properties == nullptr || !required->is_array() ||
      !properties->is_object() || !Spend(required->get_array().size()))
    return shape;
  for (const json::value& key : required->get_array()) {
    const json::value* value =
        key.is_string() ? properties->get_object().if_contains(key.get_string()) : nullptr;
    const json::object* property = value == nullptr ? nullptr : Resolve(*value);
    auto values = property == nullptr ? std::nullopt : Listed(*property);
    if (values.has_value())
      shape.listed.emplace(std::string_view(key.get_string()), std::move(*values));
  }
  return shape;
}

bool DisjointSchemas::ShareNothing(const std::set<std::string>& a, const std::set<std::string>& b) {
  if (!Spend(1 + a.size())) return false;
  return std::ranges::none_of(a, [&](const std::string& value) { return b.contains(value); });
}

bool DisjointSchemas::AreDisjoint(const Shape& a, const Shape& b) {
  if (a.values.has_value() && b.values.has_value()) return ShareNothing(*a.values, *b.values);
  if (a.values.has_value() || b.values.has_value()) {
    // A value tells its type by its first character: see Listed.
    const Values& values = a.values.has_value() ? *a.values : *b.values;
    const std::set<std::string>& types = a.values.has_value() ? b.types : a.types;
    return Spend(1 + values.size()) && std::ranges::none_of(values, [&](const std::string& value) {
             const char first = value.front();
             return types.contains(first == '"'                   ? "string"
                                   : first == 'n'                 ? "null"
                                   : first == 't' || first == 'f' ? "boolean"
                                                                  : "number");
           });
  }
  if (ShareNothing(a.types, b.types)) return true;
  const auto beside_objects = [](std::set<std::string> types) {
    types.erase("object");
    return types;
  };
  if (!ShareNothing(beside_objects(a.types), beside_objects(b.types))) return false;
  return std::ranges::any_of(a.listed, [&](const auto& key) {
    const auto other = b.listed.find(key.first);
    return Spend(1) && other != b.listed.end() && ShareNothing(key.second, other->second);
  });
}

bool DisjointSchemas::AreDisjoint(const json::array& schemas) {
  std::vector<Shape> shapes;
  for (const json::value& schema : schemas) {
    std::optional<Shape> shape = ShapeOf(schema);
    if (!shape.has_value()) return false;
    shapes.push_back(std::move(*shape));
  }
  for (size_t i = 0; i < shapes.size(); ++i) {
    for (size_t j = i + 1; j < shapes.size(); ++j) {
      if (!AreDisjoint(shapes[i], shapes[j])) return false;
    }
  }
  return true;
}

}  // namespace flotilla
