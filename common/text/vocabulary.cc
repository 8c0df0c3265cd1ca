#include "common/text/vocabulary.h"

#include <algorithm>
#include <array>
#include <utility>

namespace flotilla {
namespace {

// <|end|> ends a text unless there is a <|return|>: there (gpt-oss) it ends one message of several.
constexpr std::string_view kEndOfMessage = "<|end|>";
constexpr std::string_view kEndOfMessages = "<|return|>";
constexpr std::array<std::string_view, 14> kEndOfTextNames = {
    "<|endoftext|>",   "<|im_end|>",
    "<|end_of_text|>", "<|eot_id|>",
    "<|eom_id|>",      kEndOfMessage,
    "<end_of_turn>",   "</s>",
    "<eos>",           "<turn|>",
    kEndOfMessages,    "<|call|>",
    "<|eot|>",         "<｜end▁of▁sentence｜>",
};
// What tells thoughts, calls and text apart (router/answer), some files call control tokens.
constexpr std::array<std::string_view, 10> kAnswerTags = {
    "<think>",       "</think>",       "<tool_call>",  "</tool_call>", "<|python_tag|>",
    "<|tool_call|>", "<|/tool_call|>", "[TOOL_CALLS]", "[CALL_ID]",    "[ARGS]"};

}  // namespace

void Vocabulary::Reserve(size_t num_tokens) {
  ends_.reserve(std::min(num_tokens, kMaxTokens));
  types_.reserve(std::min(num_tokens, kMaxTokens));
}

Status Vocabulary::Add(std::string_view bytes, TokenType type) {
  if (types_.size() >= kMaxTokens || bytes_.size() + bytes.size() > kMaxBytes) {
    return absl::InvalidArgumentError(
        StrCat("the vocabulary has over ", kMaxTokens, " tokens or ", kMaxBytes, " bytes of text"));
  }
  if (type == TokenType::kControl &&
      std::find(kAnswerTags.begin(), kAnswerTags.end(), bytes) != kAnswerTags.end())
    type = TokenType::kUserDefined;
  bytes_.append(bytes);
  ends_.push_back(static_cast<uint32_t>(bytes_.size()));
  types_.push_back(type);
  return OkStatus();
}

void Vocabulary::SetEosIds(std::vector<TokenId> ids) {
  eos_ids_ = std::move(ids);
  std::vector<TokenId> end_of_message;
  bool has_end_of_messages = false;
  for (TokenId id = 0; Contains(id); ++id) {
    if (Type(id) != TokenType::kControl) continue;
    const std::string_view text = Bytes(id);
    if (std::find(kEndOfTextNames.begin(), kEndOfTextNames.end(), text) == kEndOfTextNames.end())
      continue;
    has_end_of_messages |= text == kEndOfMessages;
    (text == kEndOfMessage ? end_of_message : eos_ids_).push_back(id);
  }
  if (!has_end_of_messages)
    eos_ids_.insert(eos_ids_.end(), end_of_message.begin(), end_of_message.end());
  std::sort(eos_ids_.begin(), eos_ids_.end());
  eos_ids_.erase(std::unique(eos_ids_.begin(), eos_ids_.end()), eos_ids_.end());
}

std::string_view Vocabulary::Bytes(TokenId id) const {
  if (!Contains(id)) return {};
  const uint32_t begin = id == 0 ? 0 : ends_[id - 1];
  return std::string_view(bytes_).substr(begin, ends_[id] - begin);
}

TokenType Vocabulary::Type(TokenId id) const {
  return Contains(id) ? types_[id] : TokenType::kUnused;
}

}  // namespace flotilla
