// Grammars in a flight recording: what a request's grammar answered, so that a replay, which has no
// grammar, hears the same.
//
// RecordedGrammar passes each question of the core on and appends its answer to a log, a byte each;
// ReplayedGrammar takes them from one in the same order. Masks are not kept: nothing that the core
// decides depends on them, so those of a replay are empty.
//
// Threads: one. Ownership: the log is the caller's and outlives grammars and matchers. Errors:
// RecordedGrammar's are the grammar's, ReplayedGrammar's have their codes.
#pragma once

#include <memory>
#include <string>

#include "scheduler_proc/core/grammar.h"

namespace flotilla {

struct GrammarLog {
  std::string answers;  // to a call of the core: a status code each, or 0 and 1 for false and true
  size_t taken = 0;     // by a replay
  bool ran_out = false;

  void Clear() { *this = GrammarLog(); }
};

std::shared_ptr<const Grammar> RecordedGrammar(std::shared_ptr<const Grammar> grammar,
                                               GrammarLog* log);
std::shared_ptr<const Grammar> ReplayedGrammar(GrammarLog* log);

}  // namespace flotilla
