#include "scheduler_proc/grammar/structural_tag.h"

#include <algorithm>
#include <array>
#include <boost/json.hpp>

#include "common/base/strict_json.h"
#include "scheduler_proc/grammar/grammar_spec.h"

namespace flotilla {
namespace {

namespace json = boost::json;

struct Format {
  std::string_view type;
  std::array<std::string_view, 5> keys;  // beside "type"
};
constexpr std::array<Format, 14> kFormats = {
    {{"const_string", {"value"}},
     {"any_text", {"excludes", "max_tokens"}},
     {"json_schema", {"json_schema"}},
     {"regex", {"pattern"}},
     {"grammar", {"grammar"}},
     {"sequence", {"elements"}},
     {"or", {"elements"}},
     {"optional", {"content"}},
     {"plus", {"content"}},
     {"star", {"content"}},
     {"repeat", {"content", "min", "max"}},
     {"tag", {"begin", "content", "end"}},
     {"triggered_tags", {"triggers", "tags", "excludes", "at_least_one", "stop_after_first"}},
     {"tags_with_separator", {"tags", "separator", "at_least_one", "stop_after_first"}}}};

class FormatCheck {
 public:
  explicit FormatCheck(std::string_view field) : field_(field) {}

  StatusOr<std::string> CheckTag(std::string_view text) {
    json::value root;
    StrictJsonError error;
    if (!ParseStrictJson(text, &root, &error, kMaxStructuralTagDepth))
      return Bad(StrCat("not valid JSON: ", error.message));
    json::value* format = root.is_object() ? root.get_object().if_contains("format") : nullptr;
    if (format == nullptr)
      return Bad(R"(must be an object {"type": "structural_tag", "format": {…}})");
    for (const auto& [key, value] : root.get_object()) {
      if (key != "format" && !(key == "type" && value == "structural_tag"))
        return Bad(StrCat("'", std::string_view(key).substr(0, 64), "' beside 'format' is not ",
                          key == "type" ? "'structural_tag'" : "supported"));
    }
    RETURN_IF_ERROR(Check(format));
    return json::serialize(json::object{{"format", *format}});
  }

 private:
  // Recursion is as deep as the JSON, which is bounded.
  Status Check(json::value* format, std::string_view type = "") {
    if (!format->is_object()) return Bad("a format must be an object");
    json::object& object = format->get_object();
    if (const json::value* given = object.if_contains("type"); given != nullptr) {
      if (!given->is_string() || (!type.empty() && given->get_string() != type))
        return Bad(StrCat("'type' must be ", type.empty() ? "a string" : "'tag'"));
      type = given->get_string();
    }
    const auto* known = std::ranges::find(kFormats, type, &Format::type);
    if (known == kFormats.end())
      return Bad(type.empty() ? std::string("a format has no 'type'")
                              : StrCat("the format '", type.substr(0, 64), "' is not supported"));
    for (const auto& [key, value] : object) {
      if (key != "type" &&
          std::ranges::find(known->keys, std::string_view(key)) == known->keys.end())
        return Bad(
            StrCat("'", std::string_view(key).substr(0, 64), "' of '", type, "' is not supported"));
    }
    const std::string around = tag_;
    if (known->type == "tag") RETURN_IF_ERROR(EnterTag(object));
    RETURN_IF_ERROR(CheckParts(&object));
    tag_ = around;
    return OkStatus();
  }

  Status Bad(std::string_view what) const {
    return absl::InvalidArgumentError(StrCat(Where(), ": ", what));
  }
  // The field, and the innermost tag.
  std::string Where() const {
    return tag_.empty() ? field_ : StrCat(field_, ": in the tag ", tag_);
  }

  Status EnterTag(const json::object& tag) {
    const json::value *begin = tag.if_contains("begin"), *end = tag.if_contains("end");
    if (begin == nullptr || !begin->is_string()) return Bad("'begin' of a tag must be a string");
    if (!begin->get_string().empty())
      tag_ = json::serialize(json::value(std::string_view(begin->get_string()).substr(0, 96)));
    if (end == nullptr || !(end->is_string() || end->is_array()))
      return Bad("'end' of a tag must be a string or an array of them");
    return OkStatus();
  }

  Status CheckParts(json::object* object) {
    for (auto& [key, value] : *object) {
      if (key != "json_schema" && HasZeroByte(value)) return Bad("has a zero byte");
      if (key == "content") RETURN_IF_ERROR(Check(&value));
      if (key == "pattern" || key == "grammar") RETURN_IF_ERROR(CheckRepetitions(value));
      if (key == "elements" || key == "tags") {
        if (!value.is_array()) return Bad(StrCat("'", std::string_view(key), "' must be an array"));
        for (json::value& inner : value.get_array())
          RETURN_IF_ERROR(Check(&inner, key == "tags" ? "tag" : ""));
      }
    }
    json::value* schema = object->if_contains("json_schema");
    if (schema == nullptr) return OkStatus();
    ASSIGN_OR_RETURN(const std::string checked, CheckJsonSchema(json::serialize(*schema), Where()));
    StrictJsonError error;
    if (!ParseStrictJson(checked, schema, &error)) return Bad(error.message);
    (*object)["max_whitespace_cnt"] = kMaxJsonBlanks;
    return OkStatus();
  }

  Status CheckRepetitions(const json::value& text) const {
    if (text.is_string() && HasHugeRepetition(text.get_string()))
      return Bad("repeats something more than 999999999 times");
    return OkStatus();
  }

  // Of texts and lists of them.
  static bool HasZeroByte(const json::value& value) {
    if (value.is_array()) return std::ranges::any_of(value.get_array(), HasZeroByte);
    return value.is_string() && value.get_string().find('\0') != json::string::npos;
  }

  const std::string field_;
  std::string tag_;  // how the innermost one begins, as JSON
};

}  // namespace

StatusOr<std::string> CheckStructuralTag(std::string_view text, std::string_view field) {
  return FormatCheck(field).CheckTag(text);
}

}  // namespace flotilla
