// What ModelRunner makes of a step's logits and hidden states: tokens, logprobs, embeddings.
#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "worker_proc/runner/model_runner.h"

namespace flotilla {
namespace {

// The most likely ones beside the prompt's own token.
uint32_t NumPromptLogprobs(const SamplingParams& params) {
  return params.num_prompt_logprobs == kNoLogprobs ? 0 : params.num_prompt_logprobs;
}

}  // namespace

SampleInput ModelRunner::InputOf(const StepPlan& plan, const LogitsRow& row) const {
  const PlanRow& planned = plan.rows[row.row];
  const Slot& slot = slots_.slot(planned.slot);
  std::span<const uint32_t> mask = row_masks_[row.row];
  const size_t words = MaskWords(config_.vocab_size);
  const uint32_t in_row = row.position - planned.start_pos;
  if (mask.size() > words) mask = mask.subspan(in_row * words, words);
  return {
      .params = slot.sampling,
      .position = row.position + 1,
      .logit_bias = slot.logit_bias,
      .counts = slot.history.counts(),
      .later =
          std::span(plan.input_ids).subspan(row.token_index + 1, planned.num_tokens - 1 - in_row),
      .mask = mask,
      .stop_ids = slot.stop_ids};
}

Status ModelRunner::UseLogits(const StepPlan& plan, const LogitsRow& row, std::span<float> logits,
                              StepResult* result) {
  RowResult& out = result->rows[row.row];
  if (!TakeUpDraft(plan, row, &out)) return OkStatus();
  const SampleInput input = InputOf(plan, row);
  if (dump_) RETURN_IF_ERROR(dump_->Append(out.slot, row.position, logits));
  if (options_.on_logits) RETURN_IF_ERROR(options_.on_logits(out.slot, row.position, logits));
  if (row.has_prompt_logprob()) {
    if (out.prompt_logprobs.empty()) out.prompt_start = row.position + 1;
    RETURN_IF_ERROR(sampler_.Logprobs(logits, row.target, NumPromptLogprobs(input.params),
                                      results_.AddPromptPosition(&out)));
  }
  if (!row.sample) return OkStatus();
  out.has_logprobs = input.params.num_logprobs != kNoLogprobs;
  ASSIGN_OR_RETURN(out.token,
                   sampler_.Sample(logits, input, out.has_logprobs ? &out.logprobs : nullptr));
  return OkStatus();
}

bool ModelRunner::TakeUpDraft(const StepPlan& plan, const LogitsRow& row, RowResult* out) {
  const PlanRow& planned = plan.rows[row.row];
  if ((planned.flags & kRowVerify) == 0 || row.position == planned.start_pos) return true;
  const bool all_right = planned.start_pos + 1 + out->accepted.size() == row.position;
  if (!all_right || plan.input_ids[row.token_index] != out->token) return false;
  results_.Accept(out);
  return true;
}

void ModelRunner::AskFor(const StepPlan& plan, std::span<const LogitsRow> rows, StepResult* result,
                         Draws* draws) const {
  draws->rows.assign(rows.begin(), rows.end());
  draws->queries.clear();
  draws->logprobs.resize(rows.size());
  for (uint32_t i = 0; i < rows.size(); ++i) {
    const LogitsRow& row = rows[i];
    RowResult& out = result->rows[row.row];
    const SampleInput input = InputOf(plan, row);
    if (row.has_prompt_logprob()) {
      draws->queries.push_back({.row = i,
                                .input = {.params = input.params},
                                .given = row.target,
                                .num_top = NumPromptLogprobs(input.params),
                                .logprobs = &draws->logprobs[i]});
    }
    if (!row.sample) continue;
    out.has_logprobs = input.params.num_logprobs != kNoLogprobs;
    // Which of a draft's draws is the last is known when they are there.
    const bool verify = (plan.rows[row.row].flags & kRowVerify) != 0;
    PositionLogprobs* const logprobs = verify ? &draws->logprobs[i] : &out.logprobs;
    draws->queries.push_back({.row = i,
                              .input = input,
                              .num_top = input.params.num_logprobs,
                              .slot = verify ? kNoSlot : plan.rows[row.row].slot,
                              .logprobs = out.has_logprobs ? logprobs : nullptr});
  }
  draws->tokens.assign(draws->queries.size(), -1);
}

Status ModelRunner::UseDraws(const StepPlan& plan, Draws* draws, const Status& status,
                             StepResult* result, std::optional<uint32_t>* bad_slot) {
  const std::vector<int32_t>& tokens = draws->tokens;
  const bool is_bad = std::find(tokens.begin(), tokens.end(), -1) != tokens.end();
  if (!absl::IsDataLoss(status) || !is_bad) RETURN_IF_ERROR(status);
  for (size_t q = 0; q < tokens.size(); ++q) {
    const LogitsRow& row = draws->rows[draws->queries[q].row];
    RowResult& out = result->rows[row.row];
    const bool drawn = draws->queries[q].given < 0;
    // Behind a wrong token logits may be what they like.
    if (drawn && !TakeUpDraft(plan, row, &out)) continue;
    if (!status.ok() && tokens[q] < 0) {
      *bad_slot = plan.rows[row.row].slot;
      return status;
    }
    if (drawn) {
      out.token = tokens[q];
      if (out.has_logprobs && draws->queries[q].logprobs != &out.logprobs)
        std::swap(out.logprobs, *draws->queries[q].logprobs);
      continue;
    }
    if (out.prompt_logprobs.empty()) out.prompt_start = row.position + 1;
    std::swap(*results_.AddPromptPosition(&out), draws->logprobs[draws->queries[q].row]);
  }
  return OkStatus();
}

Status ModelRunner::Pool(const StepPlan& plan, StepResult* result,
                         std::optional<uint32_t>* bad_slot) {
  for (size_t i = 0; i < plan.rows.size(); ++i) {
    const PlanRow& row = plan.rows[i];
    if ((row.flags & (kRowPoolMean | kRowEmbed)) == 0) continue;
    const Status pooled = PoolRow(row, batch_.cu_q_lens[i], &result->rows[i]);
    if (absl::IsDataLoss(pooled)) *bad_slot = row.slot;
    RETURN_IF_ERROR(pooled);
  }
  return OkStatus();
}

// Without kRowPoolMean the last position is all there is to pool.
Status ModelRunner::PoolRow(const PlanRow& row, uint32_t first_token, RowResult* out) {
  const bool mean = (row.flags & kRowPoolMean) != 0;
  const uint32_t end = first_token + row.num_tokens;
  std::vector<float>& sum = *slots_.pooled_sum(row.slot);
  sum.resize(config_.hidden_size);
  for (uint32_t begin = mean ? first_token : end - 1; begin < end;
       begin += std::min(logits_tile(), end - begin)) {
    tile_rows_.resize(std::min(logits_tile(), end - begin));
    std::iota(tile_rows_.begin(), tile_rows_.end(), begin);
    ASSIGN_OR_RETURN(const Tensor tensor, model_->HiddenStates(tile_rows_));
    RETURN_IF_ERROR(deps_.backend->Finish());
    ASSIGN_OR_RETURN(const std::span<const float> states, deps_.backend->ReadLogits(tensor));
    for (size_t i = 0; i < states.size(); ++i) sum[i % sum.size()] += states[i];
  }
  if ((row.flags & kRowEmbed) == 0) return OkStatus();
  const auto count = static_cast<float>(mean ? row.start_pos + row.num_tokens : 1);
  out->embedding = sum;
  for (float& value : out->embedding) {
    value /= count;
    if (!std::isfinite(value)) return absl::DataLossError("a hidden state is not finite");
  }
  return OkStatus();
}

Status ModelRunner::ShareTokens(const StepPlan& plan, const StepResult& result) {
  sampled_.clear();
  for (size_t i = 0; i < plan.rows.size(); ++i) {
    if (plan.rows[i].flags & kRowSample) sampled_.push_back(result.rows[i].token);
  }
  if (sampled_.empty()) return OkStatus();
  RETURN_IF_ERROR(deps_.collective->Broadcast(std::as_writable_bytes(std::span(sampled_)), 0));
  const int32_t* token = sampled_.data();
  for (const PlanRow& row : plan.rows) {
    if (row.flags & kRowSample) slots_.SetLastToken(row.slot, *token++);
  }
  return OkStatus();
}

void ModelRunner::FindMasks(const StepPlan& plan) {
  std::span<const uint32_t> rest = plan.masks;
  row_masks_.assign(plan.rows.size(), {});
  for (size_t i = 0; i < plan.rows.size(); ++i) {
    row_masks_[i] = rest.first(NumMasks(plan.rows[i]) * MaskWords(config_.vocab_size));
    rest = rest.subspan(row_masks_[i].size());
  }
}

}  // namespace flotilla
