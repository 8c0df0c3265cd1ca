// Requests that no replica may take now, and which of them is next.
//
// A request waits in a lane: any replica that could take one of a lane could take each of them. In
// a lane the highest priority goes first; of equal ones that of the tenant whose last turn is the
// longest ago; of a tenant's the oldest. Every kOldestEvery-th to leave a lane is the oldest in it
// instead, so none waits for ever. Those below priority 0 may fill low_priority_share of the
// places.
//
// One that is about to be taken is held meanwhile: it keeps its place, but is not next, and its
// time is not over.
//
// Units: CLOCK_MONOTONIC ns, ms. Threads: one at a time. Pure. Errors: Push says which bound is
// reached; then nothing has changed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

namespace flotilla {

struct AdmissionLimits {
  uint32_t max_requests = 0;        // 0: none may wait
  uint32_t max_per_tenant = 0;      // 0: as max_requests
  double low_priority_share = 0.8;  // of max_requests
};

struct AdmissionRequest {
  uint64_t handle = 0;  // unique; a later request has a higher one
  std::string lane;
  std::string tenant;
  int32_t priority = 0;
  int64_t expires_ns = 0;  // from then on TakeExpired gives it
};

// Between requests that leave while others wait: the mean of the last ones.
class DrainRate {
 public:
  static constexpr size_t kIntervals = 32;
  static constexpr int64_t kMinMs = 1000, kMaxMs = 60'000;

  // Somebody begins to wait where nobody did.
  void OnBusy(int64_t now_ns) { since_ns_ = now_ns; }
  void OnTake(int64_t now_ns);
  // In how long so many will have left, kMinMs … kMaxMs. It is never faster now than since the
  // last.
  int64_t MsFor(size_t requests, int64_t now_ns) const;

 private:
  std::deque<int64_t> intervals_ns_;
  int64_t sum_ns_ = 0;
  int64_t since_ns_ = 0;  // the last left, or the first came
};

class AdmissionQueue {
 public:
  static constexpr uint64_t kOldestEvery = 10;
  enum class Refusal { kFull, kTenantFull };

  explicit AdmissionQueue(AdmissionLimits limits) : limits_(limits) {}

  std::optional<Refusal> Push(AdmissionRequest request, int64_t now_ns);
  // The next of a lane that has one.
  uint64_t Next(const std::string& lane) const;
  // It has its turn: a replica may take it soon.
  void Hold(uint64_t handle);
  // None has: it waits on where it was, and its tenant's turn is given back.
  void Unhold(uint64_t handle);
  // A replica takes it, held or not. How long it has waited, ns.
  int64_t Take(uint64_t handle, int64_t now_ns);
  // Its client has left, or somebody ended it. Unknown handles are fine.
  void Remove(uint64_t handle);
  // Those whose time is over, oldest first; they wait no longer.
  std::vector<uint64_t> TakeExpired(int64_t now_ns);
  // When the next one's time is over; INT64_MAX: none waits unheld.
  int64_t next_expiry_ns() const {
    return expiries_.empty() ? INT64_MAX : expiries_.begin()->first;
  }

  bool enabled() const { return limits_.max_requests > 0; }
  size_t size() const { return entries_.size(); }
  bool Waits(const std::string& lane) const;  // unheld
  std::vector<std::string> lanes() const;     // that have one unheld
  // When one that was refused may come again.
  int64_t RetryAfterMs(Refusal refusal, const std::string& tenant, int64_t now_ns) const;

 private:
  struct Entry {
    AdmissionRequest request;
    int64_t pushed_ns;
    uint64_t turn = 0;  // its tenant's; 0: it is not held
    uint64_t turn_before = 0;
  };
  struct Lane {
    using ByTenant = std::map<std::string, std::set<uint64_t>>;
    std::map<int32_t, ByTenant, std::greater<>> by_priority;
    std::set<uint64_t> by_arrival;
    size_t held = 0;     // these are in neither
    uint64_t taken = 0;  // or held
  };
  void Enlist(const AdmissionRequest& request);
  void Delist(const AdmissionRequest& request);
  uint64_t TurnOf(const std::string& tenant) const;
  size_t WaitingOf(const std::string& tenant) const;

  const AdmissionLimits limits_;
  std::unordered_map<uint64_t, Entry> entries_;  // by handle
  std::map<std::string, Lane> lanes_;
  std::set<std::pair<int64_t, uint64_t>> expiries_;
  std::map<std::string, size_t> waiting_;  // by tenant
  size_t low_priority_ = 0;                // that wait
  // The number of each tenant's last turn, since nobody waited.
  std::map<std::string, uint64_t> turns_;
  uint64_t turn_ = 0;
  DrainRate rate_;
};

}  // namespace flotilla
