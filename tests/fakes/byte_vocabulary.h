// A tokenizer for tests of text without a model: ids 0 to 255 are the bytes, 256 is a control token
// "<|end|>", and the rest cut characters in awkward places. Encode gives single bytes.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "common/text/tokenizer.h"

namespace flotilla::testing {

class ByteVocabulary : public Tokenizer {
 public:
  static constexpr TokenId kControl = 256;

  ByteVocabulary() {
    for (int b = 0; b < 256; ++b) tokens_.push_back(std::string(1, static_cast<char>(b)));
    tokens_.push_back("<|end|>");
    for (const char* token : {"a\xf0\x9f", "\x98\x80", "\x80z\xe2", "\x82\xac\xe2\x82", "", "\xc3"})
      tokens_.push_back(token);
  }
  StatusOr<std::vector<TokenId>> Encode(std::string_view text, EncodeOptions) const override {
    std::vector<TokenId> ids;
    for (char c : text) ids.push_back(static_cast<uint8_t>(c));
    return ids;
  }
  std::string_view TokenBytes(TokenId id) const override {
    if (id < 0 || id >= static_cast<TokenId>(tokens_.size())) return {};
    return tokens_[id];
  }
  bool IsSpecial(TokenId id) const override { return id == kControl; }
  uint32_t vocab_size() const override { return static_cast<uint32_t>(tokens_.size()); }
  std::vector<TokenId> eos_ids() const override { return {kControl}; }
  TokenId bos_id() const override { return -1; }

 private:
  std::vector<std::string> tokens_;
};

}  // namespace flotilla::testing
