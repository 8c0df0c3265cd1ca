#include "router/api/output_format.h"

#include <boost/json.hpp>
#include <optional>
#include <utility>

#include "common/base/strict_json.h"

namespace flotilla {
namespace json = boost::json;
namespace {

// What one grammar takes (v1::StructuredOutput::Choices).
constexpr int kMaxChoices = 1024;

json::value Text(std::string_view text) { return json::string(text.data(), text.size()); }

json::object OfType(const char* type, const char* key, json::value value) {
  return {{"type", type}, {key, std::move(value)}};
}
json::object ConstString(std::string_view text) {
  return OfType("const_string", "value", Text(text));
}
json::object Sequence(json::array elements) {
  return OfType("sequence", "elements", std::move(elements));
}
json::object OneOf(json::array elements) { return OfType("or", "elements", std::move(elements)); }
json::object AnyText() { return {{"type", "any_text"}}; }
json::object AnyObject() { return {{"type", "object"}, {"additionalProperties", true}}; }

std::optional<json::value> Parse(std::string_view text) {
  json::value value;
  StrictJsonError error;
  if (!ParseStrictJson(text, &value, &error, kMaxStructuralTagDepth)) return std::nullopt;
  return value;
}

std::optional<json::object> FormatOfChoice(const v1::StructuredOutput::Choices& choice) {
  if (choice.options_size() == 0 || choice.options_size() > kMaxChoices) return std::nullopt;
  json::array options;
  for (const std::string& option : choice.options()) {
    if (option.empty()) return std::nullopt;
    options.push_back(ConstString(option));
  }
  return OneOf(std::move(options));
}

std::optional<json::object> FormatOf(const v1::StructuredOutput& in) {
  switch (in.kind_case()) {
    case v1::StructuredOutput::kJsonSchema:
      if (auto schema = Parse(in.json_schema()))
        return OfType("json_schema", "json_schema", *std::move(schema));
      return std::nullopt;
    case v1::StructuredOutput::kJsonObject:
      if (!in.json_object()) return std::nullopt;
      return OfType("json_schema", "json_schema", AnyObject());
    case v1::StructuredOutput::kRegex:
      return OfType("regex", "pattern", Text(in.regex()));
    case v1::StructuredOutput::kEbnf:
      return OfType("grammar", "grammar", Text(in.ebnf()));
    case v1::StructuredOutput::kChoice:
      return FormatOfChoice(in.choice());
    case v1::StructuredOutput::kStructuralTag: {
      auto tag = Parse(in.structural_tag());
      json::value* format =
          tag && tag->is_object() ? tag->get_object().if_contains("format") : nullptr;
      if (format == nullptr || !format->is_object()) return std::nullopt;
      return std::move(format->get_object());
    }
    case v1::StructuredOutput::KIND_NOT_SET:
      break;
  }
  return std::nullopt;
}

void SetFormat(json::object format, v1::StructuredOutput* out) {
  out->set_structural_tag(
      json::serialize(json::object{{"type", "structural_tag"}, {"format", std::move(format)}}));
}

// In free text anywhere in the format.
void Exclude(std::string_view text, json::value* format) {
  if (format->is_array()) {
    for (json::value& inner : format->get_array()) Exclude(text, &inner);
  }
  if (!format->is_object()) return;
  json::object& object = format->get_object();
  for (const char* key : {"content", "elements", "tags"}) {
    if (json::value* inner = object.if_contains(key)) Exclude(text, inner);
  }
  const json::value* type = object.if_contains("type");
  if (type == nullptr || (*type != "any_text" && *type != "triggered_tags")) return;
  json::value& excludes = object.emplace("excludes", json::array()).first->value();
  if (excludes.is_array()) excludes.get_array().push_back(Text(text));
}

// How a call is written around its arguments, and what is between two. A list has brackets around
// its calls, and a tag in front.
struct CallText {
  std::string begin, after_name, end, separator;
  bool is_list = false;
};
CallText TextOf(ToolSyntax syntax) {
  const ToolTags tags = TagsOf(syntax);
  switch (syntax) {
    case ToolSyntax::kHermes:
      return {StrCat(kCallTag, "\n{\"name\": \""), "\", \"arguments\": ", StrCat("}\n", kCallEnd),
              "\n"};
    case ToolSyntax::kMistralNamed:
      return {std::string(tags.begin[0]), "[ARGS]", "", ""};
    case ToolSyntax::kLlama3:
      return {"{\"name\": \"", "\", \"parameters\": ", "}", "; "};
    default:
      return {"{\"name\": \"", "\", \"arguments\": ", "}", ", ", /*is_list=*/true};
  }
}

json::object Tag(std::string_view begin, json::object content, std::string_view end) {
  return {
      {"type", "tag"}, {"begin", Text(begin)}, {"content", std::move(content)}, {"end", Text(end)}};
}

json::object Calls(json::array tags, std::string_view separator, bool only_one) {
  return {{"type", "tags_with_separator"},
          {"tags", std::move(tags)},
          {"separator", Text(separator)},
          {"at_least_one", true},
          {"stop_after_first", only_one}};
}

// A tag for each tool, or, of lists, for each way to begin one.
json::array TagsOfCalls(const ToolSet& tools, ToolSyntax syntax, const CallText& text) {
  json::array tags;
  for (const ToolSet::Tool& tool : tools.tools) {
    json::object arguments = tool.strict ? AsObjectSchema(tool.parameters) : AnyObject();
    tags.push_back(Tag(StrCat(text.begin, tool.name, text.after_name),
                       OfType("json_schema", "json_schema", std::move(arguments)), text.end));
  }
  if (!text.is_list) return tags;
  json::array lists;
  const json::object calls = Calls(std::move(tags), text.separator, !tools.parallel);
  for (const std::string_view begin : TagsOf(syntax).begin)
    lists.push_back(
        Tag(begin.ends_with('[') ? std::string(begin) : StrCat(begin, "["), calls, "]"));
  return lists;
}

}  // namespace

bool LetThinkFirst(ReasoningStart start, std::optional<int32_t> budget,
                   v1::StructuredOutput* structured) {
  if (start == ReasoningStart::kNone) return false;
  const bool asks = structured->kind_case() != v1::StructuredOutput::KIND_NOT_SET;
  if (!asks && !budget.has_value()) return false;
  std::optional<json::object> answer = asks ? FormatOf(*structured) : AnyText();
  if (!answer.has_value()) return false;
  const bool may = start == ReasoningStart::kTagged;
  json::array parts;
  if (may) parts.push_back(ConstString(kThinkTag));
  json::object& text = parts.emplace_back(AnyText()).get_object();
  text["excludes"] = json::array{Text(kThinkEnd)};
  if (budget.has_value()) text["max_tokens"] = *budget;
  parts.push_back(ConstString(kThinkEnd));
  parts.push_back(OfType("regex", "pattern", "[ \\n]{0,2}"));
  json::object thought = Sequence(std::move(parts));
  json::value rest = *std::move(answer);
  if (may) {
    thought = OfType("optional", "content", std::move(thought));
    Exclude(kThinkTag, &rest);  // or a text that may be anything would be a thought, too
  }
  SetFormat(Sequence({std::move(thought), std::move(rest)}), structured);
  return true;
}

void HoldCalls(const ToolSet& tools, ToolSyntax syntax, v1::StructuredOutput* structured) {
  const bool asks = structured->kind_case() != v1::StructuredOutput::KIND_NOT_SET;
  std::optional<json::object> answer = FormatOf(*structured);
  if (asks && !answer.has_value()) return;
  const CallText text = TextOf(syntax);
  json::array tags = TagsOfCalls(tools, syntax, text);
  if (!asks && syntax != ToolSyntax::kLlama3) {
    json::array triggers;
    for (const std::string_view tag : TagsOf(syntax).begin) triggers.push_back(Text(tag));
    SetFormat({{"type", "triggered_tags"},
               {"triggers", std::move(triggers)},
               {"tags", std::move(tags)},
               {"stop_after_first", !tools.parallel}},
              structured);
    return;
  }
  // A call comes first thing, so that a text begins otherwise, and no tag is spelled out.
  if (!asks) {
    json::object begin = OfType("regex", "pattern", "[^{;< \\n\\r\\t]");
    answer = OfType("optional", "content", Sequence({std::move(begin), AnyText()}));
  }
  json::object calls = Calls(std::move(tags), text.separator, text.is_list || !tools.parallel);
  SetFormat(OneOf({std::move(calls), *std::move(answer)}), structured);
}

}  // namespace flotilla
