// The scheduling policies: a table of names, orders and promises.
//
// In which order each tries the waiting requests, ties by arrival, and whether nobody can starve:
//
// fcfs      first come first served. Bounded: only those who came before go before.
// lpm       longest cached prefix first. Bounded by ageing.
// dfs-weight  depth first through the radix tree, heaviest child first (dfs_order.h). Bounded by
//           ageing.
// lof       longest output first, by max_new_tokens. Bounded by ageing.
// random    a draw among all that wait, each time one is tried (SGLang shuffles each step),
//           reproducible by schedule_random_seed. A request is left out of k draws among n with
//           probability (1 - 1/n)^k, and bounded by ageing for certain.
// priority  higher ReqSpec::priority first, and a waiting request preempts running ones of lower
//           priority (preempt.cc). Bounded among the highest priority that waits; lower ones starve
//           while higher ones keep all slots or pages.
// vtc       the tenant that was served least first (tenant_order.h), by arrival within it. Bounded:
//           while a tenant waits, another gets at most 2 · max(w_p · L_input, w_q · M) more
//           service.
//
// Under each, requests that were retracted, or had begun on another replica, go first, by arrival
// (priority: first among their own priority). Ageing (lpm, dfs-weight, lof, random): a request that
// waits while schedule_max_overtakes others are admitted goes before all that are younger, so that
// it is admitted after at most schedule_max_overtakes + max_queued_requests others; 0 turns that
// off, and with it the promise. (An admission may still have to wait for the pages of those who
// run.)
//
// Threads: one. Errors: an unknown name is nullptr.
// Source: SGLang's SchedulePolicy and its priority scheduling (requirement 001).
#pragma once

#include <memory>
#include <string_view>
#include <vector>

#include "scheduler_proc/core/kv_pool.h"
#include "scheduler_proc/core/waiting_order.h"

namespace flotilla {

struct SchedulePolicy {
  std::string_view name;
  std::unique_ptr<WaitingOrder> (*make)(const SchedulerConfig& config, KvPool* kv);
  bool ages = false;        // schedule_max_overtakes applies
  bool by_arrival = false;  // who comes later never goes before who waits
  // Those who run give way to higher priorities, and then wait in the order, not before all.
  bool preempts = false;
};

// nullptr: no such policy.
const SchedulePolicy* FindSchedulePolicy(std::string_view name);
std::vector<std::string_view> SchedulePolicyNames();

}  // namespace flotilla
