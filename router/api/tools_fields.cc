#include "router/api/tools_fields.h"

#include <algorithm>
#include <boost/json/serialize.hpp>
#include <utility>

#include "router/answer/named_call_scanner.h"
#include "router/api/output_format.h"
#include "router/base/json_reader.h"

namespace flotilla {
namespace json = boost::json;
namespace {

using MaybeError = std::optional<ApiError>;

MaybeError MustBe(const std::string& field, std::string_view what) {
  return InvalidField(field, StrCat("'", field, "' must be ", what, "."));
}

bool IsToolName(std::string_view name) {
  return !name.empty() && name.size() <= kMaxToolNameBytes &&
         std::ranges::all_of(name, IsToolNameCharacter);
}

// One entry of `tools`, {"type": "function", "function": {…}}.
MaybeError ReadTool(const json::object& tool, const std::string& field, ToolSet* out) {
  FieldReader reader(tool, field + ".");
  const auto type = reader.String("type");
  if (!reader.error().has_value() && type != "function") reader.Fail("type", "must be 'function'");
  const json::object* function = reader.Object("function");
  if (function == nullptr) reader.Fail("function", "is missing");
  if (function == nullptr || reader.error().has_value()) return reader.error();
  if (auto error = AddFunction(*function, field + ".function", out)) return error;
  out->shown.push_back(tool);
  return std::nullopt;
}

// Whether what is under the keyword is a value, not a schema.
bool IsData(std::string_view key) {
  return key == "enum" || key == "const" || key == "default" || key == "examples";
}
// Whether it has schemas by names that clients choose.
bool IsMapOfSchemas(std::string_view key) {
  return key == "properties" || key == "patternProperties" || key == "$defs" ||
         key == "definitions" || key == "dependentSchemas";
}

// The references that begin at the schema's root find it at `root`. Recursion is as deep as the
// JSON, which ParseJson bounds.
void MoveReferences(std::string_view root, json::value* schema) {
  if (schema->is_array()) {
    for (json::value& inner : schema->get_array()) MoveReferences(root, &inner);
  }
  if (!schema->is_object()) return;
  for (auto& [key, value] : schema->get_object()) {
    if (key == "$ref" && value.is_string()) {
      json::string& ref = value.get_string();
      if (ref == "#" || ref.starts_with("#/")) ref.replace(0, 1, root);
    } else if (IsMapOfSchemas(key) && value.is_object()) {
      for (auto& [name, inner] : value.get_object()) MoveReferences(root, &inner);
    } else if (!IsData(key)) {
      MoveReferences(root, &value);
    }
  }
}

// [{"name": "f", "parameters": {…}}, …]. The parameters are definitions of their tools' names,
// which need no escapes in a reference.
json::object ListSchema(const ToolSet& tools) {
  json::array any_of;
  json::object definitions;
  for (const ToolSet::Tool& tool : tools.tools) {
    const std::string at = StrCat("#/$defs/", tool.name);
    json::value parameters = AsObjectSchema(tool.parameters);
    MoveReferences(at, &parameters);
    definitions.emplace(tool.name, std::move(parameters));
    any_of.push_back(json::object{
        {"type", "object"},
        {"properties", {{"name", {{"const", tool.name}}}, {"parameters", {{"$ref", at}}}}},
        {"required", {"name", "parameters"}}});
  }
  json::object list = {{"type", "array"}, {"minItems", 1}};
  if (!tools.parallel) list["maxItems"] = 1;
  list["items"] = json::object{{"anyOf", std::move(any_of)}};
  list["$defs"] = std::move(definitions);
  return list;
}

constexpr size_t kMaxSchemaDepth = 16;

// What "#/$defs/a" names in the root; null: nothing.
const json::value* Referred(const json::value& root, const json::value& reference) {
  const json::string* text = reference.if_string();
  boost::system::error_code unknown;
  if (text == nullptr || !text->starts_with("#/")) return nullptr;
  return root.find_pointer(std::string_view(*text).substr(1), unknown);
}

// What values a schema takes.
struct Kinds {
  bool text = false;
  bool null = false;
  bool other = false;

  void Add(const json::value& type) {
    (type == "string" ? text : type == "null" ? null : other) = true;
  }
};

// Of a schema within `root`, whose definitions it may name. References may go round: `depth` ends
// it.
void AddKinds(const json::value& root, const json::value& schema, size_t depth, Kinds* kinds) {
  if (!schema.is_object() || depth == 0) return;
  const auto add_value = [&](const json::value& one) {
    (one.is_string() ? kinds->text : one.is_null() ? kinds->null : kinds->other) = true;
  };
  for (const auto& [key, value] : schema.get_object()) {
    if (key == "type" && value.is_array()) {
      for (const json::value& type : value.get_array()) kinds->Add(type);
    } else if (key == "type") {
      kinds->Add(value);
    } else if ((key == "anyOf" || key == "oneOf" || key == "allOf") && value.is_array()) {
      for (const json::value& inner : value.get_array()) AddKinds(root, inner, depth - 1, kinds);
    } else if (key == "enum" && value.is_array()) {
      for (const json::value& one : value.get_array()) add_value(one);
    } else if (key == "const") {
      add_value(value);
    } else if (key == "$ref") {
      const json::value* named = Referred(root, value);
      if (named == nullptr) kinds->other = true;
      if (named != nullptr) AddKinds(root, *named, depth - 1, kinds);
    } else if (key == "properties" || key == "items") {
      kinds->other = true;
    }
  }
}

ParameterTypes TypesOfParameters(json::object parameters) {
  ParameterTypes types;
  const json::value schema = std::move(parameters);
  const json::value* properties = schema.get_object().if_contains("properties");
  if (properties == nullptr || !properties->is_object()) return types;
  for (const auto& [name, property] : properties->get_object()) {
    Kinds kinds;
    AddKinds(schema, property, kMaxSchemaDepth, &kinds);
    if (kinds.other) types.emplace(name, ParameterType::kJson);
    if (!kinds.other && kinds.null) types.emplace(name, ParameterType::kTextOrNull);
  }
  return types;
}

// Why there is no searching the output for calls, and what can be done instead.
ApiError NotRead(std::string_view chat_template, const ParserChoice& parsers) {
  const bool off = parsers.tool_call_parser == "none";
  const char* why = off ? "calls stay text here, by --tool-call-parser none"
                    : MentionsTools(chat_template)
                        ? "this model's chat template has calls written in a way that is not read"
                        : "this model's chat template knows none";
  return InvalidField("tools", StrCat("'tools': ", why,
                                      ". Ask for a call by 'tool_choice', 'required' or a function",
                                      off ? "." : "; or see --tool-call-parser."));
}

// The grammar of a choice that has to be made.
void Demand(const ToolSet& tools, CompletionRequest* request) {
  ToolCallOptions* read = &request->syntax.tools;
  json::object schema;
  if (tools.choice == ToolSet::Choice::kNamed) {
    const auto tool = std::ranges::find(tools.tools, tools.named, &ToolSet::Tool::name);
    schema = AsObjectSchema(tool->parameters);
    read->syntax = ToolSyntax::kArguments;
    read->names = {tool->name};
    request->structured_field = tool->field;
  } else {
    schema = ListSchema(tools);
    read->syntax = ToolSyntax::kList;
    request->structured_field = "tools";
  }
  request->params.mutable_structured()->set_json_schema(json::serialize(schema));
}

}  // namespace

// A schema says which keywords it uses by the type; one without any takes every value, and
// arguments are an object.
json::object AsObjectSchema(json::object schema) {
  for (const char* key : {"type", "$ref", "anyOf", "oneOf", "allOf", "enum", "const"}) {
    if (schema.contains(key)) return schema;
  }
  schema["type"] = "object";
  return schema;
}

MaybeError ReadToolList(const json::object& body, ReadOneTool read_one, ToolSet* out) {
  const json::value* tools = FieldReader(body).Find("tools");
  if (tools == nullptr) return std::nullopt;
  if (!tools->is_array()) return MustBe("tools", "an array");
  size_t i = 0;
  for (const json::value& tool : tools->get_array()) {
    const std::string field = StrCat("tools[", i++, "]");
    if (!tool.is_object()) return MustBe(field, "an object");
    if (auto error = read_one(tool.get_object(), field, out)) return error;
  }
  return std::nullopt;
}

MaybeError AddFunction(const json::object& function, const std::string& field, ToolSet* out) {
  FieldReader reader(function, field + ".");
  const auto name = reader.String("name");
  if (!name.has_value()) reader.Fail("name", "is missing");
  if (!reader.error().has_value() && !IsToolName(*name))
    reader.Fail("name", StrCat("must be 1 to ", kMaxToolNameBytes, " of A-Z a-z 0-9 _ - ."));
  reader.String("description");
  const bool strict = reader.Bool("strict").value_or(false);
  const json::object* parameters = reader.Object("parameters");
  if (reader.error().has_value()) return reader.error();
  if (std::ranges::find(out->tools, *name, &ToolSet::Tool::name) != out->tools.end())
    reader.Fail("name", "is another tool's too");
  if (out->tools.size() == kMaxTools)
    return InvalidField("tools", StrCat("'tools' may have at most ", kMaxTools, " tools."));
  out->tools.push_back({std::string(*name), field + ".parameters",
                        parameters == nullptr ? json::object() : *parameters, strict});
  return reader.error();
}

MaybeError NameTool(std::string_view name, const std::string& field, ToolSet* out) {
  if (std::ranges::find(out->tools, name, &ToolSet::Tool::name) == out->tools.end())
    return InvalidField(field, StrCat("'", field, "' names no function of 'tools'."));
  out->choice = ToolSet::Choice::kNamed;
  out->named = std::string(name);
  return std::nullopt;
}

MaybeError ReadTools(const json::object& body, ToolSet* out) {
  if (auto error = ReadToolList(body, ReadTool, out)) return error;
  FieldReader reader(body);
  out->parallel = reader.Bool("parallel_tool_calls").value_or(true);
  if (reader.error().has_value()) return reader.error();
  const json::value* choice = reader.Find("tool_choice");
  return choice == nullptr ? std::nullopt : ReadToolChoice(*choice, ToolChoiceForm::kNested, out);
}

json::value ShownTool(const json::object& tool, const char* schema) {
  json::object function;
  for (const char* key : {"name", "description", "parameters"}) {
    const json::value* value =
        tool.if_contains(std::string_view(key) == "parameters" ? schema : key);
    if (value != nullptr && !value->is_null()) function[key] = *value;
  }
  return json::object{{"type", "function"}, {"function", std::move(function)}};
}

MaybeError ReadToolChoice(const json::value& value, ToolChoiceForm form, ToolSet* out) {
  const std::string field = "tool_choice";
  if (value.is_string()) {
    const json::string& word = value.get_string();
    if (word == "auto") out->choice = ToolSet::Choice::kAuto;
    if (word == "none") out->choice = ToolSet::Choice::kNone;
    if (word == "required") out->choice = ToolSet::Choice::kRequired;
    if (word == "auto" || word == "none" || word == "required") return std::nullopt;
  }
  const auto what = "'auto', 'none', 'required' or an object of the type 'function'";
  if (!value.is_object()) return MustBe(field, what);
  FieldReader reader(value.get_object(), "tool_choice.");
  if (reader.String("type") != "function") return MustBe(field, what);
  const bool nested = form == ToolChoiceForm::kNested;
  const json::object* function = nested ? reader.Object("function") : &value.get_object();
  if (function == nullptr) reader.Fail("function", "is missing");
  if (reader.error().has_value()) return reader.error();
  const std::string prefix = nested ? "tool_choice.function." : "tool_choice.";
  FieldReader inner(*function, prefix);
  const auto name = inner.String("name");
  if (!name.has_value()) inner.Fail("name", "is missing");
  if (inner.error().has_value()) return inner.error();
  return NameTool(*name, prefix + "name", out);
}

MaybeError ApplyTools(ToolSet tools, std::string_view chat_template, const ParserChoice& parsers,
                      CompletionRequest* request, v1::ChatRequest* conversation) {
  using Choice = ToolSet::Choice;
  if (tools.choice == Choice::kNone) return std::nullopt;
  if (tools.tools.empty()) {
    if (tools.choice == Choice::kAuto) return std::nullopt;
    return InvalidField("tool_choice", "'tool_choice' asks for a call, and there are no 'tools'.");
  }
  ToolCallOptions* read = &request->syntax.tools;
  conversation->set_tools_json(json::serialize(tools.shown));
  for (const ToolSet::Tool& tool : tools.tools) read->names.push_back(tool.name);
  if (!tools.parallel) read->max_calls = 1;
  read->short_ids = HasShortIds(chat_template);
  if (tools.choice != Choice::kAuto) {
    Demand(tools, request);
    return std::nullopt;
  }
  read->syntax = ToolSyntaxOf(chat_template, parsers.tool_call_parser);
  if (read->syntax == ToolSyntax::kNone) return NotRead(chat_template, parsers);
  const bool asks = request->params.has_structured();
  if (read->syntax == ToolSyntax::kQwen3Coder) {
    if (asks)
      return NotBuiltYet("tools", StrCat("'tools' beside '", request->structured_field,
                                         "' is not built for calls as this model writes them."));
    for (ToolSet::Tool& tool : tools.tools)
      read->parameters.emplace(tool.name, TypesOfParameters(std::move(tool.parameters)));
    return std::nullopt;
  }
  if (!asks && std::ranges::none_of(tools.tools, &ToolSet::Tool::strict)) return std::nullopt;
  if (!request->model->structural_tags) {
    if (!asks) return std::nullopt;
    return NotBuiltYet("tools", StrCat("'tools' beside '", request->structured_field,
                                       "' needs replicas of this router's version."));
  }
  if (!asks) request->structured_field = "tools";
  read->first = asks || read->syntax == ToolSyntax::kLlama3;
  HoldCalls(tools, read->syntax, request->params.mutable_structured());
  return std::nullopt;
}

}  // namespace flotilla
