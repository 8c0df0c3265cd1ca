#include "scheduler_proc/core/schedule_policy.h"

#include "scheduler_proc/core/dfs_order.h"
#include "scheduler_proc/core/prefix_order.h"
#include "scheduler_proc/core/random_order.h"
#include "scheduler_proc/core/tenant_order.h"

namespace flotilla {
namespace {

struct ByLongestOutput {
  bool operator()(const Req& a, const Req& b) const {
    if (a.spec.max_new_tokens != b.spec.max_new_tokens) {
      return a.spec.max_new_tokens > b.spec.max_new_tokens;
    }
    return a.seq < b.seq;
  }
};

struct ByPriority {
  bool operator()(const Req& a, const Req& b) const {
    if (a.spec.priority != b.spec.priority) return a.spec.priority > b.spec.priority;
    return a.retracted != b.retracted ? a.retracted : a.seq < b.seq;
  }
};

template <typename Order>
std::unique_ptr<WaitingOrder> Make(const SchedulerConfig& /*config*/, KvPool* /*kv*/) {
  return std::make_unique<Order>();
}
template <typename Order>
std::unique_ptr<WaitingOrder> MakeMatched(const SchedulerConfig& config, KvPool* kv) {
  return std::make_unique<Order>(kv, config.max_queued_requests);
}
std::unique_ptr<WaitingOrder> MakeRandomOrder(const SchedulerConfig& config, KvPool* /*kv*/) {
  return std::make_unique<RandomOrder>(config.schedule_random_seed);
}
std::unique_ptr<WaitingOrder> MakeTenantOrder(const SchedulerConfig& config, KvPool* /*kv*/) {
  return std::make_unique<TenantOrder>(config.vtc_input_weight, config.vtc_output_weight);
}

constexpr SchedulePolicy kPolicyTable[] = {
    {.name = "fcfs", .make = Make<SortedOrder<ByArrival>>, .by_arrival = true},
    {.name = "lpm", .make = MakeMatched<PrefixOrder>, .ages = true},
    {.name = "dfs-weight", .make = MakeMatched<DfsOrder>, .ages = true},
    {.name = "lof", .make = Make<SortedOrder<ByLongestOutput>>, .ages = true},
    {.name = "random", .make = MakeRandomOrder, .ages = true},
    {.name = "priority", .make = Make<SortedOrder<ByPriority>>, .preempts = true},
    {.name = "vtc", .make = MakeTenantOrder},
};

}  // namespace

const SchedulePolicy* FindSchedulePolicy(std::string_view name) {
  for (const SchedulePolicy& policy : kPolicyTable) {
    if (policy.name == name) return &policy;
  }
  return nullptr;
}

std::vector<std::string_view> SchedulePolicyNames() {
  std::vector<std::string_view> names;
  for (const SchedulePolicy& policy : kPolicyTable) names.push_back(policy.name);
  return names;
}

}  // namespace flotilla
