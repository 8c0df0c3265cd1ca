// libFuzzer: any frames in the result ring, as the scheduler reads them. What is taken has one
// spelling, and every number in it is within its range.
//
// The input is a list of frames (fuzz_input.h): the parser reuses what it filled before.
#include <cmath>
#include <string>

#include "common/base/check.h"
#include "shm/step_result.h"
#include "tests/fuzz/fuzz_input.h"

namespace flotilla {
namespace {

constexpr uint32_t kMaxSlots = 8;
constexpr int32_t kVocabSize = 1000;

bool IsToken(int32_t token) { return token >= 0 && token < kVocabSize; }

void CheckPosition(const PositionLogprobs& position) {
  CHECK(IsToken(position.token) && !std::isnan(position.logprob));
  CHECK(position.rank >= 1 && position.rank <= kVocabSize && position.top.size() <= kMaxLogprobs);
  for (const TokenLogprob& top : position.top)
    CHECK(IsToken(top.token) && !std::isnan(top.logprob));
}

void CheckResult(const StepResult& result) {
  CHECK(result.rows.size() <= kMaxSlots && result.code <= 16);
  for (const RowResult& row : result.rows) {
    CHECK(row.slot < kMaxSlots && (row.token == -1 || IsToken(row.token)));
    if (row.has_logprobs) CheckPosition(row.logprobs);
    for (const PositionLogprobs& position : row.prompt_logprobs) CheckPosition(position);
    for (const float value : row.embedding) CHECK(std::isfinite(value));
  }
}

}  // namespace
}  // namespace flotilla

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace flotilla;
  fuzz::FuzzInput input(data, size);
  StepResult result;
  std::string frame;
  while (!input.empty()) {
    const fuzz::Piece piece = input.GetPiece();
    if (!ParseStepResult(piece.view(), kMaxSlots, kVocabSize, &result).ok()) continue;
    CheckResult(result);
    BuildStepResult(result, &frame);
    CHECK(frame == piece.view());
  }
  return 0;
}
