// A tokenizer's vocabulary as grammars want it: bytes of the tokens that may stand in an output,
// and which tokens end it. Special tokens never stand in one. Threads: any. Errors: none.
#pragma once

#include <algorithm>

#include "common/text/tokenizer.h"
#include "scheduler_proc/grammar/xgrammar_backend.h"

namespace flotilla {

// vocab_size: of the logits, which may be more than the tokenizer's.
inline VocabularyTokens GrammarVocabulary(const Tokenizer& tokenizer, uint32_t vocab_size) {
  VocabularyTokens vocabulary;
  vocabulary.vocab_size = vocab_size;
  vocabulary.eos_ids = tokenizer.eos_ids();
  const uint32_t tokens = std::min(vocab_size, tokenizer.vocab_size());
  for (uint32_t i = 0; i < tokens; ++i) {
    const auto id = static_cast<TokenId>(i);
    vocabulary.tokens.emplace_back(tokenizer.IsSpecial(id) ? "" : tokenizer.TokenBytes(id));
  }
  return vocabulary;
}

}  // namespace flotilla
