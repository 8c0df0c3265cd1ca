// The worker's memory between plans: what a slot (a running request) has been told once and keeps.
//
// A plan is a delta (shm/step_plan.h): Apply opens slots and appends pages, Close frees slots after
// the step. Every rank applies the same plans, so the tables are equal. After Apply a slot with
// penalties knows its whole sequence up to the end of its row, a draft with it.
//
// Units: pages, tokens. Threads: one. Errors: InvalidArgument naming slot and field; the table is
// then unchanged.
#pragma once

#include <cstdint>
#include <vector>

#include "common/base/status.h"
#include "shm/step_plan.h"
#include "worker_proc/runner/forward_batch.h"
#include "worker_proc/runner/token_history.h"

namespace flotilla {

struct Slot {
  bool open = false;
  SamplingParams sampling;
  std::vector<LogitBias> logit_bias;
  std::vector<int32_t> stop_ids;
  TokenHistory history;         // empty without penalties
  std::vector<uint32_t> pages;  // page table: token p lives in pages[p / page_size]
  uint32_t num_tokens = 0;      // whose KV has been written, prefix hits included
  int32_t last_token = -1;      // sampled by the slot's last step that sampled; -1: none
  // The step in flight that samples it, or one whose logits were bad; 0: none.
  uint64_t awaits = 0;
  // kRowPoolMean, on rank 0: the sum of the hidden states of the first num_tokens positions, added
  // in their order, so that chunks change no bit. Empty: none yet.
  std::vector<float> pooled_sum;
};

class SlotTable {
 public:
  SlotTable(uint32_t num_slots, uint32_t page_size, uint32_t max_positions);

  // Puts what a slot sampled last in the place of kLastToken, or TokenOfSlot if a step in flight is
  // to sample it; before Apply. Which of them, and whether a rank knows yet that logits were bad,
  // changes nothing: ranks end their steps at different times.
  Status FillLastTokens(StepPlan* plan) const;
  Status Apply(const StepPlan& plan);
  // `token` was sampled for the slot; on every rank, after each step that samples.
  void SetLastToken(uint32_t slot, int32_t token) {
    slots_[slot].last_token = token;
    slots_[slot].awaits = 0;
  }
  // The step, whose number is not 0, samples the slot's next token, and then has: nothing, if the
  // slot has been opened anew, a later step samples, or `token` is -1.
  void AwaitToken(uint32_t slot, uint64_t step);
  void SetAwaitedToken(uint32_t slot, uint64_t step, int32_t token);
  std::vector<float>* pooled_sum(uint32_t slot) { return &slots_[slot].pooled_sum; }
  void Close(const StepPlan& plan);
  void Clear();

  const Slot& slot(uint32_t index) const { return slots_[index]; }
  uint32_t page_size() const { return page_size_; }
  uint32_t max_pages_per_slot() const { return max_pages_per_slot_; }
  uint32_t num_open() const;

 private:
  Status Check(const StepPlan& plan) const;
  void Open(const StepPlan& plan);

  const uint32_t page_size_;
  const uint32_t max_pages_per_slot_;
  std::vector<Slot> slots_;
};

}  // namespace flotilla
