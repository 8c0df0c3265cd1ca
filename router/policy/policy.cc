#include "router/policy/policy.h"

#include <array>

#include "absl/strings/str_join.h"
#include "router/policy/policies.h"

namespace flotilla {
namespace {

template <typename T>
std::unique_ptr<Policy> Make(uint64_t seed) {
  if constexpr (std::is_constructible_v<T, uint64_t>) {
    return std::make_unique<T>(seed);
  } else {
    return std::make_unique<T>();
  }
}

struct Entry {
  const char* name;
  std::unique_ptr<Policy> (*create)(uint64_t seed);
};

constexpr std::array kTable = {
    Entry{"round_robin", &Make<RoundRobin>},         Entry{"shortest_queue", &Make<ShortestQueue>},
    Entry{"power_of_two", &Make<PowerOfTwo>},        Entry{"least_latency", &Make<LeastLatency>},
    Entry{"consistent_hash", &Make<ConsistentHash>}, Entry{"prefix_aware", &Make<PrefixAware>},
};

}  // namespace

std::vector<std::string> PolicyNames() {
  std::vector<std::string> names;
  names.reserve(kTable.size());
  for (const Entry& entry : kTable) names.emplace_back(entry.name);
  return names;
}

StatusOr<std::unique_ptr<Policy>> CreatePolicy(std::string_view name, uint64_t seed) {
  for (const Entry& entry : kTable) {
    if (name == entry.name) return entry.create(seed);
  }
  return absl::InvalidArgumentError(
      StrCat("unknown policy '", name, "'; there is ", absl::StrJoin(PolicyNames(), ", ")));
}

}  // namespace flotilla
