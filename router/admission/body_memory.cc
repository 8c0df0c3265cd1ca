#include "router/admission/body_memory.h"

#include <algorithm>
#include <utility>

#include "common/base/clock.h"

namespace flotilla {

struct BodyMemory::State {
  const uint64_t most;
  std::function<void(int64_t)> on_change;  // none: the memory is gone
  uint64_t held = 0;

  // Alone, a body may be as large as everything.
  bool Fits(uint64_t others, uint64_t bytes) const {
    const bool reserve_is_kept = bytes > kFreeBodyBytes && others > 0;
    const uint64_t room = most - (reserve_is_kept ? most / 8 : 0);
    return others <= room && bytes <= room - others;
  }

  void Resize(BodyRoom* room, uint64_t bytes) {
    const auto delta = static_cast<int64_t>(bytes - room->bytes);
    held += bytes - room->bytes;
    room->bytes = bytes;
    if (delta != 0 && on_change) on_change(delta);
  }
};

BodyMemory::BodyMemory(uint64_t most_bytes, uint64_t bytes_per_s,
                       std::function<void(int64_t)> on_change)
    : state_(std::make_shared<State>(most_bytes, std::move(on_change))),
      bytes_per_s_(std::max<uint64_t>(bytes_per_s, 1)) {}

BodyMemory::~BodyMemory() { state_->on_change = nullptr; }

BodyLease BodyMemory::Reserve(uint64_t bytes) {
  if (!state_->Fits(state_->held, bytes)) return nullptr;
  BodyLease lease(new BodyRoom, [state = state_](BodyRoom* room) {
    state->Resize(room, 0);
    delete room;
  });
  state_->Resize(lease.get(), bytes);
  return lease;
}

bool BodyMemory::Resize(const BodyLease& lease, uint64_t bytes) {
  if (bytes > lease->bytes && !state_->Fits(state_->held - lease->bytes, bytes)) return false;
  state_->Resize(lease.get(), bytes);
  return true;
}

int64_t BodyMemory::Pace(uint64_t bytes) {
  const double ns = static_cast<double>(bytes) * kNsPerSecond / static_cast<double>(bytes_per_s_);
  const int64_t now = RealClock::Now();
  due_ns_ = std::max(due_ns_, now) + static_cast<int64_t>(ns);
  return due_ns_ - now;
}

}  // namespace flotilla
