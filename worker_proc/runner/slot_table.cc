#include "worker_proc/runner/slot_table.h"

#include <algorithm>

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
  const auto opened = [&](uint32_t index) {
    return std::any_of(plan.opens.begin(), plan.opens.end(),
                       [&](const PlanOpen& open) { return open.slot == index; });
  };
  for (const PlanRow& row : plan.rows) {
    const Slot& slot = slots_[row.slot];
    // Opening gives a slot a fresh state, also one whose close was never sent.
    const bool fresh = opened(row.slot);
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
  }
  for (uint32_t index : plan.closes) {
    if (!slots_[index].open && !opened(index)) return bad(index, "is closed but not open");
  }
  return OkStatus();
}

Status SlotTable::Apply(const StepPlan& plan) {
  RETURN_IF_ERROR(Check(plan));
  for (const PlanOpen& open : plan.opens) {
    Slot& slot = slots_[open.slot];
    slot.open = true;
    slot.sampling = open.sampling;
    slot.pages.clear();
    slot.num_tokens = 0;
  }
  auto page = plan.new_pages.begin();
  for (const PlanRow& row : plan.rows) {
    Slot& slot = slots_[row.slot];
    slot.pages.insert(slot.pages.end(), page, page + row.num_new_pages);
    page += row.num_new_pages;
    slot.num_tokens = row.start_pos + row.num_tokens;
  }
  return OkStatus();
}

void SlotTable::Close(const StepPlan& plan) {
  for (uint32_t index : plan.closes) slots_[index].open = false;
}

void SlotTable::Clear() {
  for (Slot& slot : slots_) slot.open = false;
}

uint32_t SlotTable::num_open() const {
  return static_cast<uint32_t>(
      std::count_if(slots_.begin(), slots_.end(), [](const Slot& slot) { return slot.open; }));
}

}  // namespace flotilla
