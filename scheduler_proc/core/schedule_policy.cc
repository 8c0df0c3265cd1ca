#include "scheduler_proc/core/schedule_policy.h"

#include <algorithm>

namespace flotilla {
namespace {

bool ByArrival(const Req& a, const Req& b) { return a.seq < b.seq; }

bool ByPrefix(const Req& a, const Req& b) {
  return a.match_pages != b.match_pages ? a.match_pages > b.match_pages : a.seq < b.seq;
}

constexpr SchedulePolicy kPolicies[] = {
    {.name = "fcfs", .cache_aware = false, .before = ByArrival},
    {.name = "lpm", .cache_aware = true, .before = ByPrefix},
};

}  // namespace

const SchedulePolicy* FindSchedulePolicy(std::string_view name) {
  for (const SchedulePolicy& policy : kPolicies) {
    if (policy.name == name) return &policy;
  }
  return nullptr;
}

std::vector<std::string_view> SchedulePolicyNames() {
  std::vector<std::string_view> names;
  for (const SchedulePolicy& policy : kPolicies) names.push_back(policy.name);
  return names;
}

bool WaitingQueue::Before(const Req& a, const Req& b) const {
  if (a.retracted != b.retracted) return a.retracted;
  return a.retracted ? ByArrival(a, b) : policy_.before(a, b);
}

void WaitingQueue::Add(Req* req) {
  num_tokens_ += req->len();
  if (policy_.cache_aware) {
    reqs_.push_back(req);
    sorted_ = false;
    return;
  }
  const auto before = [this](const Req* a, const Req* b) { return Before(*a, *b); };
  reqs_.insert(std::upper_bound(reqs_.begin(), reqs_.end(), req, before), req);
}

void WaitingQueue::Remove(Req* req) {
  const auto it = std::find(reqs_.begin(), reqs_.end(), req);
  if (it == reqs_.end()) return;
  num_tokens_ -= req->len();
  reqs_.erase(it);
}

void WaitingQueue::RemoveScheduled() {
  std::erase_if(reqs_, [this](const Req* req) {
    if (req->state == ReqState::kWaiting) return false;
    num_tokens_ -= req->len();
    return true;
  });
}

void WaitingQueue::CalcPriority(const KvPool& kv) {
  if (!policy_.cache_aware) return;
  const uint64_t version = kv.cache().version();
  if (sorted_ && sorted_version_ == version) return;
  for (Req* req : reqs_) {
    if (req->match_version == version) continue;
    req->match_pages = kv.PeekPrefix(*req);
    req->match_version = version;
  }
  std::sort(reqs_.begin(), reqs_.end(),
            [this](const Req* a, const Req* b) { return Before(*a, *b); });
  sorted_ = true;
  sorted_version_ = version;
}

}  // namespace flotilla
