// A small vocabulary for tests of grammars: the 256 bytes, some longer tokens, and an end of
// sequence.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "scheduler_proc/grammar/xgrammar_backend.h"

namespace flotilla::testing {

inline constexpr int32_t kTestEos = 256;  // token b is the byte b for b < 256

// 270 logits, of which the last have no token.
inline VocabularyTokens TestTokens() {
  VocabularyTokens tokens;
  tokens.vocab_size = 270;
  for (int byte = 0; byte < 256; ++byte) tokens.tokens.emplace_back(1, static_cast<char>(byte));
  tokens.tokens.emplace_back("");  // kTestEos
  for (const char* text : {"ab", "{\"", "\":", "true", "false", "null", "12"})
    tokens.tokens.emplace_back(text);
  tokens.eos_ids = {kTestEos};
  return tokens;
}

inline bool Allows(std::span<const uint32_t> mask, int32_t token) {
  const auto bit = static_cast<uint32_t>(token);
  return (mask[bit / 32] >> (bit % 32) & 1) != 0;
}

inline std::string SandboxProgram() {
  const char* bin = std::getenv("FLOTILLA_BIN_DIR");
  return std::string(bin == nullptr ? "build/release/bin" : bin) + "/flotilla-grammar";
}

// Feeds `text` byte by byte; an end of sequence must be allowed exactly if `ends`.
inline void ExpectFollows(const Grammar& grammar, const std::string& text, bool ends) {
  auto matcher = grammar.NewMatcher();
  ASSERT_TRUE(matcher.ok()) << matcher.status();
  std::vector<uint32_t> mask(MaskWords(TestTokens().vocab_size));
  for (const char c : text) {
    ASSERT_TRUE((*matcher)->FillMask(mask).ok());
    const auto token = static_cast<int32_t>(static_cast<unsigned char>(c));
    ASSERT_TRUE(Allows(mask, token)) << "'" << c << "' of " << text;
    ASSERT_TRUE((*matcher)->Accept(token).ok());
  }
  ASSERT_TRUE((*matcher)->FillMask(mask).ok());
  EXPECT_EQ(Allows(mask, kTestEos), ends) << text;
}

}  // namespace flotilla::testing
