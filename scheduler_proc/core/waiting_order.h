// The order in which a policy tries waiting requests, kept up to date while they come and go.
//
// A planning round (BeginRound, then Next until the step is full) sees each request at most once
// and best first. Nothing is added or removed during a round; what it admitted leaves after it.
//
// Threads: one. Ownership: does not own the requests; it holds each from Add to Remove. Errors:
// none.
// Source: SGLang's SchedulePolicy (requirement 001), made incremental.
#pragma once

#include <boost/intrusive/set.hpp>
#include <span>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "common/base/wire.h"
#include "scheduler_proc/core/req.h"

namespace flotilla {

class WaitingOrder {
 public:
  virtual ~WaitingOrder() = default;
  virtual void Add(Req* req) = 0;
  // A request that was never in the order, and stands before it.
  virtual void AddBefore(Req* /*req*/) {}
  virtual void Remove(Req* req) = 0;
  virtual void BeginRound() = 0;
  // The best that this round has not given yet; nullptr: it has given all.
  virtual Req* Next() = 0;
  virtual size_t size() const = 0;
  // A request of the order, or one that stands before it, got a slot.
  virtual void OnAdmitted(const Req& /*req*/) {}
  // A running request has one token more.
  virtual void OnToken(const Req& /*req*/) {}
  // The request is gone for good, from wherever it was.
  virtual void OnForgotten(const Req& /*req*/) {}

  // For snapshot.cc. Appends what can't be told from the requests.
  virtual void Save(std::string* /*out*/) const {}
  // An order that nothing was added to: takes that back, and holds the requests of `waiting`, which
  // are sorted by arrival. `elsewhere`: all others that are not forgotten. DataLoss: it was not
  // saved so; what it holds then is not said.
  virtual Status Restore(WireReader* /*in*/, std::span<Req* const> waiting,
                         std::span<Req* const> /*elsewhere*/) {
    for (Req* req : waiting) Add(req);
    return OkStatus();
  }
};

// In a tree sorted by Before, a total order that does not change while a request waits.
template <typename Before>
class SortedOrder : public WaitingOrder {
 public:
  void Add(Req* req) override { reqs_.insert(*req); }
  void Remove(Req* req) override { reqs_.erase(reqs_.iterator_to(*req)); }
  void BeginRound() override { next_ = reqs_.begin(); }
  Req* Next() override { return next_ == reqs_.end() ? nullptr : &*next_++; }
  size_t size() const override { return reqs_.size(); }

 private:
  using Hook = boost::intrusive::member_hook<Req, WaitHook, &Req::by_order>;
  using Set = boost::intrusive::set<Req, Hook, boost::intrusive::compare<Before>>;
  Set reqs_;
  typename Set::iterator next_ = reqs_.end();
};

struct ByArrival {
  bool operator()(const Req& a, const Req& b) const { return a.seq < b.seq; }
};

}  // namespace flotilla
