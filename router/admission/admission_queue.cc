#include "router/admission/admission_queue.h"

#include <algorithm>

#include "common/base/check.h"
#include "common/base/clock.h"

namespace flotilla {

void DrainRate::OnTake(int64_t now_ns) {
  intervals_ns_.push_back(now_ns - since_ns_);
  sum_ns_ += intervals_ns_.back();
  since_ns_ = now_ns;
  if (intervals_ns_.size() <= kIntervals) return;
  sum_ns_ -= intervals_ns_.front();
  intervals_ns_.pop_front();
}

int64_t DrainRate::MsFor(size_t requests, int64_t now_ns) const {
  const auto count = static_cast<double>(std::max<size_t>(1, intervals_ns_.size()));
  const double each_ns =
      std::max(static_cast<double>(sum_ns_) / count, static_cast<double>(now_ns - since_ns_));
  const double ms = std::min<double>(kMaxMs, each_ns * static_cast<double>(requests) / kNsPerMs);
  return std::max(kMinMs, static_cast<int64_t>(ms));
}

std::optional<AdmissionQueue::Refusal> AdmissionQueue::Push(AdmissionRequest request,
                                                            int64_t now_ns) {
  const bool low = request.priority < 0;
  const auto most_low = static_cast<size_t>(limits_.low_priority_share * limits_.max_requests);
  if (size() >= limits_.max_requests || (low && low_priority_ >= most_low)) return Refusal::kFull;
  if (limits_.max_per_tenant > 0 && WaitingOf(request.tenant) >= limits_.max_per_tenant)
    return Refusal::kTenantFull;
  if (entries_.empty()) rate_.OnBusy(now_ns);
  Enlist(request);
  ++waiting_[request.tenant];
  low_priority_ += low ? 1 : 0;
  const uint64_t handle = request.handle;
  const bool added = entries_.emplace(handle, Entry{std::move(request), now_ns}).second;
  CHECK(added);
  return std::nullopt;
}

void AdmissionQueue::Enlist(const AdmissionRequest& request) {
  Lane& lane = lanes_[request.lane];
  lane.by_priority[request.priority][request.tenant].insert(request.handle);
  lane.by_arrival.insert(request.handle);
  expiries_.emplace(request.expires_ns, request.handle);
}

void AdmissionQueue::Delist(const AdmissionRequest& request) {
  Lane& lane = lanes_.at(request.lane);
  lane.by_arrival.erase(request.handle);
  Lane::ByTenant& tenants = lane.by_priority.at(request.priority);
  std::set<uint64_t>& own = tenants.at(request.tenant);
  own.erase(request.handle);
  if (own.empty()) tenants.erase(request.tenant);
  if (tenants.empty()) lane.by_priority.erase(request.priority);
  expiries_.erase({request.expires_ns, request.handle});
}

uint64_t AdmissionQueue::Next(const std::string& name) const {
  const Lane& lane = lanes_.at(name);
  if (lane.taken % kOldestEvery == kOldestEvery - 1) return *lane.by_arrival.begin();
  const Lane::ByTenant& tenants = lane.by_priority.begin()->second;
  const auto next =
      std::min_element(tenants.begin(), tenants.end(), [this](const auto& a, const auto& b) {
        return std::pair(TurnOf(a.first), *a.second.begin()) <
               std::pair(TurnOf(b.first), *b.second.begin());
      });
  return *next->second.begin();
}

void AdmissionQueue::Hold(uint64_t handle) {
  Entry& entry = entries_.at(handle);
  const std::string& tenant = entry.request.tenant;
  CHECK(entry.turn == 0);
  Delist(entry.request);
  Lane& lane = lanes_.at(entry.request.lane);
  ++lane.held;
  ++lane.taken;
  entry.turn_before = TurnOf(tenant);
  turns_[tenant] = entry.turn = ++turn_;
}

void AdmissionQueue::Unhold(uint64_t handle) {
  Entry& entry = entries_.at(handle);
  const std::string& tenant = entry.request.tenant;
  CHECK(entry.turn != 0);
  Lane& lane = lanes_.at(entry.request.lane);
  --lane.held;
  --lane.taken;
  if (TurnOf(tenant) == entry.turn) turns_[tenant] = entry.turn_before;
  entry.turn = 0;
  Enlist(entry.request);
}

int64_t AdmissionQueue::Take(uint64_t handle, int64_t now_ns) {
  const Entry& entry = entries_.at(handle);
  const int64_t waited_ns = now_ns - entry.pushed_ns;
  if (entry.turn == 0) Hold(handle);
  rate_.OnTake(now_ns);
  Remove(handle);
  return waited_ns;
}

void AdmissionQueue::Remove(uint64_t handle) {
  const auto found = entries_.find(handle);
  if (found == entries_.end()) return;
  const bool held = found->second.turn != 0;
  const AdmissionRequest request = std::move(found->second.request);
  entries_.erase(found);
  low_priority_ -= request.priority < 0 ? 1 : 0;
  if (--waiting_.at(request.tenant) == 0) waiting_.erase(request.tenant);
  if (!held) Delist(request);
  Lane& lane = lanes_.at(request.lane);
  lane.held -= held ? 1 : 0;
  if (lane.by_arrival.empty() && lane.held == 0) lanes_.erase(request.lane);
  if (entries_.empty()) turns_.clear();
}

bool AdmissionQueue::Waits(const std::string& name) const {
  const auto lane = lanes_.find(name);
  return lane != lanes_.end() && !lane->second.by_arrival.empty();
}

std::vector<uint64_t> AdmissionQueue::TakeExpired(int64_t now_ns) {
  std::vector<uint64_t> expired;
  for (const auto& [expires_ns, handle] : expiries_) {
    if (expires_ns > now_ns) break;
    expired.push_back(handle);
  }
  for (const uint64_t handle : expired) Remove(handle);
  return expired;
}

std::vector<std::string> AdmissionQueue::lanes() const {
  std::vector<std::string> names;
  names.reserve(lanes_.size());
  for (const auto& [name, lane] : lanes_) {
    if (!lane.by_arrival.empty()) names.push_back(name);
  }
  return names;
}

// The tenants that wait share the turns.
int64_t AdmissionQueue::RetryAfterMs(Refusal refusal, const std::string& tenant,
                                     int64_t now_ns) const {
  const size_t own = WaitingOf(tenant) * waiting_.size();
  return rate_.MsFor(refusal == Refusal::kFull ? size() : std::min(own, size()), now_ns);
}

uint64_t AdmissionQueue::TurnOf(const std::string& tenant) const {
  const auto found = turns_.find(tenant);
  return found == turns_.end() ? 0 : found->second;
}

size_t AdmissionQueue::WaitingOf(const std::string& tenant) const {
  const auto found = waiting_.find(tenant);
  return found == waiting_.end() ? 0 : found->second;
}

}  // namespace flotilla
