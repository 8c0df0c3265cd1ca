// ModelRunner's steps that are begun while the device still runs the one before: what that one
// samples is put in by the device itself, and read here when it comes.
#include <utility>

#include "common/base/check.h"
#include "worker_proc/runner/model_runner.h"
#include "worker_proc/runner/prepare_batch.h"

namespace flotilla {

Status ModelRunner::AgreeWhetherStepsBegin() {
  const bool ranks_queue = partition_.size == 1 || deps_.backend->exchanges_are_queued();
  std::byte root{device_sampler_ != nullptr && ranks_queue};
  RETURN_IF_ERROR(deps_.collective->Broadcast(std::span(&root, 1), 0));
  begins_steps_ = root != std::byte{0};
  CHECK(!begins_steps_ || device_sampler_ != nullptr);
  return OkStatus();
}

// Not what must be read before a later step is prepared, or takes several rounds itself: hidden
// states, how much of a draft was right, more rows of logits than the head's tile, and penalties,
// which count every token. All ranks must come to the same, though some know already what others
// still wait for.
bool ModelRunner::MayBegin(const StepPlan& plan) const {
  if (!begins_steps_ || plan.rows.empty()) return false;
  size_t logits_rows = 0;
  size_t token = 0;
  for (const PlanRow& row : plan.rows) {
    const Slot& slot = slots_.slot(row.slot);
    const bool unknown =
        plan.input_ids[token] == kLastToken && (slot.awaits != 0 || partition_.size > 1);
    token += row.num_tokens;
    if ((row.flags & (kRowPoolMean | kRowEmbed | kRowVerify)) != 0) return false;
    if (unknown && slot.sampling.has_penalties()) return false;
    logits_rows += NumLogitsRows(row);
  }
  return logits_rows <= logits_tile();
}

StatusOr<bool> ModelRunner::Begin(StepPlan* plan, StepResult* result) {
  if (num_begun() == kMaxBegun || !MayBegin(*plan)) return false;
  RETURN_IF_ERROR(PrepareStep(plan, result));
  Begun& step = begun_[num_begun_ % kMaxBegun];
  step.plan = plan;
  step.result = result;
  step.mode = StepMode(*plan);
  step.sampled.reset();
  ASSIGN_OR_RETURN(const Tensor hidden, RunForward());
  AskFor(*plan, batch_.logits_rows, result, &step.draws);
  Tensor logits;
  if (!batch_.logits_rows.empty()) {
    tile_rows_.clear();
    for (const LogitsRow& row : batch_.logits_rows) tile_rows_.push_back(row.token_index);
    ASSIGN_OR_RETURN(logits, model_->ComputeLogits(hidden, tile_rows_));
  }
  ASSIGN_OR_RETURN(const bool begun, device_sampler_->Begin(logits, step.draws.queries));
  if (!begun) {
    // Before what waits without looking whether the other ranks still live.
    if (partition_.size > 1) RETURN_IF_ERROR(deps_.backend->Finish());
    step.sampled = device_sampler_->Sample(logits, step.draws.queries, step.draws.tokens);
    // What awaits the step's end, whatever it led to.
    RETURN_IF_ERROR(device_sampler_->Begin(logits, {}).status());
  }
  ++num_begun_;
  RETURN_IF_ERROR(deps_.backend->TakeError());
  for (const PlanRow& row : plan->rows) {
    if ((row.flags & kRowSample) != 0) slots_.AwaitToken(row.slot, num_begun_);
  }
  slots_.Close(*plan);
  return true;
}

Status ModelRunner::End() {
  CHECK(num_begun() > 0);
  Begun& step = begun_[num_ended_++ % kMaxBegun];
  last_mode_ = step.mode;
  std::optional<uint32_t> bad_slot;
  Status status;
  if (step.sampled.has_value()) {
    RETURN_IF_ERROR(device_sampler_->Take({}, {}));
    status = std::move(*step.sampled);
  } else {
    status = device_sampler_->Take(step.draws.queries, step.draws.tokens);
  }
  // Then what was drawn means nothing.
  RETURN_IF_ERROR(Finished(deps_.backend->LostExchange(), bad_slot, step.result));
  status = UseDraws(*step.plan, &step.draws, status, step.result, &bad_slot);
  if (status.ok() || absl::IsDataLoss(status)) {
    for (size_t i = 0; i < step.plan->rows.size(); ++i) {
      const PlanRow& row = step.plan->rows[i];
      if ((row.flags & kRowSample) == 0) continue;
      slots_.SetAwaitedToken(row.slot, num_ended_, step.result->rows[i].token);
    }
  }
  return Finished(status, bad_slot, step.result);
}

}  // namespace flotilla
