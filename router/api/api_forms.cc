#include "router/api/api_forms.h"

#include <algorithm>
#include <array>

#include "router/api/chat_request.h"
#include "router/api/chat_response.h"
#include "router/api/messages_request.h"
#include "router/api/messages_response.h"
#include "router/api/responses_request.h"
#include "router/api/responses_response.h"
#include "router/api/text_requests.h"

namespace flotilla {
namespace {

ApiForm::Parsed ParsePlain(std::string_view body, const ModelTable& models, const ParserChoice&) {
  return ParseCompletion(body, models);
}

constexpr std::array<ApiForm, 4> kApiForms = {{
    {"/v1/completions", "cmpl-", false, ParsePlain, MakeCompletionWriter},
    {"/v1/chat/completions", "chatcmpl-", true, ParseChat, MakeChatWriter},
    {"/v1/responses", "resp_", true, ParseResponses, MakeResponsesWriter},
    {"/v1/messages", "msg_", true, ParseMessages, MakeMessagesWriter},
}};
constexpr std::array<TextForm, 4> kTextForms = {{
    {"/tokenize", Tokenize},
    {"/detokenize", Detokenize},
    {"/apply-template", ApplyTemplate},
    {"/v1/messages/count_tokens", CountTokens},
}};

}  // namespace

const ApiForm* FindApiForm(std::string_view path) {
  const auto form = std::ranges::find(kApiForms, path, &ApiForm::path);
  return form == kApiForms.end() ? nullptr : form;
}

const TextForm* FindTextForm(std::string_view path) {
  const auto form = std::ranges::find(kTextForms, path, &TextForm::path);
  return form == kTextForms.end() ? nullptr : form;
}

}  // namespace flotilla
