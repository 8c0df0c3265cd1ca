#include "router/policy/policies.h"

#include <algorithm>
#include <cmath>

#include "common/base/check.h"

namespace flotilla {
namespace {

// The first candidate whose index is above `last`, else the first of all.
size_t NextAfter(int64_t last, std::span<const ReplicaView> candidates) {
  const auto next =
      std::upper_bound(candidates.begin(), candidates.end(), last,
                       [](int64_t index, const ReplicaView& view) { return index < view.index; });
  return next == candidates.end() ? 0 : static_cast<size_t>(next - candidates.begin());
}

// The least of all; of equals the first after `last`.
template <typename LessThan>
size_t LeastAfter(int64_t last, std::span<const ReplicaView> candidates, LessThan less) {
  CHECK(!candidates.empty());
  const size_t start = NextAfter(last, candidates);
  size_t best = start;
  const auto look = [&](size_t begin, size_t end) {
    for (size_t i = begin; i < end; ++i) {
      if (less(candidates[i], candidates[best])) best = i;
    }
  };
  look(start + 1, candidates.size());
  look(0, start);
  return best;
}

bool ShorterQueue(const ReplicaView& a, const ReplicaView& b) {
  if (a.load_tokens() != b.load_tokens()) return a.load_tokens() < b.load_tokens();
  return a.active_requests < b.active_requests;
}

// The lowest time to a first token of those that work, else of all, else 1.
double FastestKnown(std::span<const ReplicaView> candidates) {
  double busy_s = 0, any_s = 0;
  const auto note = [](double seconds, double* least_s) {
    if (*least_s == 0 || seconds < *least_s) *least_s = seconds;
  };
  for (const ReplicaView& view : candidates) {
    if (view.first_token_s == 0) continue;
    note(view.first_token_s, &any_s);
    if (view.active_requests > 0) note(view.first_token_s, &busy_s);
  }
  if (busy_s > 0) return busy_s;
  return any_s > 0 ? any_s : 1;
}

// The splitmix64 finaliser: every bit of both depends on every bit.
uint64_t Rendezvous(uint64_t key, uint64_t identity) {
  uint64_t x = key ^ (identity * 0x9E3779B97F4A7C15ull);
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
  return x ^ (x >> 31);
}

}  // namespace

size_t PickByRendezvous(uint64_t key, std::span<const ReplicaView> candidates, double bound) {
  size_t best = candidates.size();
  uint64_t best_score = 0;
  for (size_t i = 0; i < candidates.size(); ++i) {
    if (candidates[i].active_requests >= bound) continue;
    const uint64_t score = Rendezvous(key, candidates[i].identity);
    if (best < candidates.size() && score <= best_score) continue;
    best = i;
    best_score = score;
  }
  return best;
}

size_t RoundRobin::Pick(const PolicyRequest&, std::span<const ReplicaView> candidates) {
  CHECK(!candidates.empty());
  const size_t pick = NextAfter(last_, candidates);
  last_ = candidates[pick].index;
  return pick;
}

size_t ShortestQueue::Pick(const PolicyRequest&, std::span<const ReplicaView> candidates) {
  const size_t pick = LeastAfter(last_, candidates, ShorterQueue);
  last_ = candidates[pick].index;
  return pick;
}

size_t PowerOfTwo::Pick(const PolicyRequest&, std::span<const ReplicaView> candidates) {
  CHECK(!candidates.empty());
  const size_t first = random_() % candidates.size();
  if (candidates.size() == 1) return first;
  size_t second = random_() % (candidates.size() - 1);
  second += second >= first ? 1 : 0;
  return ShorterQueue(candidates[second], candidates[first]) ? second : first;
}

size_t LeastLatency::Pick(const PolicyRequest&, std::span<const ReplicaView> candidates) {
  const double fastest_s = FastestKnown(candidates);
  const auto expected_s = [&](const ReplicaView& view) {
    return std::max(view.first_token_s, fastest_s) * (view.active_requests + 1.0);
  };
  const size_t pick =
      LeastAfter(last_, candidates, [&](const ReplicaView& a, const ReplicaView& b) {
        const double a_s = expected_s(a), b_s = expected_s(b);
        return a_s != b_s ? a_s < b_s : ShorterQueue(a, b);
      });
  last_ = candidates[pick].index;
  return pick;
}

size_t ConsistentHash::Pick(const PolicyRequest& request, std::span<const ReplicaView> candidates) {
  if (request.session == 0) return shortest_queue_.Pick(request, candidates);
  CHECK(!candidates.empty());
  double total = 1;  // with this one
  for (const ReplicaView& view : candidates) total += view.active_requests;
  // At least one replica is below it, since not all can be above the mean.
  const double bound = std::ceil(kMaxShare * total / static_cast<double>(candidates.size()));
  const size_t best = PickByRendezvous(request.session, candidates, bound);
  CHECK(best < candidates.size());
  return best;
}

double PrefixAware::Load(const ReplicaView& view) {
  const uint64_t waiting = view.queued_tokens + view.unreported_tokens - view.waiting_cached_tokens;
  return static_cast<double>(waiting) + kRunningWeight * static_cast<double>(view.running_tokens);
}

size_t PrefixAware::Pick(const PolicyRequest& request, std::span<const ReplicaView> candidates) {
  double total = 0;
  for (const ReplicaView& view : candidates) total += Load(view);
  const auto prompt = static_cast<double>(request.prompt_tokens);
  const double bound = kMaxShare * total / static_cast<double>(candidates.size()) + prompt;
  const auto cost = [&](const ReplicaView& view) {
    const double load = Load(view);
    const double cached = load > bound ? 0 : static_cast<double>(view.cached_tokens);
    return load + prompt - cached;
  };
  const size_t pick =
      LeastAfter(last_, candidates, [&](const ReplicaView& a, const ReplicaView& b) {
        const double cost_a = cost(a), cost_b = cost(b);
        return cost_a != cost_b ? cost_a < cost_b : a.active_requests < b.active_requests;
      });
  last_ = candidates[pick].index;
  return pick;
}

}  // namespace flotilla
