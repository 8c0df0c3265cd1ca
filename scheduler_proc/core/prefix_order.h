// lpm: longest cached prefix first, then by arrival.
//
// A change of the cache is noted at once and takes effect when the next round begins, so that a
// round has one order.
//
// Units: pages. Threads: one. Ownership: as MatchedOrder. Errors: none.
// Source: SGLang's longest prefix match (requirement 001).
#pragma once

#include <boost/intrusive/set.hpp>
#include <vector>

#include "scheduler_proc/core/matched_order.h"

namespace flotilla {

class PrefixOrder final : public MatchedOrder {
 public:
  PrefixOrder(KvPool* kv, size_t max_reqs);
  void BeginRound() override;
  Req* Next() override { return next_ == reqs_.end() ? nullptr : &*next_++; }

 private:
  struct ByPrefix {
    bool operator()(const Req& a, const Req& b) const {
      return a.match.order_pages != b.match.order_pages ? a.match.order_pages > b.match.order_pages
                                                        : a.seq < b.seq;
    }
  };
  using Set =
      boost::intrusive::set<Req, boost::intrusive::member_hook<Req, WaitHook, &Req::by_order>,
                            boost::intrusive::compare<ByPrefix>>;

  void Added(Req* req) override;
  void Removed(Req* req) override;
  void Arrives(Req* req) override;

  Set reqs_;
  Set::iterator next_ = reqs_.end();
  std::vector<Req*> moved_;
};

}  // namespace flotilla
