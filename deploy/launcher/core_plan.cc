#include "deploy/launcher/core_plan.h"

#include <algorithm>

#include "deploy/launcher/model.h"
#include "shm/replica_control.h"

namespace flotilla {
namespace {

// The nodes' CPUs that we may use.
std::vector<std::vector<uint32_t>> OurNodes(const Machine& machine) {
  std::vector<std::vector<uint32_t>> nodes;
  for (const std::vector<uint32_t>& node : machine.numa_nodes) {
    std::vector<uint32_t> ours;
    std::copy_if(node.begin(), node.end(), std::back_inserter(ours), [&](uint32_t cpu) {
      return std::count(machine.allowed.begin(), machine.allowed.end(), cpu) > 0;
    });
    if (!ours.empty()) nodes.push_back(std::move(ours));
  }
  if (nodes.empty()) nodes.push_back(machine.allowed);
  return nodes;
}

// Why threads may be pinned without asking; empty: they may not.
std::string SafeToPin(const Machine& machine) {
  if (machine.quota_cores) return "";
  if (machine.exclusive_cpuset) return "the cpuset is exclusive";
  return machine.allowed.size() == machine.online.size() ? "all cores may be used" : "";
}

// A CPU for every thread; each worker's in one NUMA node as far as they go.
std::vector<std::vector<uint32_t>> PlaceWorkers(std::vector<std::vector<uint32_t>> nodes,
                                                uint32_t workers, uint32_t threads) {
  std::vector<std::vector<uint32_t>> placed(workers);
  for (uint32_t w = 0; w < workers; ++w) {
    const size_t home = size_t{w} * nodes.size() / workers;
    for (size_t i = 0; i < nodes.size() && placed[w].size() < threads; ++i) {
      std::vector<uint32_t>& node = nodes[(home + i) % nodes.size()];
      const size_t take = std::min<size_t>(threads - placed[w].size(), node.size());
      placed[w].insert(placed[w].end(), node.begin(), node.begin() + static_cast<long>(take));
      node.erase(node.begin(), node.begin() + static_cast<long>(take));
    }
  }
  return placed;
}

Status ChooseTp(const Machine& machine, const CoreRequest& request, CorePlan* plan) {
  if (request.tp != "auto") {
    ASSIGN_OR_RETURN(plan->tp, ResolveTp(request.tp, request.query_heads));
    plan->tp_reason = "as asked for";
    return OkStatus();
  }
  const auto nodes = static_cast<uint32_t>(OurNodes(machine).size());
  const uint32_t nodes_each = nodes / request.replicas;
  const bool may_pin = request.pin == "on" || (request.pin == "auto" && SafeToPin(machine) != "");
  plan->tp_reason = "threads of one worker wait less than ranks do";
  if (nodes_each < 2 || !may_pin) return OkStatus();
  plan->tp = std::clamp<uint32_t>(std::min(nodes_each, request.kv_heads), 1, kMaxRanks);
  if (plan->tp > 1) plan->tp_reason = "one rank a NUMA node, whose weights are in its own memory";
  return OkStatus();
}

void ChooseThreads(const Machine& machine, const CoreRequest& request, CorePlan* plan) {
  const uint32_t workers = plan->tp * request.replicas;
  if (request.threads == 0) {
    plan->threads = std::max(1u, plan->cores / workers);
    plan->threads_reason = StrCat(plan->cores, plan->cores == 1 ? " core" : " cores", " for ",
                                  workers, workers == 1 ? " worker" : " workers");
    if (machine.quota_cores && plan->cores < machine.allowed.size()) {
      plan->threads_reason += StrCat("; the quota is ", *machine.quota_cores);
    }
    return;
  }
  plan->threads = std::min(request.threads, plan->cores);
  plan->threads_reason = plan->threads == request.threads
                             ? "as asked for"
                             : StrCat("there are no more than ", plan->cores, " cores");
}

Status ChoosePin(const Machine& machine, const CoreRequest& request, CorePlan* plan) {
  const uint32_t workers = plan->tp * request.replicas;
  const uint32_t all_threads = workers * plan->threads;
  const std::vector<std::vector<uint32_t>> nodes = OurNodes(machine);
  const std::string safe = SafeToPin(machine);
  if (request.pin == "off") {
    plan->pin_reason = "as asked for";
  } else if (all_threads > plan->cores) {
    plan->pin_reason =
        StrCat(all_threads, " compute threads are more than the ", plan->cores, " cores");
    plan->pin_problem = PinProblem::kTooManyThreads;
    if (request.pin == "on") return absl::InvalidArgumentError("--pin on: " + plan->pin_reason);
  } else if (request.pin == "on") {
    plan->pinned = true;
    plan->pin_reason = "as asked for";
  } else if (safe.empty()) {
    plan->pin_problem = PinProblem::kSharedCores;
    plan->pin_reason = "others may use these cores too";
  } else if (nodes.size() == 1 && !machine.exclusive_cpuset) {
    plan->pin_reason = "one NUMA node: there is nothing to be near to";
  } else {
    plan->pinned = true;
    plan->pin_reason = safe;
  }
  if (plan->pinned) plan->cpus = PlaceWorkers(nodes, workers, plan->threads);
  return OkStatus();
}

}  // namespace

StatusOr<CorePlan> PlanCores(const Machine& machine, const CoreRequest& request) {
  CorePlan plan;
  plan.cores = machine.cores();
  RETURN_IF_ERROR(ChooseTp(machine, request, &plan));
  ChooseThreads(machine, request, &plan);
  RETURN_IF_ERROR(ChoosePin(machine, request, &plan));
  return plan;
}

uint32_t SpinUs(uint32_t threads, uint32_t workers, uint32_t cores) {
  return threads * workers <= cores ? 50 : 0;
}

}  // namespace flotilla
