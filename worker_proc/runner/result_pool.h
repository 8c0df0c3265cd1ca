// Memory of a StepResult from step to step. A step with fewer rows, or fewer positions with
// logprobs, than the one before leaves what it does not need here, for the next that does: in
// steady state a result allocates nothing.
//
// Row i of a result is always the same object, so what it once grew to it keeps. Threads: one.
// Ownership: the result owns what it holds; it may be any result, also a fresh one. Errors: none.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "shm/step_result.h"

namespace flotilla {

class ResultPool {
 public:
  // max_rows, max_positions: of a step.
  ResultPool(uint32_t max_rows, uint32_t max_positions);

  // *result gets num_rows rows as if they were new.
  void Renew(size_t num_rows, StepResult* result);
  // One position more in row->prompt_logprobs.
  PositionLogprobs* AddPromptPosition(RowResult* row);
  // The row's token, with its logprobs if it has some, is one of its draft.
  void Accept(RowResult* row);

 private:
  PositionLogprobs TakePosition();
  void GiveBack(std::vector<PositionLogprobs>* positions);

  const uint32_t max_rows_;
  const uint32_t max_positions_;
  std::vector<RowResult> rows_;  // the next row of a result is the last
  std::vector<PositionLogprobs> positions_;
};

}  // namespace flotilla
