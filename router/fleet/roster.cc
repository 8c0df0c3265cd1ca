#include "router/fleet/roster.h"

#include <algorithm>
#include <utility>

#include "common/base/check.h"

namespace flotilla {
namespace {

template <typename Rows>
auto RowAt(Rows& rows, uint32_t index) {
  return std::lower_bound(
      rows.begin(), rows.end(), index,
      [](const RosterRow& row, uint32_t wanted) { return row.view.index < wanted; });
}

}  // namespace

void Roster::Add(RosterMember* member) {
  places_.try_emplace(member);
  Touch(member);
}

void Roster::Remove(RosterMember* member) {
  const auto found = places_.find(member);
  if (found == places_.end()) return;
  Leave(&found->second);
  places_.erase(found);
  touched_.erase(member);
}

std::span<const RosterRow> Roster::Of(const ModelHandle& model) {
  for (RosterMember* member : touched_) Refresh(*member, &places_.at(member));
  touched_.clear();
  DCHECK(IsCurrent());
  const Lane* lane = LaneOf(model);
  if (lane == nullptr) return {};
  return lane->rows;
}

const RosterRow* Roster::Find(const ModelHandle& model, uint32_t index) {
  const std::span<const RosterRow> rows = Of(model);
  const auto row = RowAt(rows, index);
  return row == rows.end() || row->view.index != index ? nullptr : &*row;
}

Roster::Lane* Roster::LaneOf(const ModelHandle& model) const {
  const auto found = std::find_if(lanes_.begin(), lanes_.end(),
                                  [&](const auto& lane) { return lane->IsOf(model); });
  return found == lanes_.end() ? nullptr : found->get();
}

void Roster::Enter(const RosterRow& row, const ModelHandle& model, Place* place) {
  Lane* lane = LaneOf(model);
  if (lane == nullptr) {
    lanes_.push_back(std::make_unique<Lane>(Lane{model.name, model.tokenizer_sha256, {}}));
    lane = lanes_.back().get();
  }
  lane->rows.insert(RowAt(lane->rows, row.view.index), row);
  *place = {lane, row.view.index};
}

void Roster::Leave(Place* place) {
  Lane* const lane = std::exchange(place->lane, nullptr);
  if (lane == nullptr) return;
  lane->rows.erase(RowAt(lane->rows, place->index));
  if (lane->rows.empty())
    std::erase_if(lanes_, [&](const auto& each) { return each.get() == lane; });
}

void Roster::Refresh(RosterMember& member, Place* place) {
  const ModelHandle* model = member.answers_for();
  if (place->lane != nullptr && (model == nullptr || !place->lane->IsOf(*model))) Leave(place);
  if (model == nullptr) return;
  if (place->lane == nullptr) return Enter(member.row(), *model, place);
  *RowAt(place->lane->rows, place->index) = member.row();
}

bool Roster::IsCurrent() const {
  return std::all_of(places_.begin(), places_.end(), [](const auto& each) {
    const auto& [member, place] = each;
    const ModelHandle* model = member->answers_for();
    if (place.lane == nullptr || model == nullptr) return place.lane == nullptr && model == nullptr;
    return place.lane->IsOf(*model) && *RowAt(place.lane->rows, place.index) == member->row();
  });
}

}  // namespace flotilla
