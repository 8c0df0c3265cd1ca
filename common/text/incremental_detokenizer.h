// Text of one generation as its tokens come: never emits half a UTF-8 character.
//
// Bytes that may still become a character are held back; what can no longer become one is emitted
// as U+FFFD, so that the concatenation of all emitted text equals Tokenizer::DecodeRest of all ids
// (what a model writes follows a prompt), or Tokenizer::Decode if they are a whole sequence.
// Threads: one at a time.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "common/text/tokenizer.h"

namespace flotilla {

// Appends to *out the longest prefix of `bytes` that is decided, invalid sequences replaced by
// U+FFFD as Python does (maximal subparts); returns how many bytes were consumed. The rest (at most
// 3 bytes) is an unfinished character.
size_t DecodeUtf8Replacing(std::string_view bytes, std::string* out);

class IncrementalDetokenizer {
 public:
  enum class Begins { kAfterPrompt, kSequence };
  IncrementalDetokenizer(const Tokenizer* tokenizer, bool skip_special,
                         Begins begins = Begins::kAfterPrompt)
      : tokenizer_(tokenizer),
        skip_special_(skip_special),
        strip_space_(begins == Begins::kSequence && tokenizer->strips_leading_space()) {}

  // The text that became certain with this token.
  std::string Push(TokenId id);
  // Nothing more comes: held-back bytes as U+FFFD.
  std::string Finish();
  // Bytes not emitted yet (0 to 3).
  std::string_view held_back() const { return held_back_; }

 private:
  const Tokenizer* tokenizer_;
  bool skip_special_;
  bool strip_space_;  // of the text that is still to begin
  std::string held_back_;
};

}  // namespace flotilla
