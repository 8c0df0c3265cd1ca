// What rank 0 reports after a step: sampled tokens, logprobs, embeddings.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/status.h"
#include "shm/step_plan.h"

namespace flotilla {

inline constexpr uint32_t kStepResultVersion = 4;
inline constexpr uint32_t kMaxLogprobs = 20;

struct TokenLogprob {
  int32_t token = 0;
  float logprob = 0;  // natural log, of the raw logits
};

// One position's logprobs: of the token that stands there, its rank (1 = most likely), and the top
// n in falling order.
struct PositionLogprobs {
  int32_t token = 0;
  float logprob = 0;
  uint32_t rank = 0;
  std::vector<TokenLogprob> top;
};

// Of a position in a frame, at most.
inline constexpr size_t kMaxPositionBytes = 16 + kMaxLogprobs * sizeof(TokenLogprob);

struct RowResult {
  uint32_t slot = 0;
  int32_t token = -1;  // sampled; -1: the row did not sample
  bool has_logprobs = false;
  PositionLogprobs logprobs;  // of `token`
  // With kRowVerify: the tokens of the draft that were sampled too, in front of `token`, and with
  // has_logprobs theirs.
  std::vector<int32_t> accepted;
  std::vector<PositionLogprobs> accepted_logprobs;
  uint32_t prompt_start = 0;  // position of the first token in prompt_logprobs
  std::vector<PositionLogprobs> prompt_logprobs;
  std::vector<float> embedding;  // [hidden_size] with kRowEmbed, not normalised; else empty
};

struct StepResult {
  uint64_t step_id = 0;
  uint32_t epoch = 0;
  uint32_t code = 0;  // absl::StatusCode; not 0: the step failed, `message` says why
  std::string message;
  int64_t start_ns = 0;  // the worker began / ended the step (CLOCK_MONOTONIC)
  int64_t end_ns = 0;
  bool cuda_graph = false;  // the step was replayed from graphs
  // In the plan's order; of a step that failed the one that made it fail, by its slot alone, if
  // known.
  std::vector<RowResult> rows;
};

void BuildStepResult(const StepResult& result, std::string* frame);
Status ParseStepResult(std::string_view frame, uint32_t max_slots, uint32_t vocab_size,
                       StepResult* result);

}  // namespace flotilla
