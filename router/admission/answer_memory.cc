#include "router/admission/answer_memory.h"

namespace flotilla {
namespace {

constexpr int64_t kRetryAfterMs = 1000;

}  // namespace

std::optional<ApiError> AnswerRoom::Resize(uint64_t bytes) {
  const AnswerLimits& limits = memory_.limits_;
  if (bytes > bytes_ && bytes > limits.max_answer_bytes) {
    memory_.metrics_.Rejection("answer_limit");
    return InvalidField("",
                        StrCat("The answer has become larger than the ", limits.max_answer_bytes,
                               " bytes that are kept of a request's; ask for a stream, or for "
                               "less: fewer tokens, choices, prompts or logprobs."));
  }
  const uint64_t before = memory_.bytes_.fetch_add(bytes - bytes_);  // modulo 2^64
  const bool full = before + (bytes - bytes_) > limits.max_buffered_answer_bytes;
  if (bytes > bytes_ && bytes > kFreeBytes && full) {
    memory_.bytes_.fetch_sub(bytes - bytes_);
    memory_.metrics_.Rejection("answer_memory");
    return Unavailable("Too many large answers are kept at once; try again, or ask for a stream.",
                       kRetryAfterMs);
  }
  memory_.metrics_.AnswerBytes(static_cast<double>(bytes) - static_cast<double>(bytes_));
  bytes_ = bytes;
  return std::nullopt;
}

}  // namespace flotilla
