// vtc: the tenant (ReqSpec::cache_salt) that was served least goes next, by arrival within it.
//
// Each tenant has a virtual counter of the service it got: vtc_input_weight × the prompt tokens
// that are to be computed (what the cache holds is free), charged when a request is first admitted,
// and vtc_output_weight for each token produced. Recomputing after a retraction is not charged. A
// tenant that has nothing waiting gains nothing by it: when it comes again, its counter is lifted
// to the least of those that wait, or, if nobody waits, to that of the tenant that was the last to.
//
// Then, while two tenants both have requests waiting, the service that they get over any time
// differs by at most 2 · max(w_p · L_input, w_q · M), L_input being the most tokens a request has
// at admission and M those that requests with a slot, or retracted from one, can produce; and a
// tenant that waits gets at most that less than any other. So nobody starves.
//
// A tenant's counter is kept while it has requests and, of the others, for the kMaxIdleTenants that
// were served most; forgetting one is as lifting it. A counter only grows, so the tree of those
// that wait is brought up to date when it is read. Units: tokens. Threads: one. Ownership: as
// WaitingOrder. Errors: none.
// Source: Sheng et al., "Fairness in Serving Large Language Models" (OSDI 2024), algorithm 2.
#pragma once

#include <boost/intrusive/set.hpp>
#include <memory>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "scheduler_proc/core/waiting_order.h"

namespace flotilla {

class TenantOrder : public WaitingOrder {
 public:
  static constexpr size_t kMaxIdleTenants = 1024;

  TenantOrder(double input_weight, double output_weight)
      : input_weight_(input_weight), output_weight_(output_weight) {}
  void Add(Req* req) override;
  void AddBefore(Req* req) override { Acquire(req); }
  void Remove(Req* req) override;
  void BeginRound() override { ++round_; }
  Req* Next() override;
  size_t size() const override { return size_; }
  void OnAdmitted(const Req& req) override;
  void OnToken(const Req& req) override { tenants_[req.tenant]->counter += output_weight_; }
  void OnForgotten(const Req& req) override;
  void Save(std::string* out) const override;
  Status Restore(WireReader* in, std::span<Req* const> waiting,
                 std::span<Req* const> elsewhere) override;

  // For tests. 0: of no tenant that is known.
  double counter(const std::string& tenant) const;
  size_t num_tenants() const { return by_name_.size(); }

 private:
  using ReqSet =
      boost::intrusive::set<Req, boost::intrusive::member_hook<Req, WaitHook, &Req::by_order>,
                            boost::intrusive::compare<ByArrival>>;
  struct Tenant {
    std::string name;
    uint32_t id = 0;
    uint32_t num_reqs = 0;  // that wait or run
    double counter = 0;
    WaitHook by_counter;  // while requests wait
    double key = 0;       // its place there: what the counter was, or is
    ReqSet reqs;          // that wait
    ReqSet::iterator next;
    uint64_t round = 0;  // of `next`
  };
  struct ByKey {
    bool operator()(const Tenant& a, const Tenant& b) const {
      return a.key != b.key ? a.key < b.key : a.id < b.id;
    }
  };
  using TenantSet =
      boost::intrusive::set<Tenant,
                            boost::intrusive::member_hook<Tenant, WaitHook, &Tenant::by_counter>,
                            boost::intrusive::compare<ByKey>>;

  Tenant* Acquire(Req* req);
  Status RestoreTenants(WireReader* in);
  void ForgetIdleTenants();
  // Moves the first to its place until it stands there. Not empty.
  Tenant& LeastServed();

  const double input_weight_, output_weight_;
  absl::flat_hash_map<std::string, uint32_t> by_name_;
  std::vector<std::unique_ptr<Tenant>> tenants_;  // by id; nullptr: free
  std::vector<uint32_t> free_ids_;
  size_t num_idle_ = 0;
  TenantSet waiting_;
  double last_counter_ = 0;  // of the tenant that was the last to wait, when nobody does
  uint32_t last_ = UINT32_MAX;
  size_t size_ = 0;
  uint64_t round_ = 0;
};

}  // namespace flotilla
