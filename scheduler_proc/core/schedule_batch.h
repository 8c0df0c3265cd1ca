// What one step runs, as the scheduler keeps it until its result is back. The plan sent to the
// workers is the difference between this and what they already know.
//
// Units: tokens. Threads: one. Ownership: does not own the requests.
// Source: SGLang's ScheduleBatch and ForwardMode (requirement 001).
#pragma once

#include <cstdint>
#include <span>
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
  bool embeds = false;  // the last of a pooled prompt
  bool extend = false;  // prefill, or what was computed before a retraction

  uint32_t num_draft() const { return extend ? 0 : num_tokens - 1; }
  // At most: of a draft's tokens all may be right.
  uint32_t num_sampled() const { return samples ? 1 + num_draft() : 0; }
};

struct ScheduleBatch {
  uint64_t step_id = 0;
  std::vector<BatchRow> rows;  // those that decode come first
  uint32_t num_extend_rows = 0;
  uint32_t num_extend_tokens = 0;
  uint32_t num_embed_rows = 0;  // that end in an embedding
  uint32_t num_draft_tokens = 0;
  bool retracted = false;      // someone lost its slot for it
  bool leaves_masked = false;  // someone decodes who waits for its mask
  double new_token_ratio = 0;  // in force when it was planned
  StepWork work;
  bool many_logits = false;  // of prompts: it says nothing about what a step costs

  void Clear() {
    rows.clear();
    num_extend_rows = num_extend_tokens = num_embed_rows = num_draft_tokens = 0;
    retracted = leaves_masked = many_logits = false;
    work = {};
  }
  bool empty() const { return rows.empty(); }
  std::span<const BatchRow> extend_rows() const { return std::span(rows).last(num_extend_rows); }

  // The next `num_tokens` tokens of the request, a draft's among them if it decodes.
  void AddRow(Req* req, uint32_t num_tokens, bool extend) {
    const bool is_last = num_tokens >= req->num_pending();
    many_logits |= extend && req->has_prompt_logprobs_left();
    AddRow({.req = req,
            .start = req->num_scheduled,
            .num_tokens = num_tokens,
            .samples = is_last && !req->is_pooled,
            .embeds = is_last && req->is_pooled,
            .extend = extend});
  }
  void AddRow(const BatchRow& row) {
    rows.push_back(row);
    if (!row.extend) {
      work.AddDecode(row.start);
      work.AddDraft(row.start + 1, row.num_draft());
      num_draft_tokens += row.num_draft();
      return;
    }
    work.AddChunk(row.start, row.num_tokens);
    num_embed_rows += row.embeds;
    ++num_extend_rows;
    num_extend_tokens += row.num_tokens;
  }

  ForwardMode forward_mode() const {
    if (rows.empty()) return ForwardMode::kIdle;
    if (num_extend_rows == 0) return ForwardMode::kDecode;
    return num_extend_rows == rows.size() ? ForwardMode::kExtend : ForwardMode::kMixed;
  }
};

}  // namespace flotilla
