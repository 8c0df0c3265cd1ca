#include "router/policy.h"

#include <array>

#include "absl/strings/str_join.h"
#include "common/base/check.h"

namespace flotilla {
namespace {

// The first candidate whose index is above `last`, else the first of all.
size_t NextAfter(int64_t last, std::span<const ReplicaView> candidates) {
  for (size_t i = 0; i < candidates.size(); ++i) {
    if (candidates[i].index > last) return i;
  }
  return 0;
}

class RoundRobin final : public Policy {
 public:
  size_t Pick(const PolicyRequest&, std::span<const ReplicaView> candidates) override {
    CHECK(!candidates.empty());
    const size_t pick = NextAfter(last_, candidates);
    last_ = candidates[pick].index;
    return pick;
  }

 private:
  int64_t last_ = -1;
};

// Fewest tokens queued, running or on the way; then fewest requests; ties go round.
class ShortestQueue final : public Policy {
 public:
  size_t Pick(const PolicyRequest&, std::span<const ReplicaView> candidates) override {
    CHECK(!candidates.empty());
    size_t best = NextAfter(last_, candidates);
    const size_t start = best;
    for (size_t step = 1; step < candidates.size(); ++step) {
      const size_t i = (start + step) % candidates.size();
      if (Less(candidates[i], candidates[best])) best = i;
    }
    last_ = candidates[best].index;
    return best;
  }

 private:
  static bool Less(const ReplicaView& a, const ReplicaView& b) {
    if (a.load_tokens() != b.load_tokens()) return a.load_tokens() < b.load_tokens();
    return a.active_requests < b.active_requests;
  }

  int64_t last_ = -1;
};

struct Entry {
  const char* name;
  std::unique_ptr<Policy> (*create)();
};

constexpr std::array<Entry, 2> kPolicies = {{
    {"round_robin", []() -> std::unique_ptr<Policy> { return std::make_unique<RoundRobin>(); }},
    {"shortest_queue",
     []() -> std::unique_ptr<Policy> { return std::make_unique<ShortestQueue>(); }},
}};

}  // namespace

std::vector<std::string> PolicyNames() {
  std::vector<std::string> names;
  names.reserve(kPolicies.size());
  for (const Entry& entry : kPolicies) names.emplace_back(entry.name);
  return names;
}

StatusOr<std::unique_ptr<Policy>> CreatePolicy(std::string_view name) {
  for (const Entry& entry : kPolicies) {
    if (name == entry.name) return entry.create();
  }
  return absl::InvalidArgumentError(
      StrCat("unknown policy '", name, "'; there is ", absl::StrJoin(PolicyNames(), ", ")));
}

}  // namespace flotilla
