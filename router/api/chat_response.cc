#include "router/api/chat_response.h"

#include <algorithm>

#include "router/base/json_writer.h"

namespace flotilla {
namespace {

constexpr const char* kWhole = "chat.completion";
constexpr const char* kChunk = "chat.completion.chunk";

// "token":…,"logprob":…,"bytes":[…]
void AppendToken(TokenId id, float logprob, const CompletionRequest& request, std::string* out) {
  const Tokenizer& tokenizer = *request.model->tokenizer;
  out->append("\"token\":");
  if (request.return_tokens_as_token_ids)
    StrAppend(out, "\"token_id:", id, "\"");
  else
    AppendJsonString(tokenizer.DecodeRest({&id, 1}, false), out);
  out->append(",\"logprob\":");
  AppendJsonFloat(logprob, out);
  std::string bytes;
  for (const char c : tokenizer.TokenBytes(id)) {
    AppendComma(&bytes);
    StrAppend(&bytes, static_cast<int>(static_cast<uint8_t>(c)));
  }
  StrAppend(out, ",\"bytes\":[", bytes, "]");
}

// By the name that DeepSeek gave it and most servers took, and by vLLM's.
void AppendReasoning(const std::string& reasoning, std::string* out) {
  for (const char* name : {"reasoning_content", "reasoning"}) {
    AppendComma(out);
    StrAppend(out, "\"", name, "\":");
    AppendJsonString(reasoning, out);
  }
}

// "tool_calls":[…]; `indexed`: pieces of a stream, of which the first of a call has id and name.
void AppendCalls(const std::vector<ToolCallPiece>& calls, bool indexed, std::string* out) {
  std::string list;
  for (const ToolCallPiece& call : calls) {
    AppendComma(&list);
    list.push_back('{');
    if (indexed) StrAppend(&list, "\"index\":", call.index, ",");
    if (!call.id.empty()) StrAppend(&list, "\"id\":\"", call.id, "\",\"type\":\"function\",");
    list.append("\"function\":{");
    if (!call.name.empty()) {
      list.append("\"name\":");
      AppendJsonString(call.name, &list);
      list.push_back(',');
    }
    list.append("\"arguments\":");
    AppendJsonString(call.arguments, &list);
    list.append("}}");
  }
  StrAppend(out, "\"tool_calls\":[", list, "]");
}

// "content":… and what there is beside it. Calls may be all that was said, or was to be.
void AppendMessage(const CompletionRequest& request, const ChoicePiece& choice, std::string* out) {
  std::string fields = "\"content\":";
  const bool only_calls = !choice.calls.empty() || IsDemanded(request.syntax.tools.syntax);
  if (choice.text.empty() && only_calls)
    fields.append("null");
  else
    AppendJsonString(choice.text, &fields);
  if (!choice.reasoning.empty()) AppendReasoning(choice.reasoning, &fields);
  if (!choice.calls.empty()) {
    fields.push_back(',');
    AppendCalls(choice.calls, false, &fields);
  }
  out->append(fields);
}

// What follows "message" or "delta" in a choice.
void AppendChoiceTail(const CompletionRequest& request, const ChoicePiece& piece,
                      std::string* out) {
  if (request.logprobs.has_value() && !piece.content_logprobs.empty())
    StrAppend(out, ",\"logprobs\":{\"content\":[", piece.content_logprobs, "],\"refusal\":null}");
  else
    out->append(",\"logprobs\":null");
  out->append(",\"finish_reason\":");
  if (piece.finish_reason.empty())
    out->append("null");
  else
    AppendJsonString(piece.finish_reason, out);
  StrAppend(out, ",\"stop_reason\":", piece.stop_reason.empty() ? "null" : piece.stop_reason);
  if (request.return_token_ids) StrAppend(out, ",\"token_ids\":[", piece.token_ids, "]");
  out->push_back('}');
}

// What vLLM adds beside the choices.
void AppendPromptPart(const ChoicePiece& piece, std::string* out) {
  if (!piece.prompt_token_ids.empty())
    StrAppend(out, ",\"prompt_token_ids\":[", piece.prompt_token_ids, "]");
  if (!piece.prompt_logprobs.empty())
    StrAppend(out, ",\"prompt_logprobs\":[", piece.prompt_logprobs, "]");
}

void AppendChunk(const CompletionEnvelope& envelope, const CompletionRequest& request, size_t index,
                 std::string_view delta, const ChoicePiece& piece, std::string* out) {
  out->append("data: ");
  AppendEnvelope(envelope, kChunk, out);
  StrAppend(out, ",\"choices\":[{\"index\":", index, ",\"delta\":{", delta, "}");
  AppendChoiceTail(request, piece, out);
  out->push_back(']');
  AppendPromptPart(piece, out);
  AppendPieceUsage(request, piece, out);
  out->append("}\n\n");
}

}  // namespace

void AppendChatLogprob(const v1::TokenLogprobs& entry, const CompletionRequest& request,
                       std::string* out) {
  AppendComma(out);
  out->push_back('{');
  AppendToken(entry.token_id(), entry.logprob(), request, out);
  out->append(",\"top_logprobs\":[");
  const int count = std::min(entry.top_size(), request.logprobs.value_or(0));
  for (int i = 0; i < count; ++i) {
    out->append(i > 0 ? ",{" : "{");
    AppendToken(entry.top(i).token_id(), entry.top(i).logprob(), request, out);
    out->push_back('}');
  }
  out->append("]}");
}

std::string ChatJson(const CompletionEnvelope& envelope, const CompletionRequest& request,
                     const std::vector<ChoicePiece>& choices, const AnswerEnd& end) {
  std::string out;
  AppendEnvelope(envelope, kWhole, &out);
  out.append(",\"choices\":[");
  for (size_t i = 0; i < choices.size(); ++i) {
    if (i > 0) out.push_back(',');
    StrAppend(&out, "{\"index\":", i, ",\"message\":{\"role\":\"assistant\",");
    AppendMessage(request, choices[i], &out);
    out.append(",\"refusal\":null}");
    AppendChoiceTail(request, choices[i], &out);
  }
  out.push_back(']');
  AppendPromptPart(choices[0], &out);
  AppendEnd(end, &out);
  out.push_back('}');
  return out;
}

std::string ChatChunk(const CompletionEnvelope& envelope, const CompletionRequest& request,
                      size_t index, const ChoicePiece& piece, bool first) {
  std::string out;
  if (first) {
    ChoicePiece role;
    role.usage = piece.usage;
    AppendChunk(envelope, request, index, "\"role\":\"assistant\",\"content\":\"\"", role, &out);
  }
  std::string delta;
  if (!piece.text.empty()) {
    delta = "\"content\":";
    AppendJsonString(piece.text, &delta);
  }
  if (!piece.reasoning.empty()) AppendReasoning(piece.reasoning, &delta);
  if (!piece.calls.empty()) {
    AppendComma(&delta);
    AppendCalls(piece.calls, true, &delta);
  }
  AppendChunk(envelope, request, index, delta, piece, &out);
  return out;
}

namespace {

class ChatWriter final : public AnswerWriter {
 public:
  ChatWriter(const CompletionEnvelope& envelope, const CompletionRequest& request)
      : envelope_(envelope), request_(request) {}

  std::string Piece(size_t index, const ChoicePiece& piece) override {
    if (role_said_.size() <= index) role_said_.resize(index + 1);
    const bool first = !role_said_[index];
    role_said_[index] = true;
    return ChatChunk(envelope_, request_, index, piece, first);
  }
  std::string End(const AnswerEnd& end) override { return EndChunks(envelope_, request_, end); }
  std::string Whole(const std::vector<ChoicePiece>& choices, const AnswerEnd& end) override {
    return ChatJson(envelope_, request_, choices, end);
  }

 private:
  const CompletionEnvelope& envelope_;
  const CompletionRequest& request_;
  std::vector<bool> role_said_;  // by choice
};

}  // namespace

std::unique_ptr<AnswerWriter> MakeChatWriter(const CompletionEnvelope& envelope,
                                             const CompletionRequest& request) {
  return std::make_unique<ChatWriter>(envelope, request);
}

}  // namespace flotilla
