#include "router/api/text_requests.h"

#include <utility>

#include "router/api/chat_request.h"
#include "router/api/generate_check.h"
#include "router/api/request_fields.h"
#include "router/base/json_writer.h"

namespace flotilla {
namespace json = boost::json;
namespace {

using MaybeError = std::optional<ApiError>;

// The prompt that /v1/chat/completions would make of the same body. The request's own fields stay
// as they are, so an answer's length plays no part.
MaybeError RenderBody(const json::object& body, const ParserChoice& parsers,
                      CompletionRequest* request) {
  Conversation conversation;
  if (auto error = ReadTools(body, &conversation.tools)) return error;
  if (auto error = ReadConversation(body, &conversation.request)) return error;
  return SetPrompt(std::move(conversation), parsers, request);
}

MaybeError EncodePrompt(const json::object& body, CompletionRequest* request) {
  FieldReader reader(body);
  bool add_special = reader.Bool("add_special_tokens").value_or(true);
  auto text = reader.String("prompt");
  if (!text.has_value()) {  // llama.cpp's
    text = reader.String("content");
    if (text.has_value()) add_special = reader.Bool("add_special").value_or(false);
  }
  if (!reader.error().has_value() && !text.has_value())
    reader.Fail("prompt", "is missing, and so are 'messages'");
  if (reader.error().has_value()) return reader.error();
  const ModelHandle& model = *request->model;
  if (auto error = CheckPromptBytes(*text, "prompt", model)) return error;
  StatusOr<std::vector<TokenId>> ids = model.tokenizer->Encode(*text, {.add_special = add_special});
  if (!ids.ok()) return InvalidField("prompt", std::string(ids.status().message()));
  request->prompts.push_back({"", std::move(*ids)});
  return std::nullopt;
}

}  // namespace

TextAnswer Tokenize(std::string_view body, const ModelTable& models, const ParserChoice& parsers) {
  json::value root;
  CompletionRequest request;
  if (auto error = OpenRequest(body, models, &root, &request)) return *error;
  const json::object& object = root.get_object();
  FieldReader reader(object);
  const bool with_texts = reader.Bool("return_token_strs").value_or(false);
  if (reader.error().has_value()) return *reader.error();
  const bool chat = reader.Find("messages") != nullptr;
  if (auto error = chat ? RenderBody(object, parsers, &request) : EncodePrompt(object, &request))
    return *error;
  std::string ids, texts;
  for (const TokenId id : request.prompts[0].ids) {
    AppendComma(&ids);
    StrAppend(&ids, id);
    if (!with_texts) continue;
    AppendComma(&texts);
    AppendJsonString(request.model->tokenizer->DecodeRest({&id, 1}, false), &texts);
  }
  return StrCat("{\"count\":", request.prompts[0].ids.size(),
                ",\"max_model_len\":", request.model->max_model_len, ",\"tokens\":[", ids,
                "],\"token_strs\":", with_texts ? StrCat("[", texts, "]") : "null", "}");
}

TextAnswer Detokenize(std::string_view body, const ModelTable& models, const ParserChoice&) {
  json::value root;
  CompletionRequest request;
  if (auto error = OpenRequest(body, models, &root, &request)) return *error;
  FieldReader reader(root.get_object());
  // Whatever came in the body is held in memory already; this is a matter of sense.
  const size_t most = request.model->max_model_len;
  const auto ids = reader.Ints("tokens", most, INT32_MIN, INT32_MAX);
  if (!ids.has_value()) reader.Fail("tokens", "is missing");
  if (reader.error().has_value()) return *reader.error();
  if (auto error = CheckTokenIds(*ids, "tokens", *request.model)) return *error;
  std::string out = "{\"prompt\":";
  AppendJsonString(request.model->tokenizer->Decode(*ids, false), &out);
  return out.append("}");
}

TextAnswer ApplyTemplate(std::string_view body, const ModelTable& models,
                         const ParserChoice& parsers) {
  json::value root;
  CompletionRequest request;
  if (auto error = OpenRequest(body, models, &root, &request)) return *error;
  if (auto error = RenderBody(root.get_object(), parsers, &request)) return *error;
  std::string out = "{\"prompt\":";
  AppendJsonString(request.prompts[0].text, &out);
  return out.append("}");
}

}  // namespace flotilla
