#include "router/api/chat_request.h"

#include <array>
#include <boost/json/serialize.hpp>
#include <utility>

#include "router/api/generate_check.h"
#include "router/api/output_format.h"
#include "router/api/request_fields.h"
#include "router/api/text_parts.h"

namespace flotilla {
namespace json = boost::json;
namespace {

using MaybeError = std::optional<ApiError>;

MaybeError ReadMessage(const json::value& value, const std::string& field, v1::ChatMessage* out) {
  if (!value.is_object()) return InvalidField(field, StrCat("'", field, "' must be an object."));
  FieldReader reader(value.get_object(), field + ".");
  const std::optional<std::string_view> role = reader.String("role");
  if (!role.has_value()) reader.Fail("role", "is missing");
  const auto name = reader.String("name");
  const auto call_id = reader.String("tool_call_id");
  if (reader.error().has_value()) return reader.error();
  // What an assistant thought has a name of its own with each server.
  for (const char* name : {"reasoning_content", "reasoning", "thinking"}) {
    const auto reasoning = reader.String(name);
    if (reasoning.has_value() && out->reasoning_content().empty())
      out->set_reasoning_content(std::string(*reasoning));
  }
  if (reader.error().has_value()) return reader.error();
  out->set_role(std::string(*role));
  if (name.has_value()) out->set_name(std::string(*name));
  if (call_id.has_value()) out->set_tool_call_id(std::string(*call_id));
  const json::value* calls = reader.Find("tool_calls");
  if (calls != nullptr && calls->is_array() && calls->get_array().empty()) calls = nullptr;
  if (calls != nullptr) {
    if (auto error = ReadToolCalls(*calls, field + ".tool_calls", out->mutable_tool_calls_json()))
      return error;
  }
  const json::value* content = reader.Find("content");
  if (content != nullptr)
    return ReadText(*content, field + ".content", kTextPart, out->mutable_content());
  if (calls == nullptr) reader.Fail("content", "is missing");
  return reader.error();
}

// Wishes of chat alone that no code fulfils yet.
constexpr std::array<const char*, 5> kNotBuilt = {"functions", "audio", "documents", "echo",
                                                  "add_special_tokens"};

MaybeError CheckChatNotBuilt(const json::object& body) {
  const auto wishes = [&](const char* name, const json::value& not_wished) {
    const json::value* value = body.if_contains(name);
    return value != nullptr && !IsNeutral(*value) && *value != not_wished;
  };
  if (wishes("chat_template", nullptr))
    return InvalidField("chat_template", "'chat_template' can't be set: the model's own is used.");
  if (wishes("function_call", "none"))
    return NotBuiltYet("function_call", "'function_call' is not built; use 'tool_choice'.");
  if (wishes("modalities", json::array{"text"}))
    return NotBuiltYet("modalities", "'modalities' must be [\"text\"]: there is nothing else.");
  const json::value* search = body.if_contains("web_search_options");
  if (search != nullptr && !search->is_null())  // {} is a wish, too
    return NotBuiltYet("web_search_options", "'web_search_options': nothing is searched here.");
  if (wishes("store", nullptr))
    return NotBuiltYet("store", "'store': answers are not stored here; leave it out.");
  const json::value* reasoning = body.if_contains("include_reasoning");
  if (reasoning != nullptr && *reasoning == false)
    return NotBuiltYet("include_reasoning",
                       "'include_reasoning': thoughts can't be left out; see "
                       "'chat_template_kwargs'.");
  return CheckNotBuilt(body, kNotBuilt);
}

void ReadMaxTokens(FieldReader* reader, CompletionRequest* request) {
  auto max_tokens = reader->Int("max_completion_tokens", INT32_MIN, INT32_MAX);
  const auto older = reader->Int("max_tokens", INT32_MIN, INT32_MAX);
  if (!max_tokens.has_value()) max_tokens = older;
  if (max_tokens.has_value())
    request->params.mutable_stopping()->set_max_tokens(static_cast<int>(*max_tokens));
}

void ReadLogprobs(FieldReader* reader, CompletionRequest* request) {
  const json::value* logprobs = reader->Find("logprobs");
  if (logprobs != nullptr && logprobs->is_number())
    reader->Fail("logprobs", "must be true or false: 'top_logprobs' says how many");
  const bool wanted = reader->Bool("logprobs").value_or(false);
  const auto top = reader->Int("top_logprobs", 0, 20);
  if (!wanted && top.value_or(0) > 0) reader->Fail("top_logprobs", "needs 'logprobs': true");
  if (!wanted) return;
  request->logprobs = static_cast<int>(top.value_or(0));
  request->params.mutable_output()->set_logprobs(*request->logprobs);
}

// A template that says nothing of how calls are written may have no place for tools either, and
// then the model would never hear of them.
MaybeError CheckToolsAreShown(const v1::ChatRequest& request, const std::string& prompt,
                              const ChatFormat& format) {
  v1::ChatRequest without = request;
  without.clear_tools_json();
  const StatusOr<std::string> text =
      RenderChat(without, format, LocalTime(), CallArguments::kObjects);
  if (!text.ok() || *text != prompt) return std::nullopt;
  return InvalidField("tools",
                      "'tools': the prompt is the same without them, since this model's chat "
                      "template shows none. Ask for a call by 'tool_choice', 'required' or a "
                      "function.");
}

}  // namespace

MaybeError ReadToolCalls(const json::value& calls, const std::string& field, std::string* out) {
  if (!calls.is_array()) return InvalidField(field, StrCat("'", field, "' must be an array."));
  for (const json::value& call : calls.get_array()) {
    const json::value* function =
        call.is_object() ? call.get_object().if_contains("function") : nullptr;
    if (function == nullptr || !function->is_object())
      return InvalidField(field, StrCat("'", field, "' must have objects with a 'function'."));
  }
  *out = json::serialize(calls);
  return std::nullopt;
}

namespace {

// reasoning_effort is a variable of the templates that know it; "none" is said to the others in
// their own way.
void AddEffort(std::string_view effort, json::object* kwargs) {
  kwargs->emplace("reasoning_effort", json::string(effort.data(), effort.size()));
  if (effort == "none") kwargs->emplace("enable_thinking", false);
}

MaybeError ReadChatKwargs(FieldReader* reader, v1::ChatRequest* out) {
  json::object own;
  if (const auto effort = reader->String("reasoning_effort")) AddEffort(*effort, &own);
  return ReadTemplateKwargs(reader, std::move(own), out);
}

}  // namespace

MaybeError ReadTemplateKwargs(FieldReader* reader, json::object own, v1::ChatRequest* out) {
  const json::object* given = reader->Object("chat_template_kwargs");
  if (reader->error().has_value()) return reader->error();
  json::object kwargs = given == nullptr ? json::object() : *given;
  for (auto& [name, value] : own) kwargs.emplace(name, std::move(value));
  if (!kwargs.empty()) out->set_template_kwargs_json(json::serialize(kwargs));
  return std::nullopt;
}

void AddDefaultKwargs(const ParserChoice& parsers, v1::ChatRequest* request) {
  if (parsers.default_chat_template_kwargs.empty()) return;
  const std::string& said = request->template_kwargs_json();
  json::value defaults, kwargs = json::object();
  // What is wrong with a request's own, RenderChat says.
  if (ParseJson(parsers.default_chat_template_kwargs, &defaults).has_value() ||
      (!said.empty() && ParseJson(said, &kwargs).has_value()) || !kwargs.is_object())
    return;
  for (auto& [name, value] : defaults.as_object())
    kwargs.get_object().emplace(name, std::move(value));
  request->set_template_kwargs_json(json::serialize(kwargs));
}

MaybeError ReadEffort(FieldReader* reader, const std::string& field, json::object* kwargs) {
  const json::object* object = reader->Object(field);
  if (object == nullptr) return reader->error();
  FieldReader fields(*object, field + ".");
  if (const auto effort = fields.String("effort")) AddEffort(*effort, kwargs);
  return fields.error();
}

MaybeError ReadThinkingBudget(const json::object& body, v1::ChatRequest* out) {
  FieldReader reader(body);
  if (auto v = reader.Int("thinking_token_budget", 0, INT32_MAX))
    out->set_thinking_token_budget(static_cast<int32_t>(*v));
  return reader.error();
}

MaybeError ReadConversation(const json::object& body, v1::ChatRequest* out) {
  FieldReader reader(body);
  const json::value* messages = reader.Find("messages");
  if (messages == nullptr) return InvalidField("messages", "'messages' is missing.");
  if (!messages->is_array()) return InvalidField("messages", "'messages' must be an array.");
  const json::array& array = messages->get_array();
  if (array.size() > static_cast<size_t>(kMaxChatMessages))
    return InvalidField("messages", StrCat("'messages' may have at most ", kMaxChatMessages,
                                           " messages, not ", array.size(), "."));
  size_t i = 0;
  for (const json::value& message : array) {
    if (auto error = ReadMessage(message, StrCat("messages[", i++, "]"), out->add_messages()))
      return error;
  }
  if (auto v = reader.Bool("add_generation_prompt")) out->set_add_generation_prompt(*v);
  out->set_continue_final_message(reader.Bool("continue_final_message").value_or(false));
  if (reader.error().has_value()) return reader.error();
  if (auto error = ReadThinkingBudget(body, out)) return error;
  return ReadChatKwargs(&reader, out);
}

std::variant<CompletionPrompt, ApiError> ChatPrompt(const v1::ChatRequest& request,
                                                    const ModelHandle& model,
                                                    CallArguments arguments) {
  if (!model.chat_format.ok()) {
    return InvalidField("model", StrCat("This model can't chat: ",
                                        std::string(model.chat_format.status().message()),
                                        ". Use /v1/completions or Generate."));
  }
  StatusOr<std::string> text = RenderChat(request, *model.chat_format, LocalTime(), arguments);
  if (!text.ok()) {
    // "field: what", as RenderChat promises.
    const std::string message(text.status().message());
    const size_t colon = message.find(": ");
    const std::string field = message.substr(0, colon);
    return InvalidField(field, StrCat("'", field, "' ", message.substr(colon + 2), "."));
  }
  if (auto error = CheckPromptBytes(*text, "messages", model)) return *error;
  // The template writes bos where the model wants it.
  StatusOr<std::vector<TokenId>> ids =
      model.tokenizer->Encode(*text, {.parse_special = true, .add_special = false});
  if (!ids.ok()) return InvalidField("messages", std::string(ids.status().message()));
  return CompletionPrompt{std::move(*text), std::move(*ids)};
}

namespace {

// What is asked of the output says where a thought may be, and how long it may get.
MaybeError MakeRoomForThought(const v1::ChatRequest& chat, CompletionRequest* request) {
  ReasoningStart* start = &request->syntax.reasoning;
  const ModelHandle& model = *request->model;
  std::optional<int32_t> budget;
  if (chat.has_thinking_token_budget()) budget = chat.thinking_token_budget();
  if (budget.has_value() && *budget < 0)
    return InvalidField("thinking_token_budget", "'thinking_token_budget' must be 0 or more.");
  if (budget.has_value() && !model.structural_tags && *start != ReasoningStart::kNone)
    return NotBuiltYet("thinking_token_budget",
                       "'thinking_token_budget' needs replicas of this router's version.");
  const v1::StopParams& stopping = request->params.stopping();
  if (budget >= (stopping.has_max_tokens() ? stopping.max_tokens() : INT32_MAX)) budget.reset();
  v1::StructuredOutput output = request->params.structured();
  if (model.structural_tags && LetThinkFirst(*start, budget, &output)) {
    if (request->structured_field.empty()) request->structured_field = "thinking_token_budget";
    *request->params.mutable_structured() = std::move(output);
  } else if (request->params.has_structured()) {
    *start = ReasoningStart::kNone;  // a grammar decides from the first token on what is written
  }
  return std::nullopt;
}

}  // namespace

MaybeError SetPrompt(Conversation conversation, const ParserChoice& parsers,
                     CompletionRequest* request) {
  const ModelHandle& model = *request->model;
  const std::string_view chat_template =
      model.chat_format.ok() ? model.chat_format->tool_use_source() : std::string_view();
  if (auto error = ApplyTools(std::move(conversation.tools), chat_template, parsers, request,
                              &conversation.request))
    return *error;
  AddDefaultKwargs(parsers, &conversation.request);
  auto prompt = ChatPrompt(conversation.request, model, CallArguments::kObjects);
  if (auto* error = std::get_if<ApiError>(&prompt)) {
    if (error->param == "messages") error->param = conversation.field;
    return *error;
  }
  CompletionPrompt& text =
      request->prompts.emplace_back(std::move(std::get<CompletionPrompt>(prompt)));
  // Only --tool-call-parser says that the model calls tools; a call that is demanded needs no more.
  const ToolSyntax syntax = request->syntax.tools.syntax;
  if (syntax != ToolSyntax::kNone && !IsDemanded(syntax) &&
      ToolSyntaxOf(chat_template, "auto") == ToolSyntax::kNone) {
    if (auto error = CheckToolsAreShown(conversation.request, text.text, *model.chat_format))
      return error;
  }
  request->syntax.reasoning =
      conversation.request.continue_final_message()
          ? ReasoningGoesOn(chat_template, conversation.request.messages().rbegin()->content(),
                            parsers)
          : ReasoningStartOf(chat_template, text.text, parsers);
  return MakeRoomForThought(conversation.request, request);
}

MaybeError SetPromptThatFits(Conversation conversation, const ParserChoice& parsers,
                             CompletionRequest* request) {
  const std::string field = conversation.field;
  if (auto error = SetPrompt(std::move(conversation), parsers, request)) return error;
  if (auto error = CheckStructured(request->params, *request->model, request->structured_field))
    return error;
  return FitToContext(request->prompts.back().ids.size(), *request->model, &request->params, field);
}

std::variant<CompletionRequest, ApiError> ParseChat(std::string_view body, const ModelTable& models,
                                                    const ParserChoice& parsers) {
  json::value root;
  CompletionRequest request;
  request.chat = true;
  if (auto error = OpenRequest(body, models, &root, &request)) return *error;
  const json::object& object = root.get_object();
  FieldReader reader(object);
  ReadMaxTokens(&reader, &request);
  ReadLogprobs(&reader, &request);
  if (auto error = ReadCommonFields(object, &reader, &request)) return *error;
  if (auto error = CheckChatNotBuilt(object)) return *error;
  if (auto error = CheckParams(request.params, *request.model)) return *error;
  Conversation conversation;
  if (auto error = ReadTools(object, &conversation.tools)) return *error;
  if (auto error = ReadConversation(object, &conversation.request)) return *error;
  if (auto error = SetPromptThatFits(std::move(conversation), parsers, &request)) return *error;
  return request;
}

}  // namespace flotilla
