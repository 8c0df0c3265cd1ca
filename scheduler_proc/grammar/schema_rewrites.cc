#include "scheduler_proc/grammar/schema_rewrites.h"

#include <algorithm>
#include <boost/json/serialize.hpp>
#include <string>
#include <utility>

namespace flotilla {
namespace {

namespace json = boost::json;

constexpr int64_t kLongestPattern = 512;  // that cmake/xgrammar.patch lets it unroll
// A long schema of other keys, for each of many keys, would be far more than the client sent.
constexpr size_t kMostAddedBytes = 64 << 10;

Status NoSchema(std::string_view what) { return absl::InvalidArgumentError(StrCat(what)); }

// What keys have that `properties` doesn't name: null if any value will do.
const json::value* SchemaOfOthers(const json::object& schema) {
  const json::value* others = schema.if_contains("additionalProperties");
  return others != nullptr ? others : schema.if_contains("unevaluatedProperties");
}

}  // namespace

// Types that don't exist are xgrammar's to refuse.
bool IsOfType(const json::value& value, const json::value& type) {
  if (type.is_array()) {
    return std::ranges::any_of(type.get_array(),
                               [&](const json::value& one) { return IsOfType(value, one); });
  }
  const bool whole = value.is_int64() || value.is_uint64();
  return (type == "string" && value.is_string()) || (type == "object" && value.is_object()) ||
         (type == "array" && value.is_array()) || (type == "boolean" && value.is_bool()) ||
         (type == "null" && value.is_null()) || (type == "integer" && whole) ||
         (type == "number" && (whole || value.is_double()));
}

// xgrammar counts characters with a rule for each, so that every token has to be tried at each step
// (5 ms a mask); a pattern becomes an automaton, whose masks are made beforehand (0.05 ms at most).
// Some milliseconds each: of one for each character only those near its end differ (near_states.h).
bool RewriteShortString(json::object* schema) {
  for (const char* other : {"pattern", "format", "enum", "const"}) {
    if (schema->contains(other)) return false;
  }
  const json::value* type = schema->if_contains("type");
  const json::value* most = schema->if_contains("maxLength");
  const json::value* least = schema->if_contains("minLength");
  const auto is_length = [](const json::value& v) {
    return v.is_int64() && v.get_int64() >= 0 && v.get_int64() <= kLongestPattern;
  };
  if (type == nullptr || *type != "string" || most == nullptr || !is_length(*most)) return false;
  if (least != nullptr && (!is_length(*least) || least->get_int64() > most->get_int64()))
    return false;
  const std::string pattern =
      StrCat("^.{", least == nullptr ? 0 : least->get_int64(), ",", most->get_int64(), "}$");
  schema->erase("minLength");
  schema->erase("maxLength");
  schema->emplace("pattern", pattern);
  return true;
}

StatusOr<bool> RequiredKeys::AddTo(json::object* schema) {
  const json::value* required = schema->if_contains("required");
  const json::value* type = schema->if_contains("type");
  if (required == nullptr || (type != nullptr && !IsOfType(json::object(), *type))) return false;
  const auto is_string = [](const json::value& key) { return key.is_string(); };
  if (!required->is_array() || !std::ranges::all_of(required->get_array(), is_string))
    return NoSchema("'required' must be an array of strings");
  const json::value* properties = schema->if_contains("properties");
  json::object all = properties == nullptr ? json::object() : properties->get_object();
  const size_t named = all.size();
  const json::value* others = SchemaOfOthers(*schema);
  const json::value any = json::object();
  const json::value& added = others == nullptr || others->is_bool() ? any : *others;
  const size_t bytes = json::serialize(added).size();
  for (const json::value& key : required->get_array()) {
    if (all.contains(key.get_string())) continue;
    const auto refuse = [&](std::string_view why) {
      const std::string name(std::string_view(key.get_string()).substr(0, 64));
      return NoSchema(StrCat("'required' has '", name, "', which is not in 'properties'", why));
    };
    if (others != nullptr && *others == false) return refuse(", and no other keys are allowed");
    if (schema->contains("patternProperties") || schema->contains("propertyNames"))
      return refuse("; that is not supported beside 'patternProperties' and 'propertyNames'");
    added_bytes_ += bytes;
    if (added_bytes_ > kMostAddedBytes) return refuse(": there are too many of these");
    all.emplace(key.get_string(), added);
  }
  if (all.size() == named) return false;
  (*schema)["properties"] = std::move(all);
  return true;
}

}  // namespace flotilla
