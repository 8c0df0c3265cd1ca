// What keeps a grammar from running away inside the matcher: each unit of an Earley parser's work
// is charged to the thread's budget, and an empty budget throws.
//
// Only xgrammar calls ChargeGrammarSteps, where cmake/xgrammar.patch put it: a parser state
// that is added, compared or scanned, an edge or an uncertain token that is looked at. A step takes
// some nanoseconds, so a budget bounds time and memory alike, and since steps don't depend on the
// load, the same request ends the same way each time.
//
// Threads: a budget a thread; without a ScopedStepBudget it never runs out. Errors:
// StepBudgetExceeded, which leaves the matcher good for nothing but its destructor. Source: ours.
#pragma once

#include <cstddef>
#include <cstdint>
#include <exception>

namespace flotilla {

struct StepBudgetExceeded : std::exception {
  const char* what() const noexcept override { return "the grammar needs too many steps"; }
};

inline constinit thread_local int64_t grammar_steps_left = INT64_MAX;

inline void ChargeGrammarSteps(size_t steps) {
  grammar_steps_left -= static_cast<int64_t>(steps);
  if (grammar_steps_left < 0) throw StepBudgetExceeded();
}

class ScopedStepBudget {
 public:
  explicit ScopedStepBudget(int64_t steps) : budget_(steps) { grammar_steps_left = steps; }
  ~ScopedStepBudget() { grammar_steps_left = INT64_MAX; }
  ScopedStepBudget(const ScopedStepBudget&) = delete;
  ScopedStepBudget& operator=(const ScopedStepBudget&) = delete;
  int64_t used() const { return budget_ - grammar_steps_left; }

 private:
  const int64_t budget_;
};

}  // namespace flotilla
