// How long a text may be at most that fits a context, known before it is tokenised.
//
// Units: bytes, tokens. Threads: any. Errors: none.
#pragma once

#include <algorithm>
#include <cstddef>

#include "common/text/tokenizer.h"

namespace flotilla {

// Of the longest token. Looks at all of them.
inline size_t MaxTokenBytes(const Tokenizer& tokenizer) {
  size_t bytes = 0;
  for (TokenId id = 0; id < static_cast<TokenId>(tokenizer.vocab_size()); ++id)
    bytes = std::max(bytes, tokenizer.TokenBytes(id).size());
  return bytes;
}

// Normalising a text may leave a quarter of its bytes.
inline size_t MaxPromptBytes(size_t context_length, size_t max_token_bytes) {
  return 4 * context_length * max_token_bytes;
}

}  // namespace flotilla
