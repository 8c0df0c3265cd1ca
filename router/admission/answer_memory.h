// Memory that answers take which are kept before clients get them: whole ones, best_of's
// candidates, prompt logprobs. A request has a bound, and so have all together.
//
// A request's first kFreeBytes are always granted, so that large answers never refuse small ones.
// Units: bytes. Threads: any; an AnswerRoom's methods one at a time. Ownership: the memory outlives
// its rooms, a room goes with the last who keeps it. Errors: INVALID_ARGUMENT for a request that is
// too large itself, UNAVAILABLE if all together are; then nothing has changed.
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>

#include "router/base/api_error.h"
#include "router/base/router_metrics.h"

namespace flotilla {

struct AnswerLimits {
  uint64_t max_answer_bytes = 64 << 20;            // of a request
  uint64_t max_buffered_answer_bytes = 256 << 20;  // of all
};

class AnswerMemory {
 public:
  AnswerMemory(AnswerLimits limits, RouterMetrics* metrics) : limits_(limits), metrics_(*metrics) {}

 private:
  friend class AnswerRoom;

  const AnswerLimits limits_;
  RouterMetrics& metrics_;
  std::atomic<uint64_t> bytes_{0};
};

class AnswerRoom {
 public:
  static constexpr uint64_t kFreeBytes = 64 << 10;

  explicit AnswerRoom(AnswerMemory* memory) : memory_(*memory) {}
  ~AnswerRoom() { Resize(0); }
  AnswerRoom(const AnswerRoom&) = delete;
  AnswerRoom& operator=(const AnswerRoom&) = delete;

  // So much is kept of the request from now on.
  std::optional<ApiError> Resize(uint64_t bytes);

 private:
  AnswerMemory& memory_;
  uint64_t bytes_ = 0;
};

}  // namespace flotilla
