#include "router/grpc/grpc_chat.h"

#include <boost/json/object.hpp>
#include <utility>

#include "absl/strings/str_replace.h"
#include "common/base/strict_json.h"

namespace flotilla {
namespace json = boost::json;
namespace {

using MaybeError = std::optional<ApiError>;

// Sets (*body)[key] to what the field's text says; an empty text is an absent field.
MaybeError ParseField(const std::string& text, const std::string& field, std::string_view key,
                      json::object* body) {
  if (text.empty()) return std::nullopt;
  json::value value;
  StrictJsonError error;
  if (!ParseStrictJson(text, &value, &error))
    return InvalidField(field, StrCat("'", field, "' is not valid JSON: ", error.message, "."));
  (*body)[key] = std::move(value);
  return std::nullopt;
}

// The fields that HTTP has under other names.
std::string NameAsGrpc(const std::string& quoted) {
  return absl::StrReplaceAll(quoted, {{"'tools'", "'tools_json'"},
                                      {"'tools[", "'tools_json["},
                                      {"'tool_choice'", "'tool_choice_json'"},
                                      {"'tool_choice.", "'tool_choice_json."}});
}

std::string NameFieldAsGrpc(const std::string& field) {
  const std::string quoted = NameAsGrpc(StrCat("'", field, "'"));
  return quoted.substr(1, quoted.size() - 2);
}

MaybeError InGrpcsNames(MaybeError error) {
  if (!error.has_value()) return error;
  error->message = NameAsGrpc(error->message);
  error->param = NameFieldAsGrpc(error->param);
  return error;
}

MaybeError ReadAsHttp(const v1::ChatRequest& chat, Conversation* conversation) {
  json::object body;
  if (auto error = ParseField(chat.tools_json(), "tools_json", "tools", &body)) return error;
  if (auto error = ParseField(chat.tool_choice_json(), "tool_choice_json", "tool_choice", &body))
    return error;
  if (chat.has_parallel_tool_calls()) body["parallel_tool_calls"] = chat.parallel_tool_calls();
  conversation->request.clear_tools_json();  // ApplyTools shows those that were read
  if (auto error = InGrpcsNames(ReadTools(body, &conversation->tools))) return error;
  for (int i = 0; i < chat.messages_size(); ++i) {
    const std::string field = StrCat("messages[", i, "].tool_calls_json");
    json::object calls;
    if (auto error = ParseField(chat.messages(i).tool_calls_json(), field, "calls", &calls))
      return error;
    if (calls.empty()) continue;
    std::string* shown = conversation->request.mutable_messages(i)->mutable_tool_calls_json();
    if (auto error = ReadToolCalls(calls["calls"], field, shown)) return error;
  }
  return std::nullopt;
}

}  // namespace

MaybeError SetChatPrompt(const v1::ChatRequest& chat, const ParserChoice& parsers,
                         CompletionRequest* request) {
  if (AsksAsHttp(chat) == nullptr) {
    std::optional<v1::ChatRequest> with_defaults;
    if (!parsers.default_chat_template_kwargs.empty())
      AddDefaultKwargs(parsers, &with_defaults.emplace(chat));
    auto prompt = ChatPrompt(with_defaults.has_value() ? *with_defaults : chat, *request->model,
                             CallArguments::kAsTheyAre);
    if (auto* error = std::get_if<ApiError>(&prompt)) return *error;
    request->prompts.push_back(std::move(std::get<CompletionPrompt>(prompt)));
    return std::nullopt;
  }
  const std::string structured = request->params.has_structured() ? "base.structured" : "";
  request->structured_field = structured;
  Conversation conversation{chat, {}};
  if (auto error = ReadAsHttp(chat, &conversation)) return error;
  if (auto error = InGrpcsNames(SetPrompt(std::move(conversation), parsers, request))) return error;
  // What a replica says of base.structured as it came names the very field already.
  const bool as_it_came =
      request->structured_field == structured &&
      request->params.structured().kind_case() == chat.base().structured().kind_case();
  request->structured_field = as_it_came ? "" : NameFieldAsGrpc(request->structured_field);
  return std::nullopt;
}

}  // namespace flotilla
