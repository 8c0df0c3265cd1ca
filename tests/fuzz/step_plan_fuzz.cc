// libFuzzer: any frames in the step ring, as a worker reads them: parsed, applied to its slots and
// turned into a batch. What is taken has one spelling, and the batch stays within the KV cache. Its
// masks can be dropped from it.
//
// The input is a list of frames (fuzz_input.h), so that a plan finds slots that others have opened.
#include <string>

#include "common/base/check.h"
#include "shm/step_plan.h"
#include "tests/fuzz/fuzz_input.h"
#include "worker_proc/runner/prepare_batch.h"
#include "worker_proc/runner/slot_table.h"

namespace flotilla {
namespace {

constexpr uint32_t kPageSize = 16;
constexpr StepPlanLimits kLimits = {
    .max_slots = 8, .max_tokens = 64, .num_pages = 32, .vocab_size = 1000, .max_positions = 256};

void CheckBatch(const StepPlan& plan, const ForwardBatch& batch) {
  CHECK(batch.num_tokens == plan.input_ids.size() && batch.num_seqs == plan.rows.size());
  for (int32_t id : batch.input_ids) CHECK(id >= 0);
  CHECK(batch.positions.size() == batch.num_tokens);
  CHECK(batch.cu_q_lens.back() == batch.num_tokens);
  for (uint32_t position : batch.positions) CHECK(position < kLimits.max_positions);
  for (int64_t place : batch.out_cache_loc)
    CHECK(place >= 0 && place < int64_t{kLimits.num_pages} * kPageSize);
  for (uint32_t length : batch.kv_lens)
    CHECK(length > 0 && length <= batch.pages_per_seq * kPageSize);
  for (const LogitsRow& row : batch.logits_rows)
    CHECK(row.token_index < batch.num_tokens && row.row < batch.num_seqs);
}

// What ranks elsewhere are sent is the same plan without masks.
void CheckWithoutMasks(std::string_view frame, const StepPlan& plan) {
  std::string without;
  CHECK(DropMasks(frame, &without) == !plan.masks.empty());
  if (plan.masks.empty()) return;
  StepPlan rest;
  CHECK(ParseStepPlan(without, kLimits, &rest).ok());
  CHECK(rest.masks.empty() && rest.rows.size() == plan.rows.size());
  for (size_t i = 0; i < plan.rows.size(); ++i) {
    CHECK(rest.rows[i].slot == plan.rows[i].slot);
    CHECK(rest.rows[i].flags == (plan.rows[i].flags & ~uint32_t{kRowMask}));
  }
  CHECK(rest.input_ids == plan.input_ids);
}

void Forward(StepPlan plan, SlotTable* slots) {
  const uint32_t open = slots->num_open();
  if (!slots->FillLastTokens(&plan).ok() || !slots->Apply(plan).ok()) {
    CHECK(slots->num_open() == open);
    return;
  }
  ForwardBatch batch;
  MakeRoom({kLimits.max_tokens, kLimits.max_slots}, *slots, &batch);
  const int32_t* const ids = batch.input_ids.data();
  const uint32_t* const pages = batch.page_indices.data();
  PrepareBatch(plan, *slots, &batch);
  CHECK(batch.input_ids.data() == ids && batch.page_indices.data() == pages);  // there was room
  CheckBatch(plan, batch);
  CHECK(ForwardModeName(batch.mode) != std::string("unknown"));
  for (const PlanRow& row : plan.rows)
    if (row.flags & kRowSample) slots->SetLastToken(row.slot, 7);
  slots->Close(plan);
}

}  // namespace
}  // namespace flotilla

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace flotilla;
  fuzz::FuzzInput input(data, size);
  SlotTable slots(kLimits.max_slots, kPageSize, kLimits.max_positions);
  StepPlan plan;
  std::string frame;
  while (!input.empty()) {
    const fuzz::Piece piece = input.GetPiece();
    if (!ParseStepPlan(piece.view(), kLimits, &plan).ok()) {
      DropMasks(piece.view(), &frame);  // it may be asked of anything
      continue;
    }
    CheckWithoutMasks(piece.view(), plan);
    BuildStepPlan(plan, &frame);
    CHECK(frame == piece.view());
    if (plan.command == StepCommand::kForward) {
      Forward(plan, &slots);
    } else {
      slots.Clear();
      CHECK(slots.num_open() == 0);
    }
  }
  return 0;
}
