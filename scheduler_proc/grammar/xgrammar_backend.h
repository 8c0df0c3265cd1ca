// The only place that touches xgrammar: compiles a text, and follows an output with a matcher. Its
// exceptions stop here.
//
// Compile runs in the compile sandbox, a process of its own, because xgrammar's compiler can take
// any time and memory (measured: 500 nested objects, 3,000 properties, "a?" 2,000 times; docs/
// structured_outputs.md). What it compiled goes to the scheduler as JSON. A matcher runs in the
// scheduler's loop and is bounded by steps (step_budget.h): each token gives it kStepsPerToken, and
// it may save up to kMostSteps, so that an expensive place in an ordinary grammar passes and a
// grammar that is expensive everywhere does not. Steps don't depend on load: the same request ends
// the same way each time.
//
// Units: steps; bytes. Threads: an XGrammarVocabulary and a Grammar any, a matcher one at a time.
// Errors: InvalidArgument with a message for the client, which does not name the field.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "scheduler_proc/core/grammar.h"
#include "scheduler_proc/grammar/grammar_spec.h"

namespace xgrammar {
class TokenizerInfo;
}

namespace flotilla {

inline constexpr int64_t kStepsPerToken = 50'000;
inline constexpr int64_t kMostSteps = 4'000'000;
// Of all that Accept does for one request, beside its tokens' own: what a matcher remembers.
inline constexpr int64_t kMostHistorySteps = 4'000'000;

// A vocabulary as xgrammar wants it: each token's bytes (empty: never in an output), and those that
// end a sequence.
struct VocabularyTokens {
  uint32_t vocab_size = 0;  // of the logits: at least as many as there are tokens
  std::vector<std::string> tokens;
  std::vector<int32_t> eos_ids;
};

class XGrammarVocabulary {
 public:
  explicit XGrammarVocabulary(const VocabularyTokens& tokens);
  ~XGrammarVocabulary();
  const xgrammar::TokenizerInfo& info() const { return *info_; }

 private:
  std::unique_ptr<xgrammar::TokenizerInfo> info_;
};

// The compiled grammar as JSON. Takes any time and memory: for the sandbox.
StatusOr<std::string> CompileToJson(const GrammarSpec& spec, const XGrammarVocabulary& vocabulary);

// From what CompileToJson gave for the same vocabulary.
StatusOr<std::shared_ptr<const Grammar>> GrammarFromJson(std::string_view compiled,
                                                         const XGrammarVocabulary& vocabulary);

}  // namespace flotilla
