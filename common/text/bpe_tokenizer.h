// Byte pair encoding: Tokenizer over its parts. gguf_tokenizer.cc and tokenizer_json.cc make the
// parts of files.
//
// Threads, errors: see tokenizer.h.
#pragma once

#include <memory>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "common/base/status.h"
#include "common/text/added_tokens.h"
#include "common/text/bpe_merger.h"
#include "common/text/normalizer.h"
#include "common/text/pre_tokenizer.h"
#include "common/text/symbol_table.h"
#include "common/text/tokenizer.h"
#include "common/text/vocabulary.h"

namespace flotilla {

// In the order in which a text meets them.
struct BpeParts {
  std::vector<TokenId> prefix;  // of add_special, e.g. bos
  AddedTokens added_tokens;
  Normalizer normalizer;
  Normalizer metaspace;  // of the text between tokens of normalised text
  PreTokenizer pre_tokenizer;
  bool ignore_merges = false;  // a piece that is a normal token is that token; byte level only
  SymbolTable symbols{SymbolTable::Kind::kBytes};
  BpeMerger merger;
  std::vector<TokenId> suffix;  // of add_special
  Vocabulary vocabulary;
  bool strips_leading_space = false;
};

std::unique_ptr<Tokenizer> MakeBpeTokenizer(BpeParts parts);

}  // namespace flotilla
