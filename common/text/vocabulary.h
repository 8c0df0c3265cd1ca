// The tokens of a model: their bytes, types and special roles, whatever the algorithm that uses
// them and the file they come from.
//
// Threads: const after the last change. Ownership: copies everything it keeps.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/status.h"
#include "common/text/tokenizer.h"

namespace flotilla {

// As tokenizer.ggml.token_type numbers them.
enum class TokenType : uint8_t {
  kNormal = 1,
  kUnknown = 2,
  kControl = 3,      // means something to the model, e.g. <|im_end|>
  kUserDefined = 4,  // text that must not be cut
  kUnused = 5,
  kByte = 6,  // SentencePiece's <0x41>
};

class Vocabulary {
 public:
  static constexpr size_t kMaxTokens = 1u << 24;
  static constexpr size_t kMaxBytes = 1u << 30;  // of all tokens

  void Reserve(size_t num_tokens);
  // The next id. A control token that is a tag in answers, such as <tool_call>, is user-defined
  // here, so that it is not hidden from who reads them. Errors: InvalidArgument beyond kMaxTokens
  // or kMaxBytes.
  Status Add(std::string_view bytes, TokenType type);

  uint32_t size() const { return static_cast<uint32_t>(types_.size()); }
  bool Contains(TokenId id) const { return id >= 0 && static_cast<uint32_t>(id) < size(); }
  // Empty for ids out of range.
  std::string_view Bytes(TokenId id) const;
  // kUnused for ids out of range.
  TokenType Type(TokenId id) const;

  TokenId bos_id() const { return bos_id_; }  // −1: none
  void set_bos_id(TokenId id) { bos_id_ = id; }
  const std::vector<TokenId>& eos_ids() const { return eos_ids_; }
  // These, and all control tokens that are the end of a text by their well-known names.
  void SetEosIds(std::vector<TokenId> ids);

 private:
  std::string bytes_;           // of all tokens, one after the other
  std::vector<uint32_t> ends_;  // token i is bytes_[ends_[i - 1], ends_[i])
  std::vector<TokenType> types_;
  TokenId bos_id_ = -1;
  std::vector<TokenId> eos_ids_;
};

}  // namespace flotilla
