// Cuts text into the pieces that BPE merges within.
//
// A pre-tokenizer is a list of stages. Each stage searches its pattern in each piece of the stage
// before, as if the piece were the whole text (so that a lookahead at its end sees nothing), and
// cuts it into matches and what lies between them. PCRE2 with JIT; time is linear in the text for
// every pattern of the table (pre_tokenizer_table.h). Threads: const methods from any thread.
// Errors: Split fails only if PCRE2 gives up (its match limits), and says so.
#pragma once

#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "common/base/status.h"

namespace flotilla {

struct SplitStage {
  std::string_view pattern;  // as ToPcre2 takes it
  bool of_bytes = false;     // a character of the pattern is a byte: cuts within characters
  bool drop_gaps = false;    // what lies between matches is no piece
};

class PreTokenizer {
 public:
  // Without stages a text is one piece.
  PreTokenizer();
  static StatusOr<PreTokenizer> Create(std::span<const SplitStage> stages);
  ~PreTokenizer();
  PreTokenizer(PreTokenizer&& other) noexcept;
  PreTokenizer& operator=(PreTokenizer&& other) noexcept;

  // Appends the pieces of `text` (valid UTF-8), in order; they point into it.
  Status Split(std::string_view text, std::vector<std::string_view>* pieces) const;

 private:
  class Stage;
  std::vector<Stage> stages_;
};

}  // namespace flotilla
