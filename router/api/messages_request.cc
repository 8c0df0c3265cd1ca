#include "router/api/messages_request.h"

#include <algorithm>
#include <boost/json/serialize.hpp>
#include <utility>

#include "common/rpc/choices.h"
#include "common/rpc/render_chat.h"
#include "router/api/chat_request.h"
#include "router/api/generate_check.h"
#include "router/api/message_list.h"
#include "router/api/request_fields.h"
#include "router/api/structured_fields.h"
#include "router/api/text_parts.h"

namespace flotilla {
namespace json = boost::json;
namespace {

using MaybeError = std::optional<ApiError>;

MaybeError Missing(const FieldReader& reader, const std::string& field) {
  if (reader.error().has_value()) return reader.error();
  return InvalidField(field, StrCat("'", field, "' is missing."));
}

MaybeError ReadToolUse(const json::object& block, const std::string& field, MessageList* list) {
  FieldReader reader(block, field + ".");
  const auto id = reader.String("id"), name = reader.String("name");
  const json::object* input = reader.Object("input");
  if (!id.has_value()) return Missing(reader, field + ".id");
  if (!name.has_value()) return Missing(reader, field + ".name");
  if (input == nullptr) return Missing(reader, field + ".input");
  list->AddCall(*id, *name, *input);
  return std::nullopt;
}

MaybeError ReadToolResult(const json::object& block, const std::string& field, MessageList* list) {
  FieldReader reader(block, field + ".");
  const auto id = reader.String("tool_use_id");
  if (!id.has_value()) return Missing(reader, field + ".tool_use_id");
  std::string text;
  if (const json::value* content = reader.Find("content")) {
    if (auto error = ReadText(*content, field + ".content", kTextPart, &text)) return error;
  }
  list->AddToolResult(*id, text);
  return std::nullopt;
}

void AppendLine(std::string_view line, std::string* text) {
  if (!text->empty()) text->push_back('\n');
  text->append(line);
}

// A text file. Others would be read by the server's own tools.
MaybeError ReadDocument(const json::object& block, const std::string& field, std::string* text) {
  FieldReader reader(block, field + ".");
  const auto title = reader.String("title");
  const json::object* source = reader.Object("source");
  if (source == nullptr) return Missing(reader, field + ".source");
  FieldReader fields(*source, field + ".source.");
  const auto type = fields.String("type"), data = fields.String("data");
  if (type != "text")
    return InvalidField(field + ".source.type",
                        StrCat("'", field,
                               ".source.type' must be text: this model takes no other "
                               "files."));
  if (!data.has_value()) return Missing(fields, field + ".source.data");
  if (title.has_value()) AppendLine(*title, text);
  AppendLine(*data, text);
  return std::nullopt;
}

// One block of a message. Text is collected, since a message's texts are one for the template.
MaybeError ReadBlock(const json::object& block, const std::string& field, std::string* text,
                     MessageList* list) {
  FieldReader reader(block, field + ".");
  const auto type = reader.String("type");
  if (!type.has_value()) return Missing(reader, field + ".type");
  if (*type == "tool_use") return ReadToolUse(block, field, list);
  if (*type == "tool_result") return ReadToolResult(block, field, list);
  if (*type == "document") return ReadDocument(block, field, text);
  if (*type == "redacted_thinking") return std::nullopt;
  if (*type == "thinking") {
    const auto thinking = reader.String("thinking");
    if (!thinking.has_value()) return Missing(reader, field + ".thinking");
    list->AddReasoning(*thinking);
    return std::nullopt;
  }
  if (*type != "text")
    return InvalidField(field + ".type",
                        StrCat("'", field,
                               ".type' must be text, thinking, tool_use, tool_result or document: "
                               "this model takes no images."));
  const auto piece = reader.String("text");
  if (!piece.has_value()) return Missing(reader, field + ".text");
  AppendLine(*piece, text);
  return std::nullopt;
}

// Claude Code's, another one in each request: a cached prefix would end in front of it.
constexpr std::string_view kBillingHeader = "x-anthropic-billing-header:";

MaybeError ReadSystem(const json::value& content, const std::string& field, MessageList* list) {
  std::string text;
  if (auto error = ReadText(content, field, kTextPart, &text)) return error;
  if (text.starts_with(kBillingHeader)) {
    text.erase(0, std::min(text.find('\n'), text.size() - 1) + 1);
    if (text.empty()) return std::nullopt;
  }
  list->AddText("system", text);
  return std::nullopt;
}

// Results of tools come before what the user says about them, calls after what the model says.
MaybeError ReadTurn(const json::value& value, const std::string& field, MessageList* list) {
  if (!value.is_object()) return InvalidField(field, StrCat("'", field, "' must be an object."));
  FieldReader reader(value.get_object(), field + ".");
  const auto role = reader.String("role");
  if (!role.has_value()) return Missing(reader, field + ".role");
  if (*role != "user" && *role != "assistant" && *role != "system")
    return InvalidField(field + ".role",
                        StrCat("'", field, ".role' must be user, assistant or system."));
  const json::value* content = reader.Find("content");
  if (content == nullptr) return Missing(reader, field + ".content");
  if (*role == "system") return ReadSystem(*content, field + ".content", list);
  if (content->is_string()) {
    list->AddText(*role, {content->get_string().data(), content->get_string().size()});
    return std::nullopt;
  }
  if (!content->is_array())
    return InvalidField(field + ".content",
                        StrCat("'", field, ".content' must be a string or an array of blocks."));
  v1::ChatRequest blocks;
  MessageList others(&blocks);
  std::string text;
  size_t i = 0;
  for (const json::value& block : content->get_array()) {
    const std::string name = StrCat(field, ".content[", i++, "]");
    if (!block.is_object()) return InvalidField(name, StrCat("'", name, "' must be an object."));
    if (auto error = ReadBlock(block.get_object(), name, &text, &others)) return error;
  }
  others.Finish();
  list->AddTurn(*role, text, std::move(blocks));
  return std::nullopt;
}

MaybeError ReadMessages(const json::object& body, MessageList* list) {
  FieldReader reader(body);
  if (const json::value* system = reader.Find("system")) {
    if (auto error = ReadSystem(*system, "system", list)) return error;
  }
  const json::value* messages = reader.Find("messages");
  if (messages == nullptr) return Missing(reader, "messages");
  if (!messages->is_array()) return InvalidField("messages", "'messages' must be an array.");
  const json::array& array = messages->get_array();
  if (array.size() > static_cast<size_t>(kMaxChatMessages))
    return InvalidField("messages",
                        StrCat("'messages' may have at most ", kMaxChatMessages, " messages."));
  size_t i = 0;
  for (const json::value& message : array) {
    if (auto error = ReadTurn(message, StrCat("messages[", i++, "]"), list)) return error;
  }
  return std::nullopt;
}

MaybeError ReadAnthropicTool(const json::object& tool, const std::string& field, ToolSet* out) {
  FieldReader fields(tool, field + ".");
  if (fields.String("type").value_or("custom") != "custom")
    return NotBuiltYet(field + ".type",
                       StrCat("'", field, ".type': this server has no tools of its own."));
  const json::object* schema = fields.Object("input_schema");
  if (schema == nullptr) return Missing(fields, field + ".input_schema");
  const json::value shown = ShownTool(tool, "input_schema");
  if (auto error = AddFunction(shown.at("function").as_object(), field, out)) return error;
  out->tools.back().field = field + ".input_schema";
  out->tools.back().strict = fields.Bool("strict").value_or(false);
  out->shown.push_back(shown);
  return fields.error();
}

MaybeError ReadAnthropicTools(const json::object& body, ToolSet* out) {
  if (auto error = ReadToolList(body, ReadAnthropicTool, out)) return error;
  FieldReader reader(body);
  const json::object* choice = reader.Object("tool_choice");
  if (reader.error().has_value() || choice == nullptr) return reader.error();
  FieldReader fields(*choice, "tool_choice.");
  const auto type = fields.String("type");
  if (!type.has_value()) return Missing(fields, "tool_choice.type");
  out->parallel = !fields.Bool("disable_parallel_tool_use").value_or(false);
  if (fields.error().has_value()) return fields.error();
  if (*type == "any") out->choice = ToolSet::Choice::kRequired;
  if (*type == "none") out->choice = ToolSet::Choice::kNone;
  if (*type == "tool") {
    const auto name = fields.String("name");
    if (!name.has_value()) return Missing(fields, "tool_choice.name");
    return NameTool(*name, "tool_choice.name", out);
  }
  if (*type != "auto" && *type != "any" && *type != "none")
    return InvalidField("tool_choice.type", "'tool_choice.type' must be auto, any, tool or none.");
  return std::nullopt;
}

// {"type": "enabled" | "disabled"} becomes what templates call enable_thinking; with "adaptive" the
// model thinks as much as it finds right. "budget_tokens" is what a thought may have at most.
MaybeError ReadThinking(const json::object& body, json::object* kwargs, v1::ChatRequest* out) {
  FieldReader reader(body);
  const json::object* thinking = reader.Object("thinking");
  if (reader.error().has_value() || thinking == nullptr) return reader.error();
  FieldReader fields(*thinking, "thinking.");
  const auto type = fields.String("type");
  if (!type.has_value()) return Missing(fields, "thinking.type");
  if (*type == "adaptive") return std::nullopt;
  if (*type != "disabled" && *type != "enabled")
    return InvalidField("thinking.type", "'thinking.type' must be enabled, disabled or adaptive.");
  kwargs->emplace("enable_thinking", *type == "enabled");
  if (auto budget = fields.Int("budget_tokens", 1, INT32_MAX))
    out->set_thinking_token_budget(static_cast<int32_t>(*budget));
  return fields.error();
}

// What the template is told of thoughts, by three fields.
MaybeError ReadMessageKwargs(const json::object& body, v1::ChatRequest* out) {
  FieldReader reader(body);
  json::object own;
  if (auto error = ReadThinking(body, &own, out)) return error;
  if (auto error = ReadEffort(&reader, "output_config", &own)) return error;
  return ReadTemplateKwargs(&reader, std::move(own), out);
}

MaybeError ReadMessageFields(const json::object& body, CompletionRequest* request) {
  FieldReader reader(body);
  const auto max_tokens = reader.Int("max_tokens", INT32_MIN, INT32_MAX);
  if (!max_tokens.has_value()) return Missing(reader, "max_tokens");
  request->params.mutable_stopping()->set_max_tokens(static_cast<int>(*max_tokens));
  if (const json::value* stops = reader.Find("stop_sequences")) {
    if (!stops->is_array() || stops->get_array().size() > kMaxStopStrings)
      return InvalidField("stop_sequences", StrCat("'stop_sequences' must be an array of at most ",
                                                   kMaxStopStrings, " strings."));
    for (const json::value& stop : stops->get_array()) {
      if (!stop.is_string())
        return InvalidField("stop_sequences", "'stop_sequences' must be an array of strings.");
      request->params.mutable_stopping()->add_stop(stop.get_string().data(),
                                                   stop.get_string().size());
    }
  }
  for (const char* name : {"metadata", "context_management"}) reader.Object(name);
  if (auto error = ReadCommonFields(body, &reader, request)) return error;
  constexpr const char* kNotBuilt[] = {"container", "mcp_servers"};
  if (auto error = CheckNotBuilt(body, kNotBuilt)) return error;
  if (auto error = ReadTextFormat(&reader, "output_config", request)) return error;
  if (auto error = CheckParams(request->params, *request->model)) {
    if (error->param == "stop") error->param = "stop_sequences";
    return error;
  }
  if (ChoicesOf(request->params).num_candidates > 1)
    return InvalidField("n", "'n' and 'best_of' must be 1: a message is one choice.");
  return std::nullopt;
}

MaybeError ReadMessagesConversation(const json::object& body, Conversation* out) {
  if (auto error = ReadAnthropicTools(body, &out->tools)) return error;
  if (auto error = ReadMessageKwargs(body, &out->request)) return error;
  MessageList list(&out->request);
  if (auto error = ReadMessages(body, &list)) return error;
  list.Finish();
  FoldSystemTurns(&out->request);
  CombineTurns(&out->request);
  const auto& turns = out->request.messages();
  out->request.set_continue_final_message(!turns.empty() && turns.rbegin()->role() == "assistant");
  return std::nullopt;
}

// In Anthropic's words, by which its clients know that a conversation must become shorter.
void SayAsAnthropic(const CompletionRequest& request, ApiError* error) {
  if (error->type_code != kContextExceeded) return;
  if (request.prompts.empty()) {  // too long to be tokenised
    error->message = StrCat("prompt is too long: ", error->message);
    return;
  }
  const size_t tokens = request.prompts[0].ids.size(), context = request.model->max_model_len;
  if (tokens >= context)
    error->message = StrCat("prompt is too long: ", tokens, " tokens > ", context - 1, " maximum");
  else
    error->message = StrCat("input length and `max_tokens` exceed context limit: ", tokens, " + ",
                            request.params.stopping().max_tokens(), " > ", context,
                            ", decrease input length or `max_tokens` and try again");
}

}  // namespace

std::variant<CompletionRequest, ApiError> ParseMessages(std::string_view body,
                                                        const ModelTable& models,
                                                        const ParserChoice& parsers) {
  json::value root;
  CompletionRequest request;
  request.chat = true;
  if (auto error = OpenRequest(body, models, &root, &request)) return *error;
  if (auto error = ReadMessageFields(root.get_object(), &request)) return *error;
  Conversation conversation;
  if (auto error = ReadMessagesConversation(root.get_object(), &conversation)) return *error;
  // Anthropic's budget is a goal: where it can't be kept it is none.
  if (!request.model->structural_tags) conversation.request.clear_thinking_token_budget();
  if (auto error = ReadThinkingBudget(root.get_object(), &conversation.request)) return *error;
  if (auto error = SetPromptThatFits(std::move(conversation), parsers, &request)) {
    SayAsAnthropic(request, &*error);
    return *error;
  }
  return request;
}

std::variant<std::string, ApiError> CountTokens(std::string_view body, const ModelTable& models,
                                                const ParserChoice& parsers) {
  json::value root;
  CompletionRequest request;
  if (auto error = OpenRequest(body, models, &root, &request)) return *error;
  Conversation conversation;
  if (auto error = ReadMessagesConversation(root.get_object(), &conversation)) return *error;
  conversation.request.clear_thinking_token_budget();  // nothing is generated
  if (auto error = SetPrompt(std::move(conversation), parsers, &request)) return *error;
  return StrCat("{\"input_tokens\":", request.prompts[0].ids.size(), "}");
}

}  // namespace flotilla
