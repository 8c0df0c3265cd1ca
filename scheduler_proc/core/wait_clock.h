// Why requests wait: at every moment one thing keeps the queue from getting on, and what each of
// them has cost so far is known. A request that notes the totals when it comes has, when it is
// admitted, its own waiting time by reason, without anyone having looked at it meanwhile.
//
// Units: nanoseconds. Threads: one. Errors: none.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

namespace flotilla {

enum class WaitReason : uint32_t {
  kNextStep,  // nothing: the step that runs had to end
  kSlots,     // max_running_requests run
  kPages,     // too few pages of the KV cache
  kTokens,    // the step's tokens went to prompts before it
  kPrefix,    // another computes a prefix that it can read then
  kNumReasons,
};

inline const char* WaitReasonName(WaitReason reason) {
  constexpr const char* kNames[] = {"next_step", "running_requests", "kv_pages", "token_budget",
                                    "shared_prefix"};
  return kNames[static_cast<size_t>(reason)];
}

class WaitClock {
 public:
  using Totals = std::array<int64_t, static_cast<size_t>(WaitReason::kNumReasons)>;

  // What has held from the last call until now is counted; from now on it is `reason`.
  void Set(WaitReason reason, int64_t now_ns) {
    totals_ = At(now_ns);
    reason_ = reason;
    since_ns_ = std::max(now_ns, since_ns_);
  }
  Totals At(int64_t now_ns) const {
    Totals totals = totals_;
    totals[static_cast<size_t>(reason_)] += std::max<int64_t>(0, now_ns - since_ns_);
    return totals;
  }
  // What took most of the time since the totals were `then`.
  WaitReason MainReason(const Totals& then, int64_t now_ns) const {
    Totals spent = At(now_ns);
    for (size_t i = 0; i < spent.size(); ++i) spent[i] -= then[i];
    return static_cast<WaitReason>(std::max_element(spent.begin(), spent.end()) - spent.begin());
  }

  // For snapshot.cc: all of it, in both directions.
  template <typename Archive, typename Self>
  static void Fields(Archive& field, Self& self) {
    field(self.totals_), field(self.reason_), field(self.since_ns_);
  }

  // Times are within ±bound, and there is such a reason.
  bool valid(int64_t bound) const {
    const auto within = [bound](int64_t ns) { return ns > -bound && ns < bound; };
    return std::all_of(totals_.begin(), totals_.end(), within) && within(since_ns_) &&
           reason_ < WaitReason::kNumReasons;
  }

 private:
  Totals totals_ = {};
  WaitReason reason_ = WaitReason::kNextStep;
  int64_t since_ns_ = 0;
};
static_assert(sizeof(WaitClock) == 56);  // Fields lists all of it

}  // namespace flotilla
