// The tokens of a GGUF: their bytes, types and special roles, whatever the algorithm that uses
// them.
//
// Threads: const after Read. Ownership: copies everything it keeps. Errors: InvalidArgument naming
// the field of the file.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/status.h"
#include "common/checkpoint/gguf.h"
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
  // `to_bytes` turns the text of a normal token into its bytes; none: the text stands for itself,
  // as that of special tokens always does.
  using ToBytes = std::function<std::optional<std::string>(std::string_view)>;
  static StatusOr<Vocabulary> Read(const GgufFile& gguf, const ToBytes& to_bytes);

  uint32_t size() const { return static_cast<uint32_t>(types_.size()); }
  bool Contains(TokenId id) const { return id >= 0 && static_cast<uint32_t>(id) < size(); }
  // Empty for ids out of range.
  std::string_view Bytes(TokenId id) const;
  // kUnused for ids out of range.
  TokenType Type(TokenId id) const;

  TokenId bos_id() const { return bos_id_; }  // −1: none
  bool add_bos() const { return add_bos_; }
  const std::vector<TokenId>& eos_ids() const { return eos_ids_; }

 private:
  Status ReadRoles(const GgufFile& gguf);

  std::string bytes_;           // of all tokens, one after the other
  std::vector<uint32_t> ends_;  // token i is bytes_[ends_[i - 1], ends_[i])
  std::vector<TokenType> types_;
  TokenId bos_id_ = -1;
  bool add_bos_ = false;
  std::vector<TokenId> eos_ids_;
};

}  // namespace flotilla
