// What one step runs, as the scheduler keeps it until its result is back. The plan sent to the
// workers is the difference between this and what they already know.
//
// Units: tokens. Threads: one. Ownership: does not own the requests.
// Source: SGLang's ScheduleBatch and ForwardMode (requirement 001).
#pragma once

#include <cstdint>
#include <vector>

#include "scheduler_proc/core/req.h"

namespace flotilla {

enum class ForwardMode : uint32_t { kIdle, kExtend, kDecode, kMixed };

struct BatchRow {
  Req* req = nullptr;
  uint32_t start = 0;  // position of the first token
  uint32_t num_tokens = 0;
  bool samples = false;
  bool extend = false;  // prefill, or what was computed before a retraction
};

struct ScheduleBatch {
  uint64_t step_id = 0;
  std::vector<BatchRow> rows;
  uint32_t num_extend_rows = 0;
  uint32_t num_extend_tokens = 0;
  bool retracted = false;      // someone lost its slot for it
  double new_token_ratio = 0;  // in force when it was planned

  void Clear() {
    rows.clear();
    num_extend_rows = num_extend_tokens = 0;
    retracted = false;
  }
  bool empty() const { return rows.empty(); }

  // The next `num_tokens` tokens of the request.
  void AddRow(Req* req, uint32_t num_tokens, bool extend) {
    rows.push_back({.req = req,
                    .start = req->num_computed,
                    .num_tokens = num_tokens,
                    .samples = req->num_computed + num_tokens == req->len(),
                    .extend = extend});
    if (!extend) return;
    ++num_extend_rows;
    num_extend_tokens += num_tokens;
  }

  ForwardMode forward_mode() const {
    if (rows.empty()) return ForwardMode::kIdle;
    if (num_extend_rows == 0) return ForwardMode::kDecode;
    return num_extend_rows == rows.size() ? ForwardMode::kExtend : ForwardMode::kMixed;
  }
};

}  // namespace flotilla
