// Tokens that are found in a text before everything else: control tokens (<|im_end|>) and text that
// must not be cut.
//
// Cuts as the tokenizers library does: first the tokens that stand in the text as it is, then, in
// what lies between, those that stand in the normalised text; each time from left to right, the
// longest at each place. Time: as SpecialTokenMatcher. Threads: const after the last Add.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "common/base/status.h"
#include "common/text/normalizer.h"
#include "common/text/special_token_matcher.h"
#include "common/text/tokenizer.h"

namespace flotilla {

struct AddedToken {
  TokenId id = -1;
  std::string_view text;
  bool special = false;     // found only with parse_special
  bool normalized = false;  // looked for in normalised text, itself normalised
  bool lstrip = false;      // takes the white space before it
  bool rstrip = false;      // … and after it
};

class AddedTokens {
 public:
  // Of all tokens; some vocabularies have 10,000 of 30 bytes each.
  static constexpr size_t kMaxBytes = 4u << 20;

  // An empty text is left out. Errors: InvalidArgument if it is longer than the matcher takes, or
  // all together have over kMaxBytes.
  Status Add(const AddedToken& token, const Normalizer& normalizer);

  struct Part {
    std::string_view text;
    TokenId id = -1;  // −1: text between tokens, not empty
  };
  // The parts of `text`, by the tokens of the text as it is or of the normalised text.
  std::vector<Part> Cut(std::string_view text, bool parse_special) const;
  std::vector<Part> CutNormalized(std::string_view text, bool parse_special) const;

 private:
  struct Flags {
    bool lstrip = false;
    bool rstrip = false;
  };
  struct Kind {
    SpecialTokenMatcher all;
    SpecialTokenMatcher not_special;
    bool empty = true;
  };
  std::vector<Part> CutBy(const Kind& kind, std::string_view text, bool parse_special) const;

  size_t num_bytes_ = 0;
  Kind as_it_is_;
  Kind normalized_;
  absl::flat_hash_map<TokenId, Flags> strips_;  // only of those that strip
};

}  // namespace flotilla
