#include "scheduler_proc/grammar/grammar_spec.h"

#include <algorithm>
#include <array>
#include <boost/json.hpp>
#include <span>
#include <utility>

#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "common/base/strict_json.h"
#include "common/base/utf8.h"
#include "scheduler_proc/grammar/disjoint_schemas.h"
#include "scheduler_proc/grammar/schema_rewrites.h"
#include "scheduler_proc/grammar/structural_tag.h"

namespace flotilla {
namespace {

namespace json = boost::json;

Status Bad(std::string_view field, std::string_view what) {
  return absl::InvalidArgumentError(StrCat(field, ": ", what));
}

// xgrammar ignores these without a word. (What it ignores with a warning, the sandbox refuses.)
constexpr std::array<std::string_view, 12> kNotSupported = {"not",
                                                            "if",
                                                            "then",
                                                            "else",
                                                            "dependentRequired",
                                                            "dependentSchemas",
                                                            "dependencies",
                                                            "contains",
                                                            "minContains",
                                                            "maxContains",
                                                            "$dynamicRef",
                                                            "$recursiveRef"};
// Only the first of these that is there counts, so nothing that restricts may stand beside it. (But
// a type beside enum and const: see CheckType.)
constexpr std::array<std::string_view, 6> kAlone = {"$ref",  "const", "enum",
                                                    "anyOf", "oneOf", "allOf"};
constexpr std::array<std::string_view, 26> kRestricts = {"$ref",
                                                         "anyOf",
                                                         "oneOf",
                                                         "allOf",
                                                         "enum",
                                                         "const",
                                                         "properties",
                                                         "required",
                                                         "items",
                                                         "prefixItems",
                                                         "pattern",
                                                         "minimum",
                                                         "maximum",
                                                         "minLength",
                                                         "maxLength",
                                                         "minItems",
                                                         "maxItems",
                                                         "minProperties",
                                                         "maxProperties",
                                                         "patternProperties",
                                                         "propertyNames",
                                                         "additionalProperties",
                                                         "exclusiveMinimum",
                                                         "exclusiveMaximum",
                                                         "multipleOf",
                                                         "format"};
// Without a type these say nothing to xgrammar, unless another keyword tells it the type.
constexpr std::array<std::string_view, 9> kNeedType = {
    "pattern", "format",           "minLength",        "maxLength", "minimum",
    "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"};
constexpr std::array<std::string_view, 5> kNeedObject = {
    "required", "patternProperties", "propertyNames", "minProperties", "maxProperties"};
constexpr std::array<std::string_view, 2> kNeedArray = {"minItems", "maxItems"};
constexpr std::array<std::string_view, 3> kTellObject = {"properties", "additionalProperties",
                                                         "unevaluatedProperties"};
constexpr std::array<std::string_view, 3> kTellArray = {"items", "prefixItems", "unevaluatedItems"};
// Where schemas are inside a schema.
constexpr std::array<std::string_view, 4> kMapsOfSchemas = {"properties", "patternProperties",
                                                            "$defs", "definitions"};
constexpr std::array<std::string_view, 6> kSchemas = {
    "additionalProperties", "unevaluatedProperties", "unevaluatedItems", "propertyNames", "items",
    "additionalItems"};
constexpr std::array<std::string_view, 4> kListsOfSchemas = {"anyOf", "oneOf", "allOf",
                                                             "prefixItems"};

const json::value* Find(const json::object& object, std::string_view key) {
  return object.if_contains({key.data(), key.size()});
}
json::value* Find(json::object* object, std::string_view key) {
  return object->if_contains({key.data(), key.size()});
}

bool HasAny(const json::object& object, std::span<const std::string_view> keys) {
  return std::ranges::any_of(keys, [&](auto key) { return Find(object, key) != nullptr; });
}

// Whether a pattern asks for characters that JSON writes with a backslash: xgrammar would write
// them without. What a class excludes ("[^\"]") may be any.
bool NeedsEscapes(std::string_view pattern) {
  bool excluded = false;
  for (size_t i = 0; i < pattern.size(); ++i) {
    const char c = pattern[i];
    if (c == '[') excluded = pattern.substr(i + 1).starts_with('^');
    if (c == ']') excluded = false;
    const bool escape = c == '\\' && i + 1 < pattern.size();
    const char escaped = escape ? pattern[++i] : ' ';
    if (excluded) continue;
    if (c == '"' || static_cast<unsigned char>(c) < 0x20) return true;
    if (std::string_view("\"\\nrtfv").find(escaped) != std::string_view::npos) return true;
  }
  return false;
}

class SchemaCheck {
 public:
  SchemaCheck(std::string_view field, const json::value& root) : field_(field), disjoint_(root) {}

  // Recursion is as deep as the JSON, which ParseStrictJson bounds.
  Status Check(json::value* schema) {
    if (schema->is_bool()) return OkStatus();
    if (!schema->is_object()) return Refuse("a schema must be an object or a boolean");
    json::object& object = schema->get_object();
    if (json::value* names = Find(&object, "propertyNames")) AddTypeOfNames(names);
    RETURN_IF_ERROR(CheckKeywords(object));
    for (std::string_view key : kMapsOfSchemas) {
      json::value* map = Find(&object, key);
      if (map == nullptr) continue;
      if (!map->is_object()) return Refuse(StrCat("'", key, "' must be an object"));
      for (auto& [name, inner] : map->get_object())
        RETURN_IF_ERROR(CheckAt(StrCat(key, "/", Shown(name)), &inner));
    }
    for (std::string_view key : kSchemas) {
      json::value* inner = Find(&object, key);
      if (inner != nullptr) RETURN_IF_ERROR(CheckAt(key, inner));
    }
    for (std::string_view key : kListsOfSchemas) {
      json::value* list = Find(&object, key);
      if (list == nullptr) continue;
      if (!list->is_array() || list->get_array().empty())
        return Refuse(StrCat("'", key, "' must be an array with at least one schema"));
      size_t i = 0;
      for (json::value& inner : list->get_array())
        RETURN_IF_ERROR(CheckAt(StrCat(key, "/", i++), &inner));
    }
    const StatusOr<bool> added = required_keys_.AddTo(&object);
    if (!added.ok()) return Refuse(std::string(added.status().message()));
    rewritten_ = RewriteShortString(&object) || *added || rewritten_;
    RewriteOneOf(&object);
    return OkStatus();
  }
  // Some schema was written in another way.
  bool rewritten() const { return rewritten_; }

 private:
  // What is `step` further inside.
  Status CheckAt(std::string_view step, json::value* schema) {
    const size_t around = path_.size();
    StrAppend(&path_, "/", step);
    RETURN_IF_ERROR(Check(schema));
    path_.resize(around);
    return OkStatus();
  }

  // A name as a step of a JSON pointer; a long one is cut, between two characters.
  static std::string Shown(std::string_view name) {
    constexpr size_t kMostBytes = 64;
    const size_t end =
        FindInvalidUtf8(name.substr(0, kMostBytes)).value_or(std::min(name.size(), kMostBytes));
    const std::string step =
        absl::StrReplaceAll(std::string(name.substr(0, end)), {{"~", "~0"}, {"/", "~1"}});
    return end < name.size() ? StrCat(step, "…") : step;
  }

  // With the place, as a reference would name it.
  Status Refuse(std::string_view what) const {
    return Bad(field_, path_.empty() ? std::string(what) : StrCat(what, " (at #", path_, ")"));
  }

  // A key is a string, and says so to xgrammar.
  void AddTypeOfNames(json::value* names) {
    if (!names->is_object() || Find(names->get_object(), "type") != nullptr ||
        HasAny(names->get_object(), kAlone))
      return;
    names->get_object().emplace("type", "string");
    rewritten_ = true;
  }

  Status CheckKeywords(const json::object& object) const {
    for (std::string_view key : kNotSupported) {
      if (Find(object, key) != nullptr) return Refuse(StrCat("'", key, "' is not supported"));
    }
    const json::value* unique = Find(object, "uniqueItems");
    if (unique != nullptr && !(unique->is_bool() && !unique->get_bool()))
      return Refuse("'uniqueItems' is not supported");
    const json::value* pattern = Find(object, "pattern");
    if (pattern != nullptr && pattern->is_string() &&
        NeedsEscapes({pattern->get_string().data(), pattern->get_string().size()}))
      return Refuse("'pattern' with quotes, backslashes or control characters is not supported");
    for (std::string_view other : {"format", "minLength", "maxLength"}) {
      if (pattern != nullptr && Find(object, other) != nullptr)
        return Refuse(StrCat("'pattern' beside '", other, "' is not supported"));
    }
    RETURN_IF_ERROR(CheckType(object));
    for (std::string_view key : kAlone) {
      if (Find(object, key) == nullptr) continue;
      for (std::string_view other : kRestricts) {
        if (other != key && Find(object, other) != nullptr)
          return Refuse(StrCat("'", other, "' beside '", key, "' is not supported"));
      }
    }
    return OkStatus();
  }

  Status CheckType(const json::object& object) const {
    const json::value* type = Find(object, "type");
    if (type == nullptr) {
      const bool is_object = HasAny(object, kTellObject), is_array = HasAny(object, kTellArray);
      const auto needs = [&](std::span<const std::string_view> keys) {
        return HasAny(object, keys) && !HasAny(object, kAlone);
      };
      if (needs(kNeedType) || (needs(kNeedObject) && !is_object) ||
          (needs(kNeedArray) && (is_object || !is_array)))
        return Refuse("a schema with keywords of one type must state its 'type'");
      return OkStatus();
    }
    for (std::string_view key : {"$ref", "anyOf", "oneOf", "allOf"}) {
      if (Find(object, key) != nullptr)
        return Refuse(StrCat("'type' beside '", key, "' is not supported"));
    }
    const json::value* constant = Find(object, "const");
    const json::value* values = Find(object, "enum");
    const auto is_of_type = [&](const json::value& value) { return IsOfType(value, *type); };
    if ((constant != nullptr && !is_of_type(*constant)) ||
        (values != nullptr && values->is_array() &&
         !std::ranges::all_of(values->get_array(), is_of_type)))
      return Refuse("'const' or 'enum' has a value that is not of its 'type'");
    return OkStatus();
  }

  // xgrammar takes few of those that say the same as anyOf: none that refer to definitions.
  void RewriteOneOf(json::object* object) {
    const json::value* branches = Find(*object, "oneOf");
    if (branches == nullptr || !disjoint_.AreDisjoint(branches->get_array())) return;
    json::value moved = std::move(*Find(object, "oneOf"));
    object->erase("oneOf");
    object->emplace("anyOf", std::move(moved));
    rewritten_ = true;
  }

  const std::string_view field_;
  std::string path_;  // of the schema that is checked, "/properties/a"
  DisjointSchemas disjoint_;
  RequiredKeys required_keys_;
  bool rewritten_ = false;
};

// One alternative a choice, quoted as EBNF wants it.
std::string QuoteEbnf(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      out.push_back('\\');
      out.push_back(c);
    } else if (byte < 0x20 || byte == 0x7f) {
      absl::StrAppendFormat(&out, "\\u%04x", byte);
    } else {
      out.push_back(c);
    }
  }
  out.push_back('"');
  return out;
}

StatusOr<GrammarSpec> ReadChoice(const v1::StructuredOutput::Choices& in, size_t max_bytes) {
  const char* const field = GrammarField(GrammarKind::kChoice);
  if (in.options_size() < 1 || in.options_size() > kMaxGrammarChoices)
    return Bad(field,
               StrCat(in.options_size(), " options; 1 … ", kMaxGrammarChoices, " are allowed"));
  size_t bytes = 0;
  for (const std::string& option : in.options()) bytes += option.size();
  if (bytes > max_bytes)
    return Bad(field, StrCat(bytes, " bytes; at most ", max_bytes, " are allowed"));
  GrammarSpec spec{GrammarKind::kChoice, "root ::= "};
  for (int i = 0; i < in.options_size(); ++i) {
    if (in.options(i).empty()) return Bad(StrCat(field, ".options[", i, "]"), "empty");
    StrAppend(&spec.text, i == 0 ? "" : " | ", QuoteEbnf(in.options(i)));
  }
  return spec;
}

StatusOr<GrammarSpec> ReadText(GrammarKind kind, const std::string& text, size_t max_bytes) {
  const char* const field = GrammarField(kind);
  if (text.empty()) return Bad(field, "empty");
  if (text.size() > max_bytes)
    return Bad(field, StrCat(text.size(), " bytes; at most ", max_bytes, " are allowed"));
  if (text.find('\0') != std::string::npos) return Bad(field, "has a zero byte");
  if (kind == GrammarKind::kJsonSchema || kind == GrammarKind::kStructuralTag) {
    const auto check = kind == GrammarKind::kJsonSchema ? CheckJsonSchema : CheckStructuralTag;
    ASSIGN_OR_RETURN(std::string checked, check(text, field));
    return GrammarSpec{kind, std::move(checked)};
  }
  if (HasHugeRepetition(text)) return Bad(field, "repeats something more than 999999999 times");
  return GrammarSpec{kind, text};
}

}  // namespace

bool HasHugeRepetition(std::string_view text) {
  constexpr size_t kMostDigits = 9;
  size_t digits = 0;
  bool counts = false;  // in braces, so far with nothing but digits and commas
  for (const char c : text) {
    counts = c == '{' || (counts && (c == ',' || (c >= '0' && c <= '9')));
    digits = counts && c >= '0' && c <= '9' ? digits + 1 : 0;
    if (digits > kMostDigits) return true;
  }
  return false;
}

const char* GrammarField(GrammarKind kind) {
  switch (kind) {
    case GrammarKind::kJsonSchema:
      return "structured.json_schema";
    case GrammarKind::kJsonObject:
      return "structured.json_object";
    case GrammarKind::kRegex:
      return "structured.regex";
    case GrammarKind::kEbnf:
      return "structured.ebnf";
    case GrammarKind::kChoice:
      return "structured.choice";
    case GrammarKind::kStructuralTag:
      return "structured.structural_tag";
  }
  return "structured";
}

StatusOr<std::string> CheckJsonSchema(std::string_view schema, std::string_view field) {
  json::value root;
  StrictJsonError error;
  if (!ParseStrictJson(schema, &root, &error)) {
    return Bad(field, error.duplicate_key.empty()
                          ? StrCat("not valid JSON: ", error.message)
                          : StrCat("has the key '", error.duplicate_key.substr(0, 64), "' twice"));
  }
  SchemaCheck check(field, root);
  RETURN_IF_ERROR(check.Check(&root));
  return check.rewritten() ? json::serialize(root) : std::string(schema);
}

StatusOr<GrammarSpec> ReadStructured(const v1::StructuredOutput& in, size_t max_bytes) {
  switch (in.kind_case()) {
    case v1::StructuredOutput::kJsonSchema:
      return ReadText(GrammarKind::kJsonSchema, in.json_schema(), max_bytes);
    case v1::StructuredOutput::kRegex:
      return ReadText(GrammarKind::kRegex, in.regex(), max_bytes);
    case v1::StructuredOutput::kEbnf:
      return ReadText(GrammarKind::kEbnf, in.ebnf(), max_bytes);
    case v1::StructuredOutput::kChoice:
      return ReadChoice(in.choice(), max_bytes);
    case v1::StructuredOutput::kStructuralTag:
      return ReadText(GrammarKind::kStructuralTag, in.structural_tag(), max_bytes);
    case v1::StructuredOutput::kJsonObject:
      if (!in.json_object()) return Bad("structured.json_object", "must be true");
      return GrammarSpec{GrammarKind::kJsonObject, ""};
    case v1::StructuredOutput::KIND_NOT_SET:
      break;
  }
  return Bad("structured", "none of its fields is set");
}

}  // namespace flotilla
