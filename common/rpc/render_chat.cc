#include "common/rpc/render_chat.h"

#include <algorithm>
#include <array>
#include <boost/json/array.hpp>
#include <boost/json/object.hpp>
#include <boost/json/serialize.hpp>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/strict_json.h"
#include "common/template/unicode_text.h"

namespace flotilla {
namespace json = boost::json;
namespace {

constexpr std::array<std::string_view, 5> kRoles = {"system", "developer", "user", "assistant",
                                                    "tool"};

Status Wrong(std::string_view field, std::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat(std::string(field), ": ", std::string(what)));
}

StatusOr<json::value> ParseField(std::string_view field, std::string_view text) {
  json::value value;
  StrictJsonError error;
  if (!ParseStrictJson(text, &value, &error))
    return Wrong(field, absl::StrCat("is not valid JSON: ", error.message));
  return value;
}

// What a template is given of messages with calls, and of tools.
struct CallsForm {
  CallArguments arguments;
  bool no_content_is_none;
  bool tools_in_message;  // the system's
};

// A text that is no JSON stays as it is: a model wrote it, and may be told so.
json::value ArgumentsAsObject(json::value arguments) {
  if (!arguments.is_string()) return arguments;
  const json::string& text = arguments.get_string();
  if (text.empty()) return json::object();
  json::value value;
  StrictJsonError error;
  return ParseStrictJson({text.data(), text.size()}, &value, &error) ? value : arguments;
}

json::value ArgumentsAsText(json::value arguments) {
  return arguments.is_string() ? arguments : json::value(json::serialize(arguments));
}

void ConvertArguments(CallArguments form, json::array* calls) {
  for (json::value& call : *calls) {
    json::value* function = call.is_object() ? call.get_object().if_contains("function") : nullptr;
    if (function == nullptr || !function->is_object()) continue;
    json::value* arguments = function->get_object().if_contains("arguments");
    if (arguments == nullptr) continue;
    if (form == CallArguments::kObjects) *arguments = ArgumentsAsObject(std::move(*arguments));
    if (form == CallArguments::kText) *arguments = ArgumentsAsText(std::move(*arguments));
  }
}

StatusOr<json::object> Message(const v1::ChatMessage& message, const std::string& field,
                               const CallsForm& form) {
  if (std::find(kRoles.begin(), kRoles.end(), message.role()) == kRoles.end())
    return Wrong(field + ".role", "must be system, developer, user, assistant or tool");
  json::object out;
  out["role"] = message.role() == "developer" ? "system" : message.role();
  out["content"] = message.content();
  if (!message.name().empty()) out["name"] = message.name();
  if (!message.tool_call_id().empty()) out["tool_call_id"] = message.tool_call_id();
  if (!message.reasoning_content().empty()) {
    out["reasoning_content"] = message.reasoning_content();
    out["thinking"] = message.reasoning_content();
  }
  if (!message.tool_calls_json().empty()) {
    const std::string calls_field = field + ".tool_calls_json";
    ASSIGN_OR_RETURN(json::value calls, ParseField(calls_field, message.tool_calls_json()));
    if (!calls.is_array()) return Wrong(calls_field, "must be an array");
    if (calls.get_array().empty())
      return out;  // to templates a list without calls is one with some
    ConvertArguments(form.arguments, &calls.get_array());
    out["tool_calls"] = std::move(calls);
    if (form.no_content_is_none && message.content().empty()) out["content"] = nullptr;
  }
  return out;
}

// Phi-4-mini's template has no other place for them: a text of the functions alone.
bool WantsToolsInMessage(const ChatFormat& format) {
  return format.tool_use_source().find("message['tools']") != std::string::npos;
}

void ShowInMessage(const json::array& tools, json::array* messages) {
  json::array functions;
  for (const json::value& tool : tools) {
    const json::value* function =
        tool.is_object() ? tool.get_object().if_contains("function") : nullptr;
    functions.push_back(function == nullptr ? tool : *function);
  }
  const json::object system = {{"role", "system"}, {"content", ""}};
  if (messages->front().at("role") != "system") messages->insert(messages->begin(), system);
  messages->front().get_object()["tools"] = json::serialize(functions);
}

StatusOr<ChatTemplateInput> Input(const v1::ChatRequest& request, const CallsForm& form) {
  const int count = request.messages_size();
  if (count == 0) return Wrong("messages", "must have at least one message");
  if (count > kMaxChatMessages)
    return Wrong("messages",
                 absl::StrCat("may have at most ", kMaxChatMessages, " messages, not ", count));
  ChatTemplateInput input;
  json::array messages;
  messages.reserve(static_cast<size_t>(count));
  for (int i = 0; i < count; ++i) {
    ASSIGN_OR_RETURN(json::object message,
                     Message(request.messages(i), absl::StrCat("messages[", i, "]"), form));
    messages.push_back(std::move(message));
  }
  if (!request.tools_json().empty()) {
    ASSIGN_OR_RETURN(input.tools, ParseField("tools_json", request.tools_json()));
    if (!input.tools.is_array()) return Wrong("tools_json", "must be an array");
    if (form.tools_in_message) ShowInMessage(input.tools.get_array(), &messages);
  }
  input.messages = std::move(messages);
  if (!request.template_kwargs_json().empty()) {
    ASSIGN_OR_RETURN(json::value extra,
                     ParseField("template_kwargs_json", request.template_kwargs_json()));
    if (!extra.is_object()) return Wrong("template_kwargs_json", "must be an object");
    input.extra = std::move(extra.get_object());
  }
  input.add_generation_prompt =
      !request.has_add_generation_prompt() || request.add_generation_prompt();
  return input;
}

bool HasCalls(const v1::ChatRequest& request) {
  return std::any_of(request.messages().begin(), request.messages().end(),
                     [](const v1::ChatMessage& m) { return !m.tool_calls_json().empty(); });
}

StatusOr<std::string> RenderAs(const CallsForm& form, const v1::ChatRequest& request,
                               const ChatFormat& format, const std::tm& now) {
  ASSIGN_OR_RETURN(ChatTemplateInput input, Input(request, form));
  input.now = now;
  StatusOr<std::string> text = format.Render(std::move(input));
  if (text.ok()) return text;
  // A conversation that a model can't take is the request's fault, whatever the template ran into.
  return Wrong("messages", absl::StrCat("the model's chat template refuses them: ",
                                        std::string(text.status().message())));
}

StatusOr<std::string> RenderWhole(const v1::ChatRequest& request, const ChatFormat& format,
                                  const std::tm& now, CallArguments arguments) {
  const bool asks = format.AsksForNoContent(/*with_tools=*/!request.tools_json().empty());
  const bool in_message = WantsToolsInMessage(format);
  std::vector<CallsForm> forms = {{arguments, asks, in_message}};
  if (HasCalls(request)) {
    // A few templates join arguments to texts, as OpenAI's clients have them; some that ask for
    // content that is none do so elsewhere than where they use it.
    if (arguments == CallArguments::kObjects)
      forms.push_back({CallArguments::kText, asks, in_message});
    if (asks) forms.push_back({arguments, false, in_message});
  }
  Status first;
  for (const CallsForm& form : forms) {
    StatusOr<std::string> text = RenderAs(form, request, format, now);
    if (text.ok()) return text;
    first.Update(text.status());
  }
  return first;
}

// Stands for what follows the last message's text. A template that trims texts takes its end away,
// and would take the text's.
constexpr std::string_view kMark = "FLOTILLA-GOES-ON-HERE";
constexpr std::string_view kMarkEnd = " \t";

// Not only says so: a list without calls is none.
bool EndsWithCalls(const v1::ChatMessage& message) {
  const StatusOr<json::value> calls = ParseField("", message.tool_calls_json());
  return calls.ok() && calls->is_array() && !calls->get_array().empty();
}

Status CheckMayGoOn(const v1::ChatRequest& request) {
  if (request.has_add_generation_prompt() && request.add_generation_prompt())
    return Wrong("continue_final_message", "does not go with add_generation_prompt");
  if (request.messages_size() == 0) return OkStatus();  // said by who reads them
  const v1::ChatMessage& last = *request.messages().rbegin();
  if (EndsWithCalls(last)) return Wrong("messages", "end with calls, behind which no text goes on");
  if (jinja::StripSpace(last.content()).empty())
    return Wrong("messages", "end without a text to go on with");
  return OkStatus();
}

StatusOr<std::string> RenderToFinalText(const v1::ChatRequest& request, const ChatFormat& format,
                                        const std::tm& now, CallArguments arguments) {
  RETURN_IF_ERROR(CheckMayGoOn(request));
  v1::ChatRequest marked = request;
  marked.set_add_generation_prompt(false);
  std::string_view space;  // at the text's end
  if (marked.messages_size() > 0) {
    const std::string_view content = request.messages().rbegin()->content();
    space = content.substr(jinja::StripSpace(content, jinja::Side::kRight).size());
    marked.mutable_messages()->rbegin()->mutable_content()->append(kMark).append(kMarkEnd);
  }
  ASSIGN_OR_RETURN(std::string text, RenderWhole(marked, format, now, arguments));
  const size_t end = text.rfind(kMark);
  if (end == std::string::npos)
    return Wrong("messages",
                 "can't be gone on with: the model's chat template leaves out the last");
  const bool trims = !std::string_view(text).substr(end + kMark.size()).starts_with(kMarkEnd);
  text.resize(end);
  if (trims && text.ends_with(space)) text.resize(end - space.size());
  return text;
}

}  // namespace

StatusOr<std::string> RenderChat(const v1::ChatRequest& request, const ChatFormat& format,
                                 const std::tm& now, CallArguments arguments) {
  return request.continue_final_message() ? RenderToFinalText(request, format, now, arguments)
                                          : RenderWhole(request, format, now, arguments);
}

std::tm LocalTime() {
  const std::time_t seconds = std::time(nullptr);
  std::tm now{};
  localtime_r(&seconds, &now);
  return now;
}

const char* AsksAsHttp(const v1::ChatRequest& request) {
  if (!request.tool_choice_json().empty()) return "tool_choice_json";
  if (request.has_parallel_tool_calls()) return "parallel_tool_calls";
  if (request.has_thinking_token_budget()) return "thinking_token_budget";
  return request.parse_answer() ? "parse_answer" : nullptr;
}

}  // namespace flotilla
