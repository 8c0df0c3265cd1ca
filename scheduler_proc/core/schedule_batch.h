// What one step runs, as the scheduler keeps it until its result is back. The plan sent to the
// workers is the difference between this and what they already know.
//
// Units: tokens. Threads: one. Ownership: does not own the requests.
// Source: SGLang's ScheduleBatch and ForwardMode (requirement 001).
#pragma once

#include <cstdint>
#include <vector>

#include "scheduler_proc/core/req.h"
#include "scheduler_proc/core/step_cost.h"

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
  StepWork work;

  void Clear() {
    rows.clear();
    num_extend_rows = num_extend_tokens = 0;
    retracted = false;
    work = {};
  }
  bool empty() const { return rows.empty(); }

  // The next `num_tokens` tokens of the request.
  void AddRow(Req* req, uint32_t num_tokens, bool extend) {
    rows.push_back({.req = req,
                    .start = req->num_scheduled,
                    .num_tokens = num_tokens,
                    .samples = num_tokens == req->num_pending(),
                    .extend = extend});
    work.Add(req->num_scheduled, num_tokens, NumLogits(rows.back()));
    if (!extend) return;
    ++num_extend_rows;
    num_extend_tokens += num_tokens;
  }

  // Tokens of the row whose logits are wanted.
  static uint32_t NumLogits(const BatchRow& row) {
    if (!row.req->may_read_cache() && row.start < row.req->prompt_len) return row.num_tokens;
    return row.samples ? 1 : 0;
  }

  ForwardMode forward_mode() const {
    if (rows.empty()) return ForwardMode::kIdle;
    if (num_extend_rows == 0) return ForwardMode::kDecode;
    return num_extend_rows == rows.size() ? ForwardMode::kExtend : ForwardMode::kMixed;
  }
};

}  // namespace flotilla
