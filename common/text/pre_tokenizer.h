// Cuts text into the pieces that BPE merges within, by the rules a GGUF names in
// tokenizer.ggml.pre.
//
// A rule is a list of stages. Each stage searches its pattern in each piece of the stage before, as
// if the piece were the whole text (so that a lookahead at its end sees nothing), and cuts it into
// matches and what lies between them. PCRE2 with JIT; time is linear in the text for every pattern
// of the table. Threads: const methods from any thread. Errors: Create names the rules that are
// known; Split fails only if PCRE2 does.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/status.h"

namespace flotilla {

class PreTokenizer {
 public:
  static StatusOr<std::unique_ptr<PreTokenizer>> Create(std::string_view name);
  // "gpt-2, smollm": the names Create knows.
  static std::string KnownNames();
  ~PreTokenizer();
  PreTokenizer(const PreTokenizer&) = delete;
  PreTokenizer& operator=(const PreTokenizer&) = delete;

  // Appends the pieces of `text` (valid UTF-8), in order and without gaps; they point into it.
  Status Split(std::string_view text, std::vector<std::string_view>* pieces) const;

 private:
  class Stage;
  PreTokenizer();
  std::vector<Stage> stages_;
};

}  // namespace flotilla
