// libFuzzer: any bytes as the body of POST /v1/chat/completions, /v1/responses, /v1/messages and
// /v1/messages/count_tokens, with a model whose template uses what a conversation can bring. It
// becomes an error that can be written as JSON, or a request whose prompt scheduler and workers
// accept too. gRPC's Chat makes the same prompt of the same conversation.
#include <boost/json/serialize.hpp>

#include "router/api/chat_request.h"
#include "router/api/messages_request.h"
#include "router/api/responses_request.h"
#include "router/grpc/grpc_chat.h"
#include "tests/fuzz/checked_by_scheduler.h"

namespace {

using namespace flotilla;

constexpr const char* kTemplate =
    "{{ bos_token }}{% if tools %}<tool_call>{{ tools | length }}{% endif %}{% for m in messages %}"
    "{{ m.role[0] }}{{ m.name }}{{ m.content }}{{ m.tool_call_id }}"
    "{% set message = m %}{{ message['tools'] }}"
    "{% for c in m.tool_calls or [] %}{{ c.function.arguments | tojson }}{% endfor %}{% endfor %}"
    "{% if loud %}{{ raise_exception('loud') }}{% endif %}{{ extra }}"
    "{% if add_generation_prompt %}:{% endif %}{{ '<think>' if on else '</think>' if off }}";

using flotilla::v1::ChatRequest;
namespace json = boost::json;

std::variant<CompletionRequest, ApiError> ReadFromGrpc(const ChatRequest& chat,
                                                       const ModelTable& models) {
  CompletionRequest request;
  request.model = models.begin()->second;
  request.params.set_model(request.model->name);
  if (auto error = SetChatPrompt(chat, {}, &request)) return *error;
  if (auto error = FitToContext(request.prompts[0].ids.size(), *request.model, &request.params, ""))
    return *error;
  return request;
}

std::string TextOf(const json::object& object, std::string_view key) {
  const json::value* value = object.if_contains(key);
  return value == nullptr ? "" : json::serialize(*value);
}

// A body of HTTP as gRPC's clients send the same.
std::optional<ChatRequest> AsGrpc(const json::object& body) {
  ChatRequest chat;
  if (ReadConversation(body, &chat).has_value()) return std::nullopt;
  const json::array& messages = body.at("messages").as_array();
  for (int i = 0; i < chat.messages_size(); ++i) {
    const json::object& message = messages[static_cast<size_t>(i)].as_object();
    chat.mutable_messages(i)->set_tool_calls_json(TextOf(message, "tool_calls"));
  }
  chat.set_tools_json(TextOf(body, "tools"));
  chat.set_tool_choice_json(TextOf(body, "tool_choice"));
  if (const json::value* parallel = body.if_contains("parallel_tool_calls");
      parallel != nullptr && parallel->is_bool())
    chat.set_parallel_tool_calls(parallel->get_bool());
  chat.set_parse_answer(true);
  return chat;
}

void CheckGrpc(std::string_view body, const ModelTable& models,
               const std::variant<CompletionRequest, ApiError>& over_http) {
  ChatRequest any;
  any.add_messages()->set_role("assistant");
  any.set_tools_json(std::string(body));
  fuzz::CheckParsed(ReadFromGrpc(any, models));
  any.set_tool_choice_json(std::string(body));
  fuzz::CheckParsed(ReadFromGrpc(any, models));
  any.clear_tools_json();
  any.mutable_messages(0)->set_tool_calls_json(std::string(body));
  fuzz::CheckParsed(ReadFromGrpc(any, models));

  json::value root;
  if (ParseJson(body, &root).has_value() || !root.is_object()) return;
  const std::optional<ChatRequest> chat = AsGrpc(root.get_object());
  if (!chat.has_value()) return;
  const auto over_grpc = ReadFromGrpc(*chat, models);
  fuzz::CheckParsed(over_grpc);
  if (const auto* request = std::get_if<CompletionRequest>(&over_http)) {
    CHECK(std::holds_alternative<CompletionRequest>(over_grpc));
    CHECK(std::get<CompletionRequest>(over_grpc).prompts[0].ids == request->prompts[0].ids);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const auto* const models = new ModelTable(
      fuzz::OneModel(ChatFormat::Create(kTemplate, /*bos_token=*/"<", /*eos_token=*/">")));
  static const auto* const mute = new ModelTable(fuzz::OneModel(absl::NotFoundError("none")));
  const std::string_view body(reinterpret_cast<const char*>(data), size);
  const auto chat = ParseChat(body, *models);
  fuzz::CheckParsed(chat);
  CheckGrpc(body, *models, chat);
  // Calls whose arguments' types their tools' schemas say, and lists of calls.
  for (const char* parser : {"qwen3_coder", "phi4_mini_json"})
    fuzz::CheckParsed(ParseChat(
        body, *models, {.tool_call_parser = parser, .default_chat_template_kwargs = R"({"a":1})"}));
  fuzz::CheckParsed(ParseResponses(body, *models, {}));
  const auto message = ParseMessages(body, *models, {});
  const auto count = CountTokens(body, *models, {});
  if (const auto* request = std::get_if<CompletionRequest>(&message)) {
    CHECK(std::get<std::string>(count) ==
          StrCat("{\"input_tokens\":", request->prompts[0].ids.size(), "}"));
  }
  fuzz::CheckParsed(message);
  const auto refused = ParseChat(body, *mute);
  CHECK(std::holds_alternative<ApiError>(refused));
  return 0;
}
