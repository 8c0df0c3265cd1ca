#include "router/api/structured_fields.h"

#include <algorithm>
#include <array>
#include <boost/json/serialize.hpp>
#include <utility>

#include "router/base/json_reader.h"

namespace flotilla {
namespace json = boost::json;
namespace {

using MaybeError = std::optional<ApiError>;

MaybeError Must(const std::string& field, std::string_view what) {
  return InvalidField(field, StrCat("'", field, "' must be ", what, "."));
}

// An object or a boolean; vLLM takes its text too.
MaybeError SetSchema(const json::value& value, const std::string& field,
                     v1::StructuredOutput* out) {
  if (value.is_string()) {
    out->set_json_schema(value.get_string().data(), value.get_string().size());
  } else if (value.is_object() || value.is_bool()) {
    out->set_json_schema(json::serialize(value));
  } else {
    return Must(field, "a JSON schema");
  }
  return std::nullopt;
}

MaybeError SetRegex(const json::value& value, const std::string& field, v1::StructuredOutput* out) {
  if (!value.is_string()) return Must(field, "a string");
  out->set_regex(value.get_string().data(), value.get_string().size());
  return std::nullopt;
}

MaybeError SetGrammar(const json::value& value, const std::string& field,
                      v1::StructuredOutput* out) {
  if (!value.is_string()) return Must(field, "a string");
  out->set_ebnf(value.get_string().data(), value.get_string().size());
  return std::nullopt;
}

MaybeError SetChoice(const json::value& value, const std::string& field,
                     v1::StructuredOutput* out) {
  if (!value.is_array()) return Must(field, "an array of strings");
  out->mutable_choice();
  for (const json::value& option : value.get_array()) {
    if (!option.is_string()) return Must(field, "an array of strings");
    out->mutable_choice()->add_options(option.get_string().data(), option.get_string().size());
  }
  return std::nullopt;
}

MaybeError SetJsonObject(const json::value& value, const std::string& field,
                         v1::StructuredOutput* out) {
  if (!value.is_bool()) return Must(field, "true or false");
  if (value.get_bool()) out->set_json_object(true);
  return std::nullopt;
}

// {"structures": [{"begin", "schema", "end"}, …], "triggers": […]}, as it was before there were
// formats.
json::object FromStructures(const json::object& old) {
  json::array tags;
  for (const json::value& structure : old.at("structures").as_array()) {
    const json::object& from = structure.as_object();
    tags.push_back({{"type", "tag"},
                    {"begin", from.at("begin")},
                    {"content", {{"type", "json_schema"}, {"json_schema", from.at("schema")}}},
                    {"end", from.at("end")}});
  }
  return {{"type", "triggered_tags"}, {"triggers", old.at("triggers")}, {"tags", std::move(tags)}};
}

// xgrammar's object; vLLM takes its text.
MaybeError SetStructuralTag(const json::value& value, const std::string& field,
                            v1::StructuredOutput* out) {
  if (value.is_string()) {
    const std::string_view text = value.get_string();
    json::value parsed;
    if (!ParseJson(text, &parsed).has_value() && parsed.is_object() &&
        parsed.get_object().contains("structures"))
      return SetStructuralTag(parsed, field, out);
    out->set_structural_tag(std::string(text));
    return std::nullopt;
  }
  if (!value.is_object()) return Must(field, "a structural tag, an object with a 'format'");
  json::object tag = value.get_object();
  if (tag.contains("structures")) {
    try {
      tag = {{"format", FromStructures(tag)}};
    } catch (const std::exception&) {
      return Must(field + ".structures",
                  "an array of objects with 'begin', 'schema' and 'end', beside 'triggers'");
    }
  }
  out->set_structural_tag(json::serialize(tag));
  return std::nullopt;
}

struct Form {
  const char* name;  // in structured_outputs
  // At the top: vLLM's before 0.12, SGLang's and llama.cpp's names. Null: none.
  std::array<const char*, 3> at_top;
  MaybeError (*set)(const json::value& value, const std::string& field, v1::StructuredOutput* out);
};
constexpr std::array<Form, 6> kForms = {
    {{"json", {"guided_json", "json_schema"}, SetSchema},
     {"regex", {"guided_regex", "regex"}, SetRegex},
     {"choice", {"guided_choice"}, SetChoice},
     {"grammar", {"guided_grammar", "ebnf", "grammar"}, SetGrammar},
     {"json_object", {}, SetJsonObject},
     {"structural_tag", {nullptr, "structural_tag"}, SetStructuralTag}}};
constexpr const char* kFormNames =
    "'json', 'regex', 'choice', 'grammar', 'json_object' or 'structural_tag'";

class Reader {
 public:
  explicit Reader(CompletionRequest* request) : request_(*request) {}

  MaybeError ReadResponseFormat(const json::object& body) {
    FieldReader reader(body);
    const json::object* format = reader.Object("response_format");
    if (format == nullptr) return reader.error();
    bool is_schema = false;
    if (auto error = ReadType(*format, "response_format.", &is_schema)) return error;
    if (!is_schema) return std::nullopt;
    FieldReader fields(*format, "response_format.");
    const json::object* named = fields.Object("json_schema");
    if (named == nullptr) fields.Fail("json_schema", "is missing");
    if (fields.error().has_value()) return fields.error();
    return ReadNamedSchema(*named, "response_format.json_schema.");
  }

  MaybeError ReadFlatFormat(const json::object& format, const std::string& prefix) {
    bool is_schema = false;
    if (auto error = ReadType(format, prefix, &is_schema)) return error;
    return is_schema ? ReadNamedSchema(format, prefix) : std::nullopt;
  }

  MaybeError ReadForms(const json::object& body) {
    FieldReader reader(body);
    const json::object* outputs = reader.Object("structured_outputs");
    if (reader.error().has_value()) return reader.error();
    if (outputs != nullptr) {
      if (auto error = CheckKeys(*outputs)) return error;
    }
    for (const Form& form : kForms) {
      for (const char* name : form.at_top) {
        const json::value* value = name == nullptr ? nullptr : reader.Find(name);
        // Others' names are left empty by clients that wish nothing.
        if (value == nullptr || (name != form.at_top[0] && IsNeutral(*value))) continue;
        if (auto error = Set(form.set, *value, name)) return error;
      }
      const json::value* value = outputs == nullptr ? nullptr : outputs->if_contains(form.name);
      if (value == nullptr || value->is_null()) continue;
      if (auto error = Set(form.set, *value, StrCat("structured_outputs.", form.name)))
        return error;
    }
    return std::nullopt;
  }

 private:
  // What is misspelt or not known here would leave the output free.
  static MaybeError CheckKeys(const json::object& outputs) {
    if (outputs.empty()) return Must("structured_outputs", StrCat("an object with ", kFormNames));
    for (const auto& [key, value] : outputs) {
      const std::string_view name = key;
      if (value.is_null() || value == false) continue;
      if (std::ranges::find(kForms, name, &Form::name) != kForms.end()) continue;
      const std::string field = StrCat("structured_outputs.", std::string(name.substr(0, 64)));
      return InvalidField(field, StrCat("'", field, "' is not known: 'structured_outputs' takes ",
                                        kFormNames, "."));
    }
    return std::nullopt;
  }

  // All that need no schema are done then.
  MaybeError ReadType(const json::object& format, const std::string& prefix, bool* is_schema) {
    FieldReader fields(format, prefix);
    const std::optional<std::string_view> type = fields.String("type");
    if (!type.has_value()) fields.Fail("type", "is missing");
    if (fields.error().has_value()) return fields.error();
    *is_schema = *type == "json_schema";
    if (*type == "json_object") {
      // llama.cpp's clients have the schema there.
      const json::value* schema = fields.Find("schema");
      if (schema != nullptr && !IsNeutral(*schema))
        return Set(SetSchema, *schema, prefix + "schema");
      return Set(SetJsonObject, true, prefix.substr(0, prefix.size() - 1));
    }
    if (*type == "structural_tag")
      return Set(SetStructuralTag, format, prefix.substr(0, prefix.size() - 1));
    if (!*is_schema && *type != "text")
      fields.Fail("type", "must be 'text', 'json_object', 'json_schema' or 'structural_tag'");
    return fields.error();
  }

  // {"name": …, "description": …, "schema": …, "strict": …}. It is always strict here.
  MaybeError ReadNamedSchema(const json::object& named, const std::string& prefix) {
    FieldReader fields(named, prefix);
    fields.String("name");
    fields.String("description");
    fields.Bool("strict");
    const json::value* schema = fields.Find("schema");
    if (schema == nullptr) fields.Fail("schema", "is missing");
    if (schema == nullptr || fields.error().has_value()) return fields.error();
    return Set(SetSchema, *schema, prefix + "schema");
  }

  template <typename Setter>
  MaybeError Set(Setter set, const json::value& value, const std::string& field) {
    const bool taken = !request_.structured_field.empty();
    v1::StructuredOutput structured;
    if (auto error = set(value, field, &structured)) return error;
    if (structured.kind_case() == v1::StructuredOutput::KIND_NOT_SET) return std::nullopt;
    if (taken)
      return InvalidField(
          field, StrCat("'", field, "' can't be set beside '", request_.structured_field, "'."));
    *request_.params.mutable_structured() = std::move(structured);
    request_.structured_field = field;
    return std::nullopt;
  }

  CompletionRequest& request_;
};

}  // namespace

MaybeError ReadStructuredOutput(const json::object& body, CompletionRequest* request) {
  Reader reader(request);
  if (auto error = reader.ReadResponseFormat(body)) return error;
  return reader.ReadForms(body);
}

MaybeError ReadTextFormat(FieldReader* reader, const char* field, CompletionRequest* request) {
  const json::object* outer = reader->Object(field);
  if (outer == nullptr) return reader->error();
  const std::string prefix = StrCat(field, ".");
  FieldReader inner(*outer, prefix);
  const json::object* format = inner.Object("format");
  if (inner.error().has_value()) return inner.error();
  if (format != nullptr) {
    if (auto error = Reader(request).ReadFlatFormat(*format, prefix + "format.")) return error;
  }
  return reader->error();
}

void NameAsClient(const std::string& field, ApiError* error) {
  constexpr std::string_view kOurs = "structured";
  const size_t colon = error->message.find(": ");
  if (field.empty() || !error->message.starts_with(kOurs) || colon == std::string::npos) return;
  error->message = StrCat("'", field, "': ", error->message.substr(colon + 2), ".");
  error->param = field;
}

}  // namespace flotilla
