// lpm: longest cached prefix first, then by arrival.
//
// Units: pages. Threads: one. Ownership: as WaitingOrder. Errors: none.
// Source: SGLang's longest prefix match (requirement 001).
#pragma once

#include <vector>

#include "scheduler_proc/core/kv_pool.h"
#include "scheduler_proc/core/waiting_order.h"

namespace flotilla {

class PrefixOrder : public WaitingOrder {
 public:
  explicit PrefixOrder(const KvPool* kv) : kv_(*kv) {}
  void Add(Req* req) override;
  void Remove(Req* req) override;
  void BeginRound() override;
  Req* Next() override { return next_ == reqs_.size() ? nullptr : reqs_[next_++]; }
  size_t size() const override { return reqs_.size(); }

 private:
  const KvPool& kv_;
  std::vector<Req*> reqs_;
  size_t next_ = 0;
  uint64_t sorted_version_ = 0;  // of the tree
};

}  // namespace flotilla
