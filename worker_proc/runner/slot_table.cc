#include "worker_proc/runner/slot_table.h"

#include <algorithm>
#include <span>

namespace flotilla {

SlotTable::SlotTable(uint32_t num_slots, uint32_t page_size, uint32_t max_positions)
    : page_size_(page_size),
      max_pages_per_slot_((max_positions + page_size - 1) / page_size),
      slots_(num_slots) {
  for (Slot& slot : slots_) slot.pages.reserve(max_pages_per_slot_);
}

Status SlotTable::Check(const StepPlan& plan) const {
  const auto bad = [](uint32_t slot, std::string_view what) {
    return absl::InvalidArgumentError(StrCat("step plan: slot ", slot, " ", what));
  };
  // Opening gives a slot a fresh state, also one whose close was never sent.
  const auto opened = [&](uint32_t index) -> const PlanOpen* {
    const auto at = std::find_if(plan.opens.begin(), plan.opens.end(),
                                 [&](const PlanOpen& open) { return open.slot == index; });
    return at == plan.opens.end() ? nullptr : &*at;
  };
  for (const PlanRow& row : plan.rows) {
    const Slot& slot = slots_[row.slot];
    const PlanOpen* open = opened(row.slot);
    const bool fresh = open != nullptr;
    if (!slot.open && !fresh) return bad(row.slot, "has a row but is not open");
    const size_t old_pages = fresh ? 0 : slot.pages.size();
    const uint64_t pages = old_pages + row.num_new_pages;
    if (pages > max_pages_per_slot_) return bad(row.slot, "has more pages than its context");
    if (pages * page_size_ < uint64_t{row.start_pos} + row.num_tokens) {
      return bad(row.slot, "has too few pages for its tokens");
    }
    // Only a slot's first row may start behind what was computed here: a prefix hit.
    if (!fresh && slot.num_tokens > 0 && row.start_pos > slot.num_tokens) {
      return bad(row.slot, "has a gap before start_pos");
    }
    if ((row.flags & kRowPoolMean) != 0 && row.start_pos != (fresh ? 0 : slot.num_tokens)) {
      return bad(row.slot, "is pooled but not from position 0 on");
    }
    const SamplingParams& sampling = fresh ? open->sampling : slot.sampling;
    if (sampling.has_penalties() &&
        row.start_pos > (fresh ? open->num_history : slot.history.size())) {
      return bad(row.slot, "has penalties but no history up to start_pos");
    }
  }
  for (uint32_t index : plan.closes) {
    if (!slots_[index].open && opened(index) == nullptr)
      return bad(index, "is closed but not open");
  }
  return OkStatus();
}

void SlotTable::Open(const StepPlan& plan) {
  auto bias = plan.logit_bias.begin();
  auto stop_id = plan.stop_ids.begin();
  std::span<const int32_t> history = plan.history;
  for (const PlanOpen& open : plan.opens) {
    Slot& slot = slots_[open.slot];
    slot.open = true;
    slot.sampling = open.sampling;
    slot.logit_bias.assign(bias, bias + open.num_logit_bias);
    bias += open.num_logit_bias;
    slot.stop_ids.assign(stop_id, stop_id + open.num_stop_ids);
    stop_id += open.num_stop_ids;
    slot.history.Reset(open.output_start);
    if (open.sampling.has_penalties()) slot.history.Reserve(max_pages_per_slot_ * page_size_);
    slot.history.Append(history.first(open.num_history));
    history = history.subspan(open.num_history);
    slot.pages.clear();
    slot.num_tokens = 0;
    slot.last_token = -1;
    slot.awaits = 0;
    slot.pooled_sum.clear();
  }
}

void SlotTable::AwaitToken(uint32_t slot, uint64_t step) {
  slots_[slot].last_token = -1;
  slots_[slot].awaits = step;
}

void SlotTable::SetAwaitedToken(uint32_t slot, uint64_t step, int32_t token) {
  if (slots_[slot].awaits != step || token < 0) return;
  slots_[slot].last_token = token;
  slots_[slot].awaits = 0;
}

Status SlotTable::FillLastTokens(StepPlan* plan) const {
  size_t begin = 0;
  for (const PlanRow& row : plan->rows) {
    int32_t& first = plan->input_ids[begin];
    begin += row.num_tokens;
    if (first != kLastToken) continue;
    const Slot& slot = slots_[row.slot];
    const bool opened = std::any_of(plan->opens.begin(), plan->opens.end(),
                                    [&](const PlanOpen& open) { return open.slot == row.slot; });
    const bool known = slot.last_token >= 0;
    const bool on_device = slot.awaits != 0 && !slot.sampling.has_penalties();
    if (opened || (!known && !on_device) || row.start_pos != slot.num_tokens) {
      return absl::InvalidArgumentError(
          StrCat("step plan: slot ", row.slot, " is to go on with a token that it did not sample"));
    }
    first = known ? slot.last_token : TokenOfSlot(row.slot);
  }
  return OkStatus();
}

Status SlotTable::Apply(const StepPlan& plan) {
  RETURN_IF_ERROR(Check(plan));
  Open(plan);
  auto page = plan.new_pages.begin();
  std::span<const int32_t> ids = plan.input_ids;
  for (const PlanRow& row : plan.rows) {
    Slot& slot = slots_[row.slot];
    slot.pages.insert(slot.pages.end(), page, page + row.num_new_pages);
    page += row.num_new_pages;
    slot.num_tokens = row.start_pos + row.num_tokens;
    if (slot.sampling.has_penalties()) {
      slot.history.Truncate(row.start_pos);
      slot.history.Append(ids.first(row.num_tokens));
    }
    ids = ids.subspan(row.num_tokens);
  }
  return OkStatus();
}

void SlotTable::Close(const StepPlan& plan) {
  for (uint32_t index : plan.closes) slots_[index].open = false;
}

void SlotTable::Clear() {
  for (Slot& slot : slots_) {
    slot.open = false;
    slot.awaits = 0;
  }
}

uint32_t SlotTable::num_open() const {
  return static_cast<uint32_t>(
      std::count_if(slots_.begin(), slots_.end(), [](const Slot& slot) { return slot.open; }));
}

}  // namespace flotilla
