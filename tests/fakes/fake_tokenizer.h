// A small vocabulary for tests: ids 0 … 255 are the bytes, 256 … 509 are " w256" … " w509", 510 is
// "<|start|>" and 511 "<|end|>" (special; 511 ends a generation). Encode gives bytes only.
#pragma once

#include <string>
#include <vector>

#include "common/text/tokenizer.h"

namespace flotilla {

class FakeTokenizer final : public Tokenizer {
 public:
  static constexpr uint32_t kVocabSize = 512;
  static constexpr TokenId kStart = 510;
  static constexpr TokenId kEnd = 511;

  FakeTokenizer();
  using Tokenizer::Encode;
  StatusOr<std::vector<TokenId>> Encode(std::string_view text,
                                        EncodeOptions options) const override;
  std::string_view TokenBytes(TokenId id) const override;
  bool IsSpecial(TokenId id) const override { return id == kStart || id == kEnd; }
  uint32_t vocab_size() const override { return kVocabSize; }
  std::vector<TokenId> eos_ids() const override { return {kEnd}; }
  TokenId bos_id() const override { return -1; }

 private:
  std::vector<std::string> tokens_;
};

}  // namespace flotilla
