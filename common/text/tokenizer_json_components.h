// The components of a tokenizer.json around its model. Private to common/text.
//
// Each reads one field of the file; a missing or null field is an empty component. Threads: pure
// functions. Errors: InvalidArgument naming the component and what is known instead.
#pragma once

#include <vector>

#include "common/base/status.h"
#include "common/text/json_node.h"
#include "common/text/normalizer.h"
#include "common/text/pre_tokenizer.h"
#include "common/text/tokenizer.h"

namespace flotilla::internal {

Status ReadNormalizer(const JsonNode& node, Normalizer* normalizer);

struct PreTokenization {
  std::vector<SplitStage> stages;
  bool byte_level = false;  // tokens are written in GPT-2's byte-level alphabet
  Normalizer metaspace;     // rewrites the text before the stages
};
Status ReadPreTokenizer(const JsonNode& node, PreTokenization* out);

struct Decoding {
  bool byte_level = false;
  bool byte_fallback = false;
  bool metaspace = false;  // ▁ becomes a space
  bool strips_leading_space = false;
};
Status ReadDecoder(const JsonNode& node, Decoding* out);

// What add_special puts around a text.
struct SpecialIds {
  std::vector<TokenId> prefix;
  std::vector<TokenId> suffix;
};
Status ReadPostProcessor(const JsonNode& node, uint32_t num_tokens, SpecialIds* out);

}  // namespace flotilla::internal
