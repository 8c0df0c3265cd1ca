// In which order waiting requests are tried. A policy is a row of a table: a name and an order.
//
// fcfs: by arrival. lpm: longest cached prefix first, then by arrival; does not promise that
// nobody starves. Under each, requests that were retracted go first, by arrival.
//
// Units: pages. Threads: one.
// Source: SGLang's SchedulePolicy (requirement 001).
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "scheduler_proc/core/kv_pool.h"
#include "scheduler_proc/core/req.h"

namespace flotilla {

struct SchedulePolicy {
  std::string_view name;
  bool cache_aware;  // the order follows the cache, so it is made anew when that changes
  bool (*before)(const Req& a, const Req& b);  // among requests that never ran; a total order
};

// nullptr: no such policy.
const SchedulePolicy* FindSchedulePolicy(std::string_view name);
std::vector<std::string_view> SchedulePolicyNames();

// The waiting requests, best first.
class WaitingQueue {
 public:
  explicit WaitingQueue(const SchedulePolicy& policy) : policy_(policy) {}

  void Add(Req* req);     // a new or a retracted request
  void Remove(Req* req);  // if it is there
  // Removes those that got a slot (their state is no longer kWaiting).
  void RemoveScheduled();
  // Brings the order up to date with the cache.
  void CalcPriority(const KvPool& kv);

  std::span<Req* const> reqs() const { return reqs_; }
  size_t size() const { return reqs_.size(); }
  bool empty() const { return reqs_.empty(); }
  uint64_t num_tokens() const { return num_tokens_; }

 private:
  bool Before(const Req& a, const Req& b) const;

  const SchedulePolicy& policy_;
  std::vector<Req*> reqs_;
  uint64_t num_tokens_ = 0;
  uint64_t sorted_version_ = 0;  // of the tree
  bool sorted_ = true;
};

}  // namespace flotilla
