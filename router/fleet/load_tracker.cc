#include "router/fleet/load_tracker.h"

#include <algorithm>

namespace flotilla {

void LoadTracker::Reset(const v1::Load& load) {
  *this = LoadTracker();
  load_ = load;
}

void LoadTracker::OnSubmit(uint64_t stream_id, uint64_t prompt_tokens, uint64_t cached_tokens) {
  pending_.push_back({++submits_, stream_id, prompt_tokens});
  unreported_tokens_ += prompt_tokens;
  if (cached_tokens > 0 && cached_of_.try_emplace(stream_id, cached_tokens).second)
    cached_tokens_ += cached_tokens;
}

void LoadTracker::OnAnswered(uint64_t stream_id) {
  const auto found = cached_of_.find(stream_id);
  if (found == cached_of_.end()) return;
  cached_tokens_ -= found->second;
  cached_of_.erase(found);
}

void LoadTracker::OnStep(const v1::Step& step) {
  if (step.has_load()) load_ = step.load();
  for (const v1::Delta& delta : step.deltas()) OnAnswered(delta.stream_id());
  if (pending_.empty()) return;
  replica_counts_ = replica_counts_ || step.submits() > 0;
  for (Pending& pending : pending_) pending.frames += step.has_load() ? 1 : 0;
  std::erase_if(pending_, [&](const Pending& pending) {
    if (!IsReported(pending, step)) return false;
    unreported_tokens_ -= pending.tokens;
    return true;
  });
}

bool LoadTracker::IsReported(const Pending& pending, const v1::Step& step) const {
  if (replica_counts_) return pending.number <= step.submits();
  if (pending.frames >= 2) return true;
  return std::any_of(step.deltas().begin(), step.deltas().end(), [&](const v1::Delta& delta) {
    return delta.stream_id() == pending.stream_id;
  });
}

}  // namespace flotilla
