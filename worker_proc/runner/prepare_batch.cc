#include "worker_proc/runner/prepare_batch.h"

#include <algorithm>

#include "worker_proc/runner/scratch.h"

namespace flotilla {
namespace {

// drafts: the flag of rows that decode though they have several tokens.
ForwardMode ModeOf(const StepPlan& plan, uint32_t drafts) {
  bool extend = false;
  bool decode = false;
  for (const PlanRow& row : plan.rows) {
    const bool one_more = row.num_tokens == 1 && row.start_pos > 0;
    (one_more || (row.flags & drafts) != 0 ? decode : extend) = true;
  }
  if (extend && decode) return ForwardMode::kMixed;
  if (extend) return ForwardMode::kExtend;
  return decode ? ForwardMode::kDecode : ForwardMode::kIdle;
}

// The tokens of this row whose logits are wanted, NumLogitsRows of them. `begin`: index of the
// row's first token.
void AddLogitsRows(const StepPlan& plan, uint32_t row_index, uint32_t begin, ForwardBatch* batch) {
  const PlanRow& row = plan.rows[row_index];
  const bool prompt = (row.flags & kRowPromptLogprobs) != 0;
  const bool sample = (row.flags & kRowSample) != 0;
  const bool verify = (row.flags & kRowVerify) != 0;
  for (uint32_t i = 0; i < row.num_tokens; ++i) {
    const bool last = i + 1 == row.num_tokens;
    if (!prompt && !verify && !(last && sample)) continue;
    LogitsRow wanted;
    wanted.token_index = begin + i;
    wanted.row = row_index;
    wanted.position = row.start_pos + i;
    wanted.sample = verify || (last && sample);
    wanted.prompt_logprobs = prompt;
    if (prompt) wanted.target = last ? row.next_token : plan.input_ids[begin + i + 1];
    batch->logits_rows.push_back(wanted);
  }
}

}  // namespace

const char* ForwardModeName(ForwardMode mode) {
  switch (mode) {
    case ForwardMode::kIdle:
      return "idle";
    case ForwardMode::kExtend:
      return "prefill";  // the scheduler's word
    case ForwardMode::kDecode:
      return "decode";
    case ForwardMode::kMixed:
      return "mixed";
  }
  return "unknown";
}

ForwardMode StepMode(const StepPlan& plan) { return ModeOf(plan, kRowVerify); }

uint32_t NumLogitsRows(const PlanRow& row) {
  if ((row.flags & (kRowPromptLogprobs | kRowVerify)) != 0) return row.num_tokens;
  return (row.flags & kRowSample) != 0 ? 1 : 0;
}

void PrepareBatch(const StepPlan& plan, const SlotTable& slots, ForwardBatch* batch) {
  const uint32_t page_size = slots.page_size();
  batch->mode = ModeOf(plan, 0);
  batch->num_tokens = static_cast<uint32_t>(plan.input_ids.size());
  batch->num_seqs = static_cast<uint32_t>(plan.rows.size());
  batch->input_ids = plan.input_ids;
  batch->positions.clear();
  batch->out_cache_loc.clear();
  batch->cu_q_lens.assign(1, 0);
  batch->kv_lens.clear();
  batch->logits_rows.clear();
  batch->pages_per_seq = 0;
  for (const PlanRow& row : plan.rows) {
    const size_t pages = slots.slot(row.slot).pages.size();
    batch->pages_per_seq = std::max(batch->pages_per_seq, static_cast<uint32_t>(pages));
  }
  batch->page_indices.resize(static_cast<size_t>(batch->num_seqs) * batch->pages_per_seq);

  for (uint32_t r = 0; r < batch->num_seqs; ++r) {
    const PlanRow& row = plan.rows[r];
    const std::vector<uint32_t>& pages = slots.slot(row.slot).pages;
    const uint32_t begin = batch->cu_q_lens.back();
    for (uint32_t i = 0; i < row.num_tokens; ++i) {
      const uint32_t position = row.start_pos + i;
      batch->positions.push_back(position);
      batch->out_cache_loc.push_back(static_cast<int64_t>(pages[position / page_size]) * page_size +
                                     position % page_size);
    }
    batch->cu_q_lens.push_back(begin + row.num_tokens);
    batch->kv_lens.push_back(row.start_pos + row.num_tokens);
    std::copy(pages.begin(), pages.end(),
              batch->page_indices.begin() + static_cast<ptrdiff_t>(r) * batch->pages_per_seq);
    AddLogitsRows(plan, r, begin, batch);
  }
}

void MakeRoom(const PlanShape& shape, const SlotTable& slots, ForwardBatch* batch) {
  const size_t tokens = shape.num_tokens;
  const size_t seqs = shape.num_seqs;
  MakeRoom(tokens, &batch->input_ids);
  MakeRoom(tokens, &batch->positions);
  MakeRoom(tokens, &batch->out_cache_loc);
  MakeRoom(seqs + 1, &batch->cu_q_lens);
  MakeRoom(seqs, &batch->kv_lens);
  MakeRoom(seqs * slots.max_pages_per_slot(), &batch->page_indices);
  MakeRoom(tokens, &batch->logits_rows);  // all of them, with logprobs of prompts
}

}  // namespace flotilla
