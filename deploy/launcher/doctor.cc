#include "deploy/launcher/doctor.h"

#include <cstdio>
#include <memory>
#include <utility>

#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "common/base/flags.h"
#include "common/base/listen.h"
#include "common/base/log.h"
#include "common/checkpoint/checkpoint.h"
#include "deploy/launcher/log_mux.h"
#include "deploy/launcher/model.h"

namespace flotilla {
namespace {

std::string NodesText(const Machine& machine) {
  std::string text = StrCat(machine.numa_nodes.size(), ":");
  for (const std::vector<uint32_t>& node : machine.numa_nodes) {
    absl::StrAppend(&text, " ", FormatCpuList(node));
  }
  return text;
}

std::string QuotaText(const Machine& machine) {
  if (!machine.quota_cores) return "none";
  std::string text = StrCat(*machine.quota_cores, " cores");
  if (*machine.quota_cores < static_cast<double>(machine.allowed.size())) {
    absl::StrAppend(&text, "; more of the ", machine.allowed.size(),
                    " are used with a higher one: the cgroup's cpu.max, --cpus of docker, "
                    "limits.cpu in Kubernetes");
  }
  if (*machine.quota_cores > machine.cores()) {
    absl::StrAppend(&text, "; a part of a core is of no use");
  }
  return text;
}

std::string IsaText(const Machine& machine) {
  if (!machine.isas.empty()) {
    return StrCat(machine.isas.front(), " of ", absl::StrJoin(machine.isas, ", "));
  }
  return "below x86-64-v3: the CPU backend can't run here; it needs AVX2, FMA and F16C, which a "
         "virtual machine has if its CPU model passes them on (QEMU: -cpu host)";
}

// What the model needs beside what there is; empty: nothing can be said.
std::string NeedsText(const Machine& machine, const std::optional<ModelNeeds>& needs) {
  if (!needs) return "";
  std::string text =
      StrCat("; ", needs->name, " needs ", FormatBytes(needs->all()), " (weights ",
             FormatBytes(needs->weight_bytes), ", KV cache ", FormatBytes(needs->cache_bytes()),
             ", processes ", FormatBytes(needs->process_bytes),
             needs->replicas > 1 ? StrCat(", for each of ", needs->replicas) : "", ")");
  if (needs->all() <= machine.available_bytes) {
    if (needs->kv_bytes >= needs->context_bytes) return text;
    return StrCat(text, ": the KV cache would have ", FormatBytes(needs->kv_bytes),
                  ", less than one context takes; --kv-cache-memory ",
                  (needs->context_bytes >> 20) + 1, "MiB or lower --context-length");
  }
  const char* raise = machine.memory_limit_bytes
                          ? ": raise the limit (the cgroup's memory.max, --memory of docker, "
                            "limits.memory in Kubernetes)"
                          : ": free some";
  absl::StrAppend(&text, raise);
  if (needs->kv_bytes > needs->context_bytes) {
    absl::StrAppend(&text, " or lower --kv-cache-memory, to ", (needs->context_bytes >> 20) + 1,
                    "MiB at least");
  } else {
    absl::StrAppend(&text, " or lower --context-length");
  }
  if (needs->replicas > 1) absl::StrAppend(&text, ", or --replicas");
  return text;
}

std::string MemoryText(const Machine& machine, const std::optional<ModelNeeds>& needs) {
  return StrCat(FormatBytes(machine.available_bytes), " available",
                machine.memory_limit_bytes
                    ? StrCat(", the limit is ", FormatBytes(*machine.memory_limit_bytes))
                    : "",
                NeedsText(machine, needs));
}

std::string PinText(const Machine& machine, const HostPlan& host) {
  const CorePlan& plan = host.cores;
  std::string text = StrCat(plan.pinned ? "on: " : "off: ", plan.pin_reason);
  if (plan.pin_problem == PinProblem::kTooManyThreads) {
    absl::StrAppend(&text, "; fewer --threads, --tp or --replicas");
  } else if (plan.pin_problem == PinProblem::kSharedCores) {
    absl::StrAppend(&text, "; ", machine.quota_cores ? "without a quota and " : "",
                    "with an exclusive cpuset (cpuset.cpus.partition) it would be on; --pin on if "
                    "nobody does, as under Kubernetes' static CPU manager");
  }
  return text;
}

std::string HugePagesText(const Machine& machine) {
  if (machine.huge_pages.empty()) return "unknown";
  if (machine.huge_pages != "never") return machine.huge_pages;
  return "never; weights are read slower without: set "
         "/sys/kernel/mm/transparent_hugepage/enabled to madvise";
}

// What stands in the way of each port that serve would listen on.
std::string PortsText(const ServeOptions& o) {
  std::string free, text;
  for (const auto& [flag, port] : {std::pair("--port", o.port),
                                   {"--grpc-port", o.grpc_port},
                                   {"--metrics-port", o.metrics_port}}) {
    if (port == 0) continue;  // any free one
    const Status status = CheckPortFree(o.host, port, flag);
    if (status.ok()) {
      absl::StrAppend(&free, free.empty() ? "" : ", ", port);
    } else {
      absl::StrAppend(&text, text.empty() ? "" : "; ", std::string(status.message()));
    }
  }
  if (!free.empty()) absl::StrAppend(&text, text.empty() ? "" : "; ", free, " can be had");
  return text.empty() ? "any free ones" : text;
}

std::string GpusText(const Machine& machine) {
  if (machine.gpus.empty()) return "none; --device cuda needs NVIDIA's driver and a GPU";
  return StrCat(machine.gpus.size(), ": ", absl::StrJoin(machine.gpus, ", "),
                "; --device cuda, in a build that has it (docs/cuda.md)");
}

}  // namespace

std::string DoctorText(const Machine& machine, const HostPlan& host,
                       const std::optional<ModelNeeds>& needs) {
  const CorePlan& plan = host.cores;
  std::string text;
  const auto line = [&](const char* what, const std::string& value) {
    absl::StrAppendFormat(&text, "%-17s%s\n", what, value);
  };
  line("cores", StrCat(machine.allowed.size(), " of ", machine.online.size(), " (",
                       FormatCpuList(machine.allowed), ")"));
  line("cpuset", machine.exclusive_cpuset ? "exclusive" : "not exclusive");
  line("quota", QuotaText(machine));
  line("NUMA nodes", NodesText(machine));
  line("instruction set", IsaText(machine));
  line("memory", MemoryText(machine, needs));
  line("huge pages", HugePagesText(machine));
  line("GPUs", GpusText(machine));
  if (host.span.several_hosts()) {
    line("--tp",
         StrCat(host.tp, ", of which ", host.span.local_ranks, " here and ", host.span.remote_ranks,
                " on hosts that join at ", host.span.CollectiveAddress()));
  } else {
    line("--tp", StrCat(plan.tp, ": ", plan.tp_reason));
  }
  line("--threads", StrCat(plan.threads, ": ", plan.threads_reason));
  line("--pin", PinText(machine, host));
  for (size_t worker = 0; worker < plan.cpus.size(); ++worker) {
    line("", StrCat("worker ", worker, " on ", FormatCpuList(plan.cpus[worker])));
  }
  return text;
}

int Doctor(const ServeOptions& options) {
  const StatusOr<std::string> path = ResolveModelPath(options.model);
  const StatusOr<std::unique_ptr<Checkpoint>> model =
      path.ok() ? OpenCheckpoint(*path) : StatusOr<std::unique_ptr<Checkpoint>>(path.status());
  const ModelConfig* config = model.ok() ? &(*model)->config() : nullptr;
  if (config != nullptr) {
    std::printf("%-17s%s, %u query and %u kv heads\n", "model", ModelNameOfPath(*path).c_str(),
                config->num_attention_heads, config->num_key_value_heads);
  } else {
    std::printf("%-17s%s\n", "model", std::string(model.status().message()).c_str());
  }
  const Machine machine = ThisMachine();
  const StatusOr<HostSpan> span = SpanOfHead(options);
  const StatusOr<HostPlan> plan =
      span.ok() ? PlanHost(machine, options, *span, config) : span.status();
  if (!plan.ok()) {
    PrintFatal(options.log, plan.status().message());
    return 2;
  }
  std::optional<ModelNeeds> needs;
  if (model.ok() && options.device == "cpu" && !plan->span.several_hosts()) {
    needs = NeedsOf(**model, ModelNameOfPath(*path), options, plan->tp, machine.available_bytes);
  }
  std::printf("%s%-17s%s\n", DoctorText(machine, *plan, needs).c_str(), "ports",
              PortsText(options).c_str());
  return machine.isas.empty() ? 1 : 0;
}

}  // namespace flotilla
