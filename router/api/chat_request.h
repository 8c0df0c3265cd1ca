// /v1/chat/completions: the body's JSON → proto ChatRequest → the prompt that the model's own chat
// template makes of it, with token ids.
//
// Content is a string, or an array of text parts, which are joined with line ends (as vLLM does for
// templates that take strings). Callers can't bring a template of their own, only variables
// (chat_template_kwargs). Fields are those of OpenAI's chat completions and of vLLM's extensions;
// docs/chat_completions.md lists them.
// Threads: pure functions; parsing, rendering and tokenising belong on a worker thread. Errors:
// ApiError naming the field. Source: OpenAI's API reference; vLLM's server documentation.
#pragma once

#include <boost/json/object.hpp>
#include <string>
#include <string_view>
#include <variant>

#include "common/rpc/render_chat.h"
#include "flotilla/v1/inference.pb.h"
#include "router/api/completions_request.h"
#include "router/api/tools_fields.h"
#include "router/base/json_reader.h"

namespace flotilla {

std::variant<CompletionRequest, ApiError> ParseChat(std::string_view body, const ModelTable& models,
                                                    const ParserChoice& parsers = {});

// What every API with conversations makes of its body.
struct Conversation {
  v1::ChatRequest request;
  ToolSet tools;
  std::string field = "messages";  // the client's name for what the prompt is made of
};
// What the template is given besides the messages: vLLM's chat_template_kwargs, and of `own`, which
// the API says otherwise, what they don't have.
std::optional<ApiError> ReadTemplateKwargs(FieldReader* reader, boost::json::object own,
                                           v1::ChatRequest* out);
// --default-chat-template-kwargs, where the request doesn't say otherwise.
void AddDefaultKwargs(const ParserChoice& parsers, v1::ChatRequest* request);
// "effort" of the object `field`, of which templates hear as chat says it.
std::optional<ApiError> ReadEffort(FieldReader* reader, const std::string& field,
                                   boost::json::object* kwargs);

// vLLM's thinking_token_budget.
std::optional<ApiError> ReadThinkingBudget(const boost::json::object& body, v1::ChatRequest* out);

// The last step of such an API: the conversation becomes the request's prompt. All other fields of
// the request are set and checked.
std::optional<ApiError> SetPrompt(Conversation conversation, const ParserChoice& parsers,
                                  CompletionRequest* request);
// The same for an API that generates: the model's context has room for an answer, too.
std::optional<ApiError> SetPromptThatFits(Conversation conversation, const ParserChoice& parsers,
                                          CompletionRequest* request);

// The conversation's part of the body, without ranges: those are RenderChat's business.
std::optional<ApiError> ReadConversation(const boost::json::object& body, v1::ChatRequest* out);

// An assistant's calls, as OpenAI has them → what RenderChat takes. `field`: their own.
std::optional<ApiError> ReadToolCalls(const boost::json::value& calls, const std::string& field,
                                      std::string* out);

// The conversation as a prompt with its ids.
std::variant<CompletionPrompt, ApiError> ChatPrompt(const v1::ChatRequest& request,
                                                    const ModelHandle& model,
                                                    CallArguments arguments);

}  // namespace flotilla
