#include "common/base/cpus.h"

#include <sched.h>

#include <algorithm>
#include <charconv>
#include <fstream>
#include <sstream>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

namespace flotilla {
namespace {

std::string ReadFile(const std::string& path) {
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

// The quota of the group and of all those above it: the smallest counts.
std::optional<uint32_t> QuotaCores(const std::string& root) {
  std::optional<uint32_t> least;
  auto take = [&](std::optional<uint32_t> cores) {
    if (cores && (!least || *cores < *least)) least = cores;
  };
  const std::string membership = ReadFile("/proc/self/cgroup");
  for (absl::string_view line : absl::StrSplit(membership, '\n', absl::SkipEmpty())) {
    const std::vector<std::string> fields = absl::StrSplit(line, absl::MaxSplits(':', 2));
    if (fields.size() != 3) continue;
    const bool v2 = fields[0] == "0";
    if (!v2 && fields[1].find("cpu") == std::string::npos) continue;
    for (std::string group = fields[2];;) {
      if (v2) {
        take(CoresOfCpuMax(ReadFile(absl::StrCat(root, group, "/cpu.max"))));
      } else {
        const std::string at = absl::StrCat(root, "/", fields[1], group);
        take(CoresOfCpuMax(absl::StrCat(ReadFile(at + "/cpu.cfs_quota_us"), " ",
                                        ReadFile(at + "/cpu.cfs_period_us"))));
      }
      const size_t slash = group.rfind('/');
      if (group.empty() || slash == std::string::npos) break;
      group.resize(slash);
    }
  }
  return least;
}

}  // namespace

std::optional<uint32_t> CoresOfCpuMax(std::string_view cpu_max) {
  const std::vector<std::string> fields = absl::StrSplit(
      absl::string_view(cpu_max.data(), cpu_max.size()), absl::ByAnyChar(" \n"), absl::SkipEmpty());
  int64_t quota = 0, period = 0;
  if (fields.size() != 2 || !absl::SimpleAtoi(fields[0], &quota) ||
      !absl::SimpleAtoi(fields[1], &period) || quota <= 0 || period <= 0)
    return std::nullopt;
  return static_cast<uint32_t>(std::clamp<int64_t>(quota / period, 1, 4096));
}

uint32_t AllowedCores(const std::string& cgroup_root) {
  cpu_set_t set;
  uint32_t cores = 1;
  if (sched_getaffinity(0, sizeof(set), &set) == 0)
    cores = static_cast<uint32_t>(std::max(1, CPU_COUNT(&set)));
  if (const auto quota = QuotaCores(cgroup_root)) cores = std::min(cores, *quota);
  return cores;
}

}  // namespace flotilla
