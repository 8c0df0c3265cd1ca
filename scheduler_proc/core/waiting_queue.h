// The requests that wait for a slot: those that had begun (retracted here, or resumed from
// elsewhere) by arrival, then those that ageing has brought to the front, then the others in the
// policy's order (schedule_policy.h).
//
// A round: BeginRound, then Next for the best that was not given yet, EndRound. In a round nothing
// is added or removed; EndRound lets go of what got a slot meanwhile (its state is not kWaiting).
//
// Units: tokens. Threads: one. Ownership: does not own the requests. Errors: none.
// Source: SGLang's waiting_queue (requirement 001); ageing is ours.
#pragma once

#include <boost/intrusive/set.hpp>
#include <memory>
#include <vector>

#include "scheduler_proc/core/kv_pool.h"
#include "scheduler_proc/core/schedule_policy.h"

namespace flotilla {

class WaitingQueue {
 public:
  // The configuration's schedule_policy must exist; `kv` must outlive the queue.
  WaitingQueue(const SchedulerConfig& config, KvPool* kv);

  void Add(Req* req);  // a new, a resumed or a retracted request
  void Remove(Req* req);

  void BeginRound();
  Req* Next();  // nullptr: all were given
  void EndRound();

  // What the policy must know of requests that wait no longer.
  void OnAdmitted(const Req& req);
  void OnToken(const Req& req) { order_->OnToken(req); }
  void OnForgotten(const Req& req) { order_->OnForgotten(req); }

  const SchedulePolicy& policy() const { return policy_; }
  size_t size() const { return retracted_.size() + order_->size(); }
  bool empty() const { return size() == 0; }
  uint64_t num_tokens() const { return num_tokens_; }
  // Who has waited longest of those that had not begun; null: nobody.
  const Req* oldest() const { return waiting_.empty() ? nullptr : &*waiting_.begin(); }
  // In no order of interest.
  template <typename Visit>
  void ForEach(const Visit& visit) const {
    for (const Req& req : retracted_) visit(req);
    for (const Req& req : waiting_) visit(req);
  }
  // For snapshot.cc. What can't be told from the requests; and these back into a queue that nothing
  // was added to. `reqs` wait, as ForEach visits them; `holders` are all others that are not
  // forgotten. DataLoss: as WaitingOrder's.
  void Save(std::string* out) const;
  Status Restore(WireReader* in, std::span<Req* const> reqs, std::span<Req* const> holders);
  // All, best first: a round. For tests.
  std::vector<Req*> Order();

 private:
  using AgeSet =
      boost::intrusive::set<Req, boost::intrusive::member_hook<Req, WaitHook, &Req::by_age>,
                            boost::intrusive::compare<ByArrival>>;

  bool IsAged(const Req& req) const {
    return max_overtakes_ > 0 && num_admitted_ - req.num_admitted_before >= max_overtakes_;
  }

  const SchedulePolicy& policy_;
  const uint64_t max_overtakes_;  // 0: no ageing
  const std::unique_ptr<WaitingOrder> order_;
  AgeSet retracted_, waiting_;  // waiting_: the same as order_
  uint64_t num_tokens_ = 0;
  uint64_t num_admitted_ = 0;

  // The round.
  uint64_t round_ = 0;
  AgeSet::iterator next_retracted_, next_aged_;
  std::vector<Req*> given_;
};

}  // namespace flotilla
