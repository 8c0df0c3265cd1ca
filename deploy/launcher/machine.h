// What this machine lets us use: cores, NUMA nodes, quotas, memory, instruction sets, GPUs. Facts
// only; core_plan.h says what to make of them.
//
// Units: CPU numbers as the kernel counts them, cores, bytes. Threads: any. Errors: none; what
// can't be read is as if there were no such limit. Source: cgroup-v2.rst, cgroup-v1/cpusets.rst,
// ABI/stable/sysfs-devices-node.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace flotilla {

struct Machine {
  std::vector<uint32_t> online;       // CPUs that the machine has
  std::vector<uint32_t> allowed;      // those that this process may run on
  std::optional<double> quota_cores;  // of the tightest cgroup (v1 or v2); none: no limit
  bool exclusive_cpuset = false;      // no other cgroup may use the allowed ones
  std::vector<std::vector<uint32_t>> numa_nodes;  // CPUs of each; those without any left out
  std::vector<std::string> isas;                  // best first, as --isa takes them
  uint64_t available_bytes = 0;
  std::optional<uint64_t> memory_limit_bytes;  // of the tightest cgroup; none: no limit
  std::string huge_pages;                      // "always", "madvise", "never"; empty: unknown
  std::vector<std::string> gpus;               // NVIDIA's, by their models, as their driver tells

  // Compute threads that make sense at most: never more than the quota, at least 1.
  uint32_t cores() const;
};

// root: where proc/ and sys/ are found; tests give their own. The affinity mask is always this
// process's.
Machine ThisMachine(const std::string& root = "/");

// "0-3,8" → 0 1 2 3 8, as far as it can be read.
std::vector<uint32_t> ParseCpuList(std::string_view text);
std::string FormatCpuList(const std::vector<uint32_t>& cpus);

}  // namespace flotilla
