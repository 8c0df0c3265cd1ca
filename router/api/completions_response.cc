#include "router/api/completions_response.h"

#include <algorithm>
#include <charconv>
#include <set>
#include <utility>

#include "router/api/chat_response.h"
#include "router/base/json_writer.h"

namespace flotilla {
namespace {

size_t CodePoints(std::string_view text) {
  return static_cast<size_t>(std::count_if(
      text.begin(), text.end(), [](char c) { return (static_cast<uint8_t>(c) & 0xC0) != 0x80; }));
}

void JoinInto(std::string_view next, std::string* out) {
  if (next.empty()) return;
  AppendComma(out);
  out->append(next);
}

void AppendIds(std::span<const int32_t> ids, std::string* out) {
  for (int32_t id : ids) {
    AppendComma(out);
    StrAppend(out, id);
  }
}

const char* FinishName(v1::FinishReason reason) {
  switch (reason) {
    case v1::FINISH_REASON_STOP:
      return "stop";
    case v1::FINISH_REASON_LENGTH:
      return "length";
    case v1::FINISH_REASON_ABORT:
      return "abort";
    case v1::FINISH_REASON_DEADLINE:
      return "deadline";
    case v1::FINISH_REASON_ERROR:
      return "error";
    case v1::FINISH_REASON_TOOL_CALLS:
      return "tool_calls";
    default:
      return "";
  }
}

}  // namespace

void ChoicePiece::Append(const ChoicePiece& next) {
  for (const ToolCallPiece& call : next.calls) {
    if (!calls.empty() && calls.back().index == call.index) {
      calls.back().arguments.append(call.arguments);
    } else {
      calls.push_back(call);
      calls.back().at += text.size();
    }
  }
  text.append(next.text);
  reasoning.append(next.reasoning);
  JoinInto(next.tokens, &tokens);
  JoinInto(next.token_logprobs, &token_logprobs);
  JoinInto(next.top_logprobs, &top_logprobs);
  JoinInto(next.text_offsets, &text_offsets);
  JoinInto(next.content_logprobs, &content_logprobs);
  JoinInto(next.token_ids, &token_ids);
  JoinInto(next.prompt_token_ids, &prompt_token_ids);
  JoinInto(next.prompt_logprobs, &prompt_logprobs);
  if (!next.finish_reason.empty()) finish_reason = next.finish_reason;
  if (!next.stop_reason.empty()) stop_reason = next.stop_reason;
}

bool ChoicePiece::empty() const {
  return text.empty() && reasoning.empty() && calls.empty() && tokens.empty() &&
         content_logprobs.empty() && token_ids.empty() && prompt_token_ids.empty() &&
         prompt_logprobs.empty() && finish_reason.empty();
}

size_t ChoicePiece::bytes() const {
  size_t sum = 0;
  for (const std::string* each :
       {&text, &reasoning, &tokens, &token_logprobs, &top_logprobs, &text_offsets,
        &content_logprobs, &token_ids, &prompt_token_ids, &prompt_logprobs})
    sum += each->size();
  for (const ToolCallPiece& call : calls)
    sum += sizeof(call) + call.id.size() + call.name.size() + call.arguments.size();
  return sum;
}

size_t TextOffsets::Next(TokenId id) {
  const size_t before = chars_;
  chars_ += CodePoints(detokenizer_.Push(id));
  return before;
}

ChoiceFormatter::ChoiceFormatter(const CompletionRequest& request, size_t prompt_index)
    : request_(request),
      prompt_(request.prompts[prompt_index]),
      tokenizer_(*request.model->tokenizer),
      prompt_offsets_({&tokenizer_, false, IncrementalDetokenizer::Begins::kSequence}),
      output_offsets_({&tokenizer_, request.params.output().skip_special_tokens()}),
      reader_(request.syntax) {}

ChoicePiece ChoiceFormatter::OnDelta(const v1::Delta& delta) {
  ChoicePiece piece;
  TakePromptLogprobs(delta);
  const bool has_output = delta.choices_size() > 0 || delta.last();
  const bool complete =
      !request_.NeedsPromptLogprobs() || prompt_logprobs_.size() + 1 >= prompt_.ids.size();
  if (!prompt_part_done_ && (complete || has_output)) {
    AddPromptPart(&piece);
    prompt_part_done_ = true;
  }
  for (const v1::ChoiceDelta& choice : delta.choices()) AddChoice(choice, &piece);
  if (request_.continuous_usage) AddUsage(delta, &piece);
  return piece;
}

void ChoiceFormatter::AddUsage(const v1::Delta& delta, ChoicePiece* piece) {
  for (const v1::ChoiceDelta& choice : delta.choices()) num_tokens_ += choice.token_ids_size();
  const int output = request_.prompt_only ? 0 : num_tokens_;
  const size_t prompt = prompt_.ids.size();
  piece->usage = StrCat("{\"prompt_tokens\":", prompt, ",\"completion_tokens\":", output,
                        ",\"total_tokens\":", prompt + static_cast<size_t>(output), "}");
}

void ChoiceFormatter::TakePromptLogprobs(const v1::Delta& delta) {
  for (const v1::TokenLogprobs& entry : delta.prompt_logprobs()) {
    if (prompt_logprobs_.size() + 1 < prompt_.ids.size()) prompt_logprobs_.push_back(entry);
  }
}

void ChoiceFormatter::AddPromptPart(ChoicePiece* piece) {
  if (request_.return_token_ids) AppendIds(prompt_.ids, &piece->prompt_token_ids);
  if (request_.prompt_logprobs.has_value()) {
    piece->prompt_logprobs = "null";
    for (const v1::TokenLogprobs& entry : prompt_logprobs_) {
      piece->prompt_logprobs.push_back(',');
      AppendPromptEntry(entry, &piece->prompt_logprobs);
    }
  }
  if (!request_.echo) return;
  piece->text = prompt_.text;
  output_start_ = CodePoints(prompt_.text);
  if (!request_.logprobs.has_value()) return;
  const size_t known = std::min(prompt_.ids.size(), prompt_logprobs_.size() + 1);
  for (size_t i = 0; i < known; ++i) AddEchoedToken(i, piece);
}

void ChoiceFormatter::AddEchoedToken(size_t position, ChoicePiece* piece) {
  if (position > 0) {
    AddLogprob(prompt_logprobs_[position - 1], &prompt_offsets_, piece);
    return;
  }
  const TokenId id = prompt_.ids[0];
  AppendTokenText(id, &piece->tokens);
  piece->token_logprobs = "null";
  piece->top_logprobs = "null";
  StrAppend(&piece->text_offsets, prompt_offsets_.Next(id));
}

void ChoiceFormatter::AddChoice(const v1::ChoiceDelta& choice, ChoicePiece* piece) {
  if (!request_.prompt_only) {
    AddText(choice, piece);
    if (request_.return_token_ids) {
      const auto& ids = choice.token_ids();
      AppendIds({ids.data(), static_cast<size_t>(ids.size())}, &piece->token_ids);
    }
    if (request_.logprobs.has_value()) {
      for (const v1::TokenLogprobs& entry : choice.logprobs())
        AddLogprob(entry, &output_offsets_, piece);
    }
  }
  AddFinish(choice, piece);
}

void ChoiceFormatter::AddText(const v1::ChoiceDelta& choice, ChoicePiece* piece) {
  AnswerText text = reader_.Read(choice);
  for (ToolCallPiece& call : text.calls) call.at += piece->text.size();
  piece->text.append(text.content);
  piece->reasoning = std::move(text.reasoning);
  piece->calls = std::move(text.calls);
}

void ChoiceFormatter::AddLogprob(const v1::TokenLogprobs& entry, TextOffsets* offsets,
                                 ChoicePiece* piece) {
  if (request_.chat) {
    AppendChatLogprob(entry, request_, &piece->content_logprobs);
    return;
  }
  AppendComma(&piece->tokens);
  AppendTokenText(entry.token_id(), &piece->tokens);
  AppendComma(&piece->token_logprobs);
  AppendJsonFloat(entry.logprob(), &piece->token_logprobs);
  AppendComma(&piece->top_logprobs);
  AppendTop(entry, &piece->top_logprobs);
  const size_t start = offsets == &output_offsets_ ? output_start_ : 0;
  AppendComma(&piece->text_offsets);
  StrAppend(&piece->text_offsets, start + offsets->Next(entry.token_id()));
}

void ChoiceFormatter::AddFinish(const v1::ChoiceDelta& choice, ChoicePiece* piece) const {
  if (choice.finish_reason() == v1::FINISH_REASON_UNSPECIFIED) return;
  if (request_.prompt_only) {
    piece->finish_reason = "length";
    return;
  }
  piece->finish_reason = FinishName(reader_.FinishReasonOf(choice));
  const std::string& reason = choice.stop_reason();
  if (reason.empty()) return;
  const auto& stops = request_.params.stopping().stop();
  int64_t id = 0;
  const auto [end, error] = std::from_chars(reason.data(), reason.data() + reason.size(), id);
  const bool is_number = error == std::errc() && end == reason.data() + reason.size();
  if (is_number && std::find(stops.begin(), stops.end(), reason) == stops.end())
    piece->stop_reason = reason;
  else
    AppendJsonString(reason, &piece->stop_reason);
}

void ChoiceFormatter::AppendTokenText(TokenId id, std::string* out) const {
  if (request_.return_tokens_as_token_ids)
    StrAppend(out, "\"token_id:", id, "\"");
  else
    AppendJsonString(tokenizer_.DecodeRest({&id, 1}, false), out);
}

// The token itself, then the most likely ones; of two with one text the first stays.
void ChoiceFormatter::AppendTop(const v1::TokenLogprobs& entry, std::string* out) const {
  std::set<std::string> keys;
  std::string inside;
  auto add = [&](TokenId id, float logprob) {
    std::string key;
    AppendTokenText(id, &key);
    if (!keys.insert(key).second) return;
    AppendComma(&inside);
    inside.append(key).push_back(':');
    AppendJsonFloat(logprob, &inside);
  };
  add(entry.token_id(), entry.logprob());
  const int count = std::min(entry.top_size(), request_.logprobs.value_or(0));
  for (int i = 0; i < count; ++i) add(entry.top(i).token_id(), entry.top(i).logprob());
  StrAppend(out, "{", inside, "}");
}

void ChoiceFormatter::AppendPromptEntry(const v1::TokenLogprobs& entry, std::string* out) const {
  auto add = [&](TokenId id, float logprob, int rank) {
    StrAppend(out, "\"", id, "\":{\"logprob\":");
    AppendJsonFloat(logprob, out);
    StrAppend(out, ",\"rank\":", rank, ",\"decoded_token\":");
    AppendJsonString(tokenizer_.DecodeRest({&id, 1}, false), out);
    out->push_back('}');
  };
  out->push_back('{');
  add(entry.token_id(), entry.logprob(), entry.rank());
  const int count = std::min(entry.top_size(), request_.prompt_logprobs.value_or(0));
  for (int i = 0; i < count; ++i) {
    if (entry.top(i).token_id() == entry.token_id()) continue;
    out->push_back(',');
    add(entry.top(i).token_id(), entry.top(i).logprob(), i + 1);
  }
  out->push_back('}');
}

void AppendEnvelope(const CompletionEnvelope& envelope, const char* object, std::string* out) {
  StrAppend(out, "{\"id\":");
  AppendJsonString(envelope.id, out);
  StrAppend(out, ",\"object\":\"", object, "\",\"created\":", envelope.created, ",\"model\":");
  AppendJsonString(envelope.model, out);
  StrAppend(out, ",\"system_fingerprint\":");
  AppendJsonString(envelope.system_fingerprint, out);
}

void AppendPieceUsage(const CompletionRequest& request, const ChoicePiece& piece,
                      std::string* out) {
  if (!request.include_usage) return;
  StrAppend(out, ",\"usage\":", piece.usage.empty() ? "null" : piece.usage);
}

void AppendUsage(const v1::Usage& usage, std::string* out) {
  StrAppend(out, ",\"usage\":{\"prompt_tokens\":", usage.prompt_tokens(),
            ",\"completion_tokens\":", usage.completion_tokens(), ",\"total_tokens\":",
            static_cast<int64_t>(usage.prompt_tokens()) + usage.completion_tokens(),
            ",\"prompt_tokens_details\":{\"cached_tokens\":", usage.cached_tokens(), "}}");
}

void AppendEnd(const AnswerEnd& end, std::string* out) {
  AppendUsage(end.usage, out);
  if (!end.timing.empty()) StrAppend(out, ",\"timing\":", end.timing);
}

namespace {

constexpr const char* kObject = "text_completion";

void AppendChoice(const CompletionRequest& request, size_t index, const ChoicePiece& piece,
                  std::string* out) {
  StrAppend(out, "{\"index\":", index, ",\"text\":");
  AppendJsonString(piece.text, out);
  if (request.logprobs.has_value()) {
    StrAppend(out, ",\"logprobs\":{\"tokens\":[", piece.tokens, "],\"token_logprobs\":[",
              piece.token_logprobs, "],\"top_logprobs\":[", piece.top_logprobs,
              "],\"text_offset\":[", piece.text_offsets, "]}");
  } else {
    out->append(",\"logprobs\":null");
  }
  out->append(",\"finish_reason\":");
  if (piece.finish_reason.empty())
    out->append("null");
  else
    AppendJsonString(piece.finish_reason, out);
  StrAppend(out, ",\"stop_reason\":", piece.stop_reason.empty() ? "null" : piece.stop_reason);
  if (request.return_token_ids) {
    StrAppend(out, ",\"token_ids\":[", piece.token_ids, "]");
    if (!piece.prompt_token_ids.empty())
      StrAppend(out, ",\"prompt_token_ids\":[", piece.prompt_token_ids, "]");
  }
  if (!piece.prompt_logprobs.empty())
    StrAppend(out, ",\"prompt_logprobs\":[", piece.prompt_logprobs, "]");
  out->push_back('}');
}

}  // namespace

std::string CompletionJson(const CompletionEnvelope& envelope, const CompletionRequest& request,
                           const std::vector<ChoicePiece>& choices, const AnswerEnd& end) {
  std::string out;
  AppendEnvelope(envelope, kObject, &out);
  out.append(",\"choices\":[");
  for (size_t i = 0; i < choices.size(); ++i) {
    if (i > 0) out.push_back(',');
    AppendChoice(request, i, choices[i], &out);
  }
  out.push_back(']');
  AppendEnd(end, &out);
  out.push_back('}');
  return out;
}

std::string CompletionChunk(const CompletionEnvelope& envelope, const CompletionRequest& request,
                            size_t index, const ChoicePiece& piece) {
  std::string out = "data: ";
  AppendEnvelope(envelope, kObject, &out);
  out.append(",\"choices\":[");
  AppendChoice(request, index, piece, &out);
  out.push_back(']');
  AppendPieceUsage(request, piece, &out);
  out.append("}\n\n");
  return out;
}

std::string EndChunks(const CompletionEnvelope& envelope, const CompletionRequest& request,
                      const AnswerEnd& end) {
  constexpr const char* kDone = "data: [DONE]\n\n";
  if (!request.include_usage && end.timing.empty()) return kDone;
  std::string out = "data: ";
  AppendEnvelope(envelope, request.chat ? "chat.completion.chunk" : kObject, &out);
  out.append(",\"choices\":[]");
  if (request.include_usage) AppendUsage(end.usage, &out);
  if (!end.timing.empty()) StrAppend(&out, ",\"timing\":", end.timing);
  StrAppend(&out, "}\n\n", kDone);
  return out;
}

namespace {

class CompletionWriter final : public AnswerWriter {
 public:
  CompletionWriter(const CompletionEnvelope& envelope, const CompletionRequest& request)
      : envelope_(envelope), request_(request) {}

  std::string Piece(size_t index, const ChoicePiece& piece) override {
    return CompletionChunk(envelope_, request_, index, piece);
  }
  std::string End(const AnswerEnd& end) override { return EndChunks(envelope_, request_, end); }
  std::string Whole(const std::vector<ChoicePiece>& choices, const AnswerEnd& end) override {
    return CompletionJson(envelope_, request_, choices, end);
  }

 private:
  const CompletionEnvelope& envelope_;
  const CompletionRequest& request_;
};

}  // namespace

std::unique_ptr<AnswerWriter> MakeCompletionWriter(const CompletionEnvelope& envelope,
                                                   const CompletionRequest& request) {
  return std::make_unique<CompletionWriter>(envelope, request);
}

}  // namespace flotilla
