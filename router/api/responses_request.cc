#include "router/api/responses_request.h"

#include <algorithm>
#include <array>
#include <boost/json/serialize.hpp>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_replace.h"
#include "common/rpc/choices.h"
#include "common/rpc/render_chat.h"
#include "router/api/chat_request.h"
#include "router/api/generate_check.h"
#include "router/api/message_list.h"
#include "router/api/request_fields.h"
#include "router/api/structured_fields.h"
#include "router/api/text_parts.h"
#include "router/api/tools_fields.h"

namespace flotilla {
namespace json = boost::json;
namespace {

using MaybeError = std::optional<ApiError>;

constexpr std::array<const char*, 6> kResponsesNotBuilt = {
    "conversation", "background", "prompt", "max_tool_calls", "top_logprobs", "context_management"};

// `include` and `store` ask for more than there ever is here (results of the server's own tools, a
// response to come back to), so that most have no effect.
MaybeError CheckResponseWishes(const json::object& body) {
  if (auto error = CheckNotBuilt(body, kResponsesNotBuilt)) return error;
  FieldReader reader(body);
  if (reader.Find("previous_response_id") != nullptr)
    return NotBuiltYet("previous_response_id",
                       "'previous_response_id': responses are not stored here; send the whole "
                       "conversation.");
  if (reader.String("truncation").value_or("disabled") != "disabled")
    return NotBuiltYet("truncation", "'truncation' other than 'disabled' is not built yet.");
  reader.Bool("store");
  const json::value* include = reader.Find("include");
  if (include != nullptr && !include->is_array())
    return InvalidField("include", "'include' must be an array.");
  if (include != nullptr &&
      std::ranges::count(include->get_array(), "message.output_text.logprobs") > 0)
    return NotBuiltYet("include",
                       "'include': log-probabilities are not built here; "
                       "/v1/chat/completions has them.");
  return reader.error();
}

// How much to think is said to the template. A summary of it is not made.
MaybeError ReadResponseKwargs(const json::object& body, v1::ChatRequest* out) {
  FieldReader reader(body);
  json::object own;
  if (auto error = ReadEffort(&reader, "reasoning", &own)) return error;
  return ReadTemplateKwargs(&reader, std::move(own), out);
}

MaybeError ReadMessageItem(const json::object& item, const std::string& field, MessageList* list) {
  FieldReader reader(item, field + ".");
  const auto role = reader.String("role");
  if (!role.has_value()) reader.Fail("role", "is missing");
  const json::value* content = reader.Find("content");
  if (content == nullptr) reader.Fail("content", "is missing");
  if (!reader.error().has_value() && *role != "user" && *role != "assistant" && *role != "system" &&
      *role != "developer")
    reader.Fail("role", "must be user, assistant, system or developer");
  if (reader.error().has_value()) return reader.error();
  std::string text;
  if (auto error = ReadText(*content, field + ".content", kResponseParts, &text)) return error;
  list->AddText(*role, text);
  return std::nullopt;
}

MaybeError ReadCall(const json::object& item, const std::string& field, MessageList* list) {
  FieldReader reader(item, field + ".");
  const auto id = reader.String("call_id"), name = reader.String("name");
  const auto arguments = reader.String("arguments");
  if (!id.has_value()) reader.Fail("call_id", "is missing");
  if (!name.has_value()) reader.Fail("name", "is missing");
  if (!arguments.has_value()) reader.Fail("arguments", "is missing");
  if (reader.error().has_value()) return reader.error();
  list->AddCall(*id, *name, json::string(arguments->data(), arguments->size()));
  return std::nullopt;
}

MaybeError ReadCallOutput(const json::object& item, const std::string& field, MessageList* list) {
  FieldReader reader(item, field + ".");
  const auto id = reader.String("call_id");
  if (!id.has_value()) reader.Fail("call_id", "is missing");
  const json::value* output = reader.Find("output");
  if (output == nullptr) reader.Fail("output", "is missing");
  if (reader.error().has_value()) return reader.error();
  std::string text;
  if (auto error = ReadText(*output, field + ".output", kResponseParts, &text)) return error;
  list->AddToolResult(*id, text);
  return std::nullopt;
}

MaybeError ReadReasoning(const json::object& item, const std::string& field, MessageList* list) {
  static constexpr const char* kParts[] = {"reasoning_text"};
  FieldReader reader(item, field + ".");
  const json::value* content = reader.Find("content");
  if (content == nullptr) return reader.error();
  std::string text;
  if (auto error = ReadText(*content, field + ".content", kParts, &text)) return error;
  list->AddReasoning(text);
  return std::nullopt;
}

MaybeError ReadItem(const json::value& value, const std::string& field, MessageList* list) {
  if (!value.is_object()) return InvalidField(field, StrCat("'", field, "' must be an object."));
  const json::object& item = value.get_object();
  FieldReader reader(item, field + ".");
  const std::string_view type = reader.String("type").value_or("message");
  if (reader.error().has_value()) return reader.error();
  if (type == "message") return ReadMessageItem(item, field, list);
  if (type == "function_call") return ReadCall(item, field, list);
  if (type == "function_call_output") return ReadCallOutput(item, field, list);
  if (type == "reasoning") return ReadReasoning(item, field, list);
  return NotBuiltYet(
      field + ".type",
      StrCat("'", field, ".type' '", std::string(type.substr(0, 64)), "' is not built yet."));
}

MaybeError ReadInput(const json::object& body, MessageList* list) {
  FieldReader reader(body);
  if (const auto instructions = reader.String("instructions"))
    list->AddText("system", *instructions);
  const json::value* input = reader.Find("input");
  if (reader.error().has_value()) return reader.error();
  if (input == nullptr) return InvalidField("input", "'input' is missing.");
  if (input->is_string()) {
    list->AddText("user", {input->get_string().data(), input->get_string().size()});
    return std::nullopt;
  }
  if (!input->is_array()) return InvalidField("input", "'input' must be a string or an array.");
  if (input->get_array().size() > static_cast<size_t>(kMaxChatMessages))
    return InvalidField("input", StrCat("'input' may have at most ", kMaxChatMessages, " items."));
  size_t i = 0;
  for (const json::value& item : input->get_array()) {
    if (auto error = ReadItem(item, StrCat("input[", i++, "]"), list)) return error;
  }
  return std::nullopt;
}

// Agents offer these whether the server has them or not, and the model is not shown them: tools of
// the server's own, and of the client's those whose input is no JSON.
constexpr std::array<std::string_view, 12> kToolsPassedOver = {
    "web_search",       "web_search_preview",   "file_search", "code_interpreter",
    "image_generation", "computer_use_preview", "mcp",         "namespace",
    "tool_search",      "local_shell",          "shell",       "custom"};

// {"type": "function", "name": …, "description": …, "parameters": …}: flat, unlike chat's.
MaybeError ReadFlatTool(const json::object& tool, const std::string& field, ToolSet* out) {
  FieldReader fields(tool, field + ".");
  const auto type = fields.String("type");
  if (!type.has_value()) fields.Fail("type", "is missing");
  if (fields.error().has_value()) return fields.error();
  if (std::ranges::find(kToolsPassedOver, *type) != kToolsPassedOver.end()) return std::nullopt;
  if (type != "function")
    return InvalidField(field + ".type", StrCat("'", field, ".type' must be 'function'."));
  if (auto error = AddFunction(tool, field, out)) return error;
  out->shown.push_back(ShownTool(tool, "parameters"));
  return std::nullopt;
}

MaybeError ReadFlatTools(const json::object& body, ToolSet* out) {
  if (auto error = ReadToolList(body, ReadFlatTool, out)) return error;
  FieldReader reader(body);
  out->parallel = reader.Bool("parallel_tool_calls").value_or(true);
  const json::value* choice = reader.Find("tool_choice");
  if (reader.error().has_value()) return reader.error();
  return choice == nullptr ? std::nullopt : ReadToolChoice(*choice, ToolChoiceForm::kFlat, out);
}

// As OpenAI's: an answer repeats them.
MaybeError CheckMetadata(const json::object* metadata) {
  constexpr size_t kMostPairs = 16, kMostKeyBytes = 64, kMostValueBytes = 512;
  if (metadata == nullptr) return std::nullopt;
  const bool fits = metadata->size() <= kMostPairs &&
                    std::all_of(metadata->begin(), metadata->end(), [](const auto& pair) {
                      return pair.key().size() <= kMostKeyBytes && pair.value().is_string() &&
                             pair.value().get_string().size() <= kMostValueBytes;
                    });
  if (fits) return std::nullopt;
  return InvalidField(
      "metadata", StrCat("'metadata' must be at most ", kMostPairs, " pairs of a key of at most ",
                         kMostKeyBytes, " bytes and a string of at most ", kMostValueBytes, "."));
}

MaybeError ReadResponseFields(const json::object& body, CompletionRequest* request) {
  FieldReader reader(body);
  if (const auto v = reader.Int("max_output_tokens", INT32_MIN, INT32_MAX)) {
    if (*v < 1) reader.Fail("max_output_tokens", "must be an integer of at least 1");
    request->params.mutable_stopping()->set_max_tokens(static_cast<int>(*v));
  }
  if (auto error = CheckMetadata(reader.Object("metadata"))) return error;
  if (auto error = ReadCommonFields(body, &reader, request)) return error;
  if (auto error = ReadTextFormat(&reader, "text", request)) return error;
  if (auto error = CheckResponseWishes(body)) return error;
  if (auto error = CheckParams(request->params, *request->model)) return error;
  if (ChoicesOf(request->params).num_candidates > 1)
    return InvalidField("n", "'n' and 'best_of' must be 1: a response is one choice.");
  return std::nullopt;
}

// The model's default, as its file has it.
double Shown(float value) {
  double shown = value;
  return absl::SimpleAtod(absl::StrCat(value), &shown) ? shown : value;
}

// What an answer repeats of its request.
json::object Repeated(const json::object& body, const CompletionRequest& request) {
  const v1::SamplingParams& sampling = request.params.sampling();
  json::object out;
  const auto copy = [&](const char* name, const json::value& absent) {
    const json::value* value = body.if_contains(name);
    out[name] = value == nullptr || value->is_null() ? absent : *value;
  };
  copy("instructions", nullptr);
  copy("max_output_tokens", nullptr);
  copy("metadata", json::object());
  copy("parallel_tool_calls", true);
  copy("temperature", sampling.has_temperature() ? Shown(sampling.temperature()) : 1.0);
  copy("text", {{"format", {{"type", "text"}}}});
  copy("tool_choice", "auto");
  copy("tools", json::array());
  copy("top_p", sampling.has_top_p() ? Shown(sampling.top_p()) : 1.0);
  out["background"] = false;
  out["previous_response_id"] = nullptr;
  const json::value* reasoning = body.if_contains("reasoning");
  const json::value* effort = reasoning == nullptr || !reasoning->is_object()
                                  ? nullptr
                                  : reasoning->get_object().if_contains("effort");
  out["reasoning"] = {{"effort", effort == nullptr ? nullptr : *effort}, {"summary", nullptr}};
  out["store"] = false;
  out["truncation"] = "disabled";
  out["model"] = request.model->name;
  return out;
}

}  // namespace

std::variant<CompletionRequest, ApiError> ParseResponses(std::string_view body,
                                                         const ModelTable& models,
                                                         const ParserChoice& parsers) {
  json::value root;
  CompletionRequest request;
  request.chat = true;
  if (auto error = OpenRequest(body, models, &root, &request)) return *error;
  const json::object& object = root.get_object();
  if (auto error = ReadResponseFields(object, &request)) return *error;
  Conversation conversation;
  conversation.field = "input";
  if (auto error = ReadFlatTools(object, &conversation.tools)) return *error;
  MessageList list(&conversation.request);
  if (auto error = ReadInput(object, &list)) return *error;
  list.Finish();
  FoldSystemTurns(&conversation.request);
  CombineTurns(&conversation.request);
  if (auto error = ReadThinkingBudget(object, &conversation.request)) return *error;
  if (auto error = ReadResponseKwargs(object, &conversation.request)) return *error;
  if (auto error = SetPromptThatFits(std::move(conversation), parsers, &request)) {
    if (error->param == "max_tokens") {
      error->param = "max_output_tokens";
      absl::StrReplaceAll({{"'max_tokens'", "'max_output_tokens'"}}, &error->message);
    }
    return *error;
  }
  request.repeated = json::serialize(Repeated(object, request));
  return request;
}

}  // namespace flotilla
