#include "common/text/vocabulary.h"

#include <algorithm>
#include <array>
#include <utility>

namespace flotilla {
namespace {

constexpr size_t kMaxTokens = 1u << 24;
constexpr size_t kMaxBytes = 1u << 30;  // of all tokens

constexpr std::array<std::string_view, 8> kEndOfTextNames = {
    "<|endoftext|>", "<|im_end|>", "<|end_of_text|>", "<|eot_id|>",
    "<|eom_id|>",    "<|end|>",    "<end_of_turn>",   "</s>"};

// −1: the file has no such key.
StatusOr<TokenId> ReadId(const GgufFile& gguf, std::string_view key, const Vocabulary& vocabulary) {
  if (gguf.metadata().find(key) == gguf.metadata().end()) return -1;
  ASSIGN_OR_RETURN(const uint64_t id, gguf.GetUint(key));
  if (id >= vocabulary.size()) {
    return absl::InvalidArgumentError(absl::StrCat(
        std::string(key), " is ", id, ", but there are only ", vocabulary.size(), " tokens"));
  }
  return static_cast<TokenId>(id);
}

}  // namespace

StatusOr<Vocabulary> Vocabulary::Read(const GgufFile& gguf, const ToBytes& to_bytes) {
  const auto* tokens = gguf.FindStrings("tokenizer.ggml.tokens");
  if (tokens == nullptr || tokens->empty() || tokens->size() > kMaxTokens) {
    return absl::InvalidArgumentError(
        absl::StrCat("tokenizer.ggml.tokens must be an array of 1 to ", kMaxTokens, " strings"));
  }
  const auto* types = gguf.FindInts("tokenizer.ggml.token_type");
  if (types != nullptr && types->size() != tokens->size()) {
    return absl::InvalidArgumentError(absl::StrCat("tokenizer.ggml.token_type has ", types->size(),
                                                   " entries for ", tokens->size(), " tokens"));
  }
  Vocabulary result;
  result.ends_.reserve(tokens->size());
  result.types_.reserve(tokens->size());
  for (size_t i = 0; i < tokens->size(); ++i) {
    const int64_t type = types == nullptr ? 1 : (*types)[i];
    if (type < 1 || type > 6) {
      return absl::InvalidArgumentError(
          absl::StrCat("tokenizer.ggml.token_type[", i, "] is ", type, ", not 1 to 6"));
    }
    result.types_.push_back(static_cast<TokenType>(type));
    const std::string_view written = (*tokens)[i];
    std::optional<std::string> bytes;
    if (type == static_cast<int64_t>(TokenType::kNormal)) bytes = to_bytes(written);
    result.bytes_.append(bytes.has_value() ? std::string_view(*bytes) : written);
    if (result.bytes_.size() > kMaxBytes)
      return absl::InvalidArgumentError("tokenizer.ggml.tokens has over 1 GiB of text");
    result.ends_.push_back(static_cast<uint32_t>(result.bytes_.size()));
  }
  RETURN_IF_ERROR(result.ReadRoles(gguf));
  return result;
}

Status Vocabulary::ReadRoles(const GgufFile& gguf) {
  ASSIGN_OR_RETURN(bos_id_, ReadId(gguf, "tokenizer.ggml.bos_token_id", *this));
  if (gguf.metadata().find("tokenizer.ggml.add_bos_token") != gguf.metadata().end()) {
    ASSIGN_OR_RETURN(add_bos_, gguf.GetBool("tokenizer.ggml.add_bos_token"));
    add_bos_ = add_bos_ && bos_id_ >= 0;
  }
  for (std::string_view key : {"tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id",
                               "tokenizer.ggml.eom_token_id"}) {
    ASSIGN_OR_RETURN(const TokenId id, ReadId(gguf, key, *this));
    if (id >= 0) eos_ids_.push_back(id);
  }
  for (TokenId id = 0; Contains(id); ++id) {
    if (Type(id) == TokenType::kControl && std::find(kEndOfTextNames.begin(), kEndOfTextNames.end(),
                                                     Bytes(id)) != kEndOfTextNames.end()) {
      eos_ids_.push_back(id);
    }
  }
  std::sort(eos_ids_.begin(), eos_ids_.end());
  eos_ids_.erase(std::unique(eos_ids_.begin(), eos_ids_.end()), eos_ids_.end());
  return OkStatus();
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
