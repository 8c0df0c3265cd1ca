#include "tests/fakes/fake_tokenizer.h"

namespace flotilla {

FakeTokenizer::FakeTokenizer() {
  for (int i = 0; i < 256; ++i) tokens_.emplace_back(1, static_cast<char>(i));
  for (uint32_t i = 256; i < kStart; ++i) tokens_.push_back(" w" + std::to_string(i));
  tokens_.push_back("<|start|>");
  tokens_.push_back("<|end|>");
}

StatusOr<std::vector<TokenId>> FakeTokenizer::Encode(std::string_view text, EncodeOptions) const {
  std::vector<TokenId> ids;
  for (char c : text) ids.push_back(static_cast<unsigned char>(c));
  return ids;
}

std::string_view FakeTokenizer::TokenBytes(TokenId id) const {
  if (id < 0 || static_cast<size_t>(id) >= tokens_.size()) return {};
  return tokens_[static_cast<size_t>(id)];
}

}  // namespace flotilla
