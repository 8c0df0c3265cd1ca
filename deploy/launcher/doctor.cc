#include "deploy/launcher/doctor.h"

#include <cstdio>
#include <utility>

#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "common/base/flags.h"
#include "common/base/listen.h"
#include "common/base/log.h"
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

std::string DoctorText(const Machine& machine, const HostPlan& host) {
  const CorePlan& plan = host.cores;
  std::string text;
  const auto line = [&](const char* what, const std::string& value) {
    absl::StrAppendFormat(&text, "%-17s%s\n", what, value);
  };
  line("cores", StrCat(machine.allowed.size(), " of ", machine.online.size(), " (",
                       FormatCpuList(machine.allowed), ")"));
  line("cpuset", machine.exclusive_cpuset ? "exclusive" : "not exclusive");
  line("quota", machine.quota_cores ? StrCat(*machine.quota_cores, " cores") : "none");
  line("NUMA nodes", NodesText(machine));
  line("instruction set", machine.isas.empty() ? "below x86-64-v3: the CPU backend can't run here"
                                               : StrCat(machine.isas.front(), " of ",
                                                        absl::StrJoin(machine.isas, ", ")));
  line("memory", StrCat(FormatBytes(machine.available_bytes), " available"));
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
  line("--pin", StrCat(plan.pinned ? "on: " : "off: ", plan.pin_reason));
  for (size_t worker = 0; worker < plan.cpus.size(); ++worker) {
    line("", StrCat("worker ", worker, " on ", FormatCpuList(plan.cpus[worker])));
  }
  return text;
}

int Doctor(const ServeOptions& options) {
  const StatusOr<std::string> path = ResolveModelPath(options.model);
  const StatusOr<ModelConfig> config = path.ok() ? InspectModel(*path) : path.status();
  if (config.ok()) {
    std::printf("%-17s%s, %u query and %u kv heads\n", "model", ModelNameOfPath(*path).c_str(),
                config->num_attention_heads, config->num_key_value_heads);
  } else {
    std::printf("%-17s%s\n", "model", std::string(config.status().message()).c_str());
  }
  const Machine machine = ThisMachine();
  const StatusOr<HostSpan> span = SpanOfHead(options);
  const StatusOr<HostPlan> plan =
      span.ok() ? PlanHost(machine, options, *span, config.ok() ? &*config : nullptr)
                : span.status();
  if (!plan.ok()) {
    PrintFatal(options.log, plan.status().message());
    return 2;
  }
  std::printf("%s%-17s%s\n", DoctorText(machine, *plan).c_str(), "ports",
              PortsText(options).c_str());
  return machine.isas.empty() ? 1 : 0;
}

}  // namespace flotilla
