#include "common/text/chat_format.h"

#include <utility>

namespace flotilla {
namespace {

// The text of the token that a key of the file names.
std::optional<std::string> TokenText(const GgufFile& gguf, std::string_view key) {
  const std::vector<std::string_view>* tokens = gguf.FindStrings("tokenizer.ggml.tokens");
  const StatusOr<uint64_t> id = gguf.GetUint(key);
  if (tokens == nullptr || !id.ok() || *id >= tokens->size()) return std::nullopt;
  return std::string((*tokens)[*id]);
}

}  // namespace

StatusOr<ChatFormat> ChatFormat::Create(const GgufFile& gguf) {
  constexpr const char* kKey = "tokenizer.chat_template";
  if (!gguf.metadata().contains(kKey))
    return absl::NotFoundError("the model's file has no chat template (tokenizer.chat_template)");
  ASSIGN_OR_RETURN(const std::string_view source, gguf.GetString(kKey));
  return Create(source, TokenText(gguf, "tokenizer.ggml.bos_token_id"),
                TokenText(gguf, "tokenizer.ggml.eos_token_id"));
}

StatusOr<ChatFormat> ChatFormat::Create(std::string_view source,
                                        std::optional<std::string> bos_token,
                                        std::optional<std::string> eos_token) {
  ASSIGN_OR_RETURN(ChatTemplate parsed, ChatTemplate::Parse(source));
  return ChatFormat(std::move(parsed), source, std::move(bos_token), std::move(eos_token));
}

StatusOr<std::string> ChatFormat::Render(ChatTemplateInput input) const {
  input.bos_token = bos_token_;
  input.eos_token = eos_token_;
  return template_.Render(input);
}

}  // namespace flotilla
