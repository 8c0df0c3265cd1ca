// What the core needs of structured output: a Grammar that was compiled elsewhere, and for each
// request a GrammarMatcher that follows its output token by token.
//
// Masks have a bit a token, token t in bit t % 32 of word t / 32; set: the token may come next.
// What was accepted is not taken back: a request with a grammar is planned when its last token is
// known, and a retracted one keeps its matcher, whose tokens are those of the request. How a draft
// would fare is asked without accepting it.
//
// Threads: a Grammar any (it is immutable), a matcher one. Ownership: a matcher shares what it
// needs of its grammar. Errors: InvalidArgument, with a message for the client; the matcher is then
// good for nothing but its destructor. Source: SGLang's BaseGrammarObject.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "common/base/status.h"
#include "shm/step_plan.h"

namespace flotilla {

class GrammarMatcher {
 public:
  virtual ~GrammarMatcher() = default;

  // Sets all of `mask` (MaskWords of the vocabulary, shm/step_plan.h). An end of sequence is in it
  // exactly when the output may end here. Error too if no token may come next. Not after
  // IsTerminated().
  virtual Status FillMask(std::span<uint32_t> mask) = 0;
  // The output's next token. Error: the grammar does not allow it.
  virtual Status Accept(int32_t token) = 0;
  // An end of sequence was accepted.
  virtual bool IsTerminated() const = 0;
  // How many of the first tokens of `guess` (at least one) may come next, one after the other, an
  // end of sequence not among them; fewer if it takes too long. `masks` has room for one more than
  // those: the first is that which FillMask made, and for each token that may come that behind it
  // is added. Whatever happens, the matcher goes on as if it had not been called.
  virtual uint32_t FollowGuess(std::span<const int32_t> guess, std::span<uint32_t> masks) = 0;
};

class Grammar {
 public:
  virtual ~Grammar() = default;
  virtual StatusOr<std::unique_ptr<GrammarMatcher>> NewMatcher() const = 0;
};

}  // namespace flotilla
