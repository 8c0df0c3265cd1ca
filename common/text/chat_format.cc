#include "common/text/chat_format.h"

#include <utility>

#include "absl/strings/ascii.h"

namespace flotilla {
namespace {

// The text of the token that a key of the file names.
std::optional<std::string> TokenText(const GgufFile& gguf, std::string_view key) {
  const std::vector<std::string_view>* tokens = gguf.FindStrings("tokenizer.ggml.tokens");
  const StatusOr<uint64_t> id = gguf.GetUint(key);
  if (tokens == nullptr || !id.ok() || *id >= tokens->size()) return std::nullopt;
  return std::string((*tokens)[*id]);
}

// Of `content` itself: not of reasoning_content, as Qwen3's does.
bool AsksWhetherContentIsNone(std::string_view source) {
  const auto is_name = [&](size_t at) {
    return absl::ascii_isalnum(static_cast<unsigned char>(source[at])) || source[at] == '_';
  };
  for (size_t at = source.find("content"); at != source.npos; at = source.find("content", at + 1)) {
    if (at > 0 && is_name(at - 1)) continue;
    size_t rest = at + std::string_view("content").size();
    while (rest < source.size() && (source[rest] == '\'' || source[rest] == '"')) ++rest;
    while (rest < source.size() && (source[rest] == ']' || source[rest] == ' ')) ++rest;
    for (const char* asks :
         {"is none", "is not none", "== none", "!= none", "== None", "!= None"}) {
      if (source.substr(rest).starts_with(asks)) return true;
    }
  }
  return false;
}

}  // namespace

ChatFormat::ChatFormat(ChatTemplate plain, ChatTemplate tool_use, std::string_view source,
                       std::string_view tool_use_source, std::optional<std::string> bos_token,
                       std::optional<std::string> eos_token)
    : plain_(std::move(plain)),
      tool_use_(std::move(tool_use)),
      tool_use_source_(std::make_shared<const std::string>(tool_use_source)),
      plain_asks_for_no_content_(AsksWhetherContentIsNone(source)),
      tool_use_asks_for_no_content_(AsksWhetherContentIsNone(tool_use_source)),
      bos_token_(std::move(bos_token)),
      eos_token_(std::move(eos_token)) {}

StatusOr<ChatFormat> ChatFormat::Create(const GgufFile& gguf) {
  constexpr const char* kKey = "tokenizer.chat_template";
  if (!gguf.metadata().contains(kKey))
    return absl::NotFoundError("the model's file has no chat template (tokenizer.chat_template)");
  constexpr const char* kToolUseKey = "tokenizer.chat_template.tool_use";
  ASSIGN_OR_RETURN(const std::string_view source, gguf.GetString(kKey));
  std::optional<std::string_view> tool_use_source;
  if (gguf.metadata().contains(kToolUseKey)) {
    ASSIGN_OR_RETURN(tool_use_source, gguf.GetString(kToolUseKey));
  }
  return Create(source, TokenText(gguf, "tokenizer.ggml.bos_token_id"),
                TokenText(gguf, "tokenizer.ggml.eos_token_id"), tool_use_source);
}

StatusOr<ChatFormat> ChatFormat::Create(std::string_view source,
                                        std::optional<std::string> bos_token,
                                        std::optional<std::string> eos_token,
                                        std::optional<std::string_view> tool_use_source) {
  ASSIGN_OR_RETURN(const ChatTemplate plain, ChatTemplate::Parse(source));
  ChatTemplate tool_use = plain;
  if (tool_use_source.has_value()) {
    ASSIGN_OR_RETURN(tool_use, ChatTemplate::Parse(*tool_use_source));
  }
  return ChatFormat(plain, std::move(tool_use), source, tool_use_source.value_or(source),
                    std::move(bos_token), std::move(eos_token));
}

StatusOr<std::string> ChatFormat::Render(ChatTemplateInput input) const {
  input.bos_token = bos_token_;
  input.eos_token = eos_token_;
  return (input.tools.is_null() ? plain_ : tool_use_).Render(input);
}

}  // namespace flotilla
