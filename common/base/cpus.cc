#include "common/base/cpus.h"

#include <sched.h>

#include <algorithm>
#include <fstream>
#include <sstream>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace flotilla {
namespace {

std::string ReadFile(const std::string& path) {
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

}  // namespace

std::vector<CgroupMembership> CgroupsOf(const std::string& root) {
  std::vector<CgroupMembership> groups;
  const std::string text = ReadFile(root + "proc/self/cgroup");
  for (absl::string_view line : absl::StrSplit(text, '\n', absl::SkipEmpty())) {
    const std::vector<std::string> fields = absl::StrSplit(line, absl::MaxSplits(':', 2));
    if (fields.size() != 3) continue;
    CgroupMembership group;
    group.v2 = fields[0] == "0";
    group.controllers = fields[1];
    std::string mount = root + "sys/fs/cgroup";
    if (!group.v2) absl::StrAppend(&mount, "/", group.controllers);
    for (std::string path = fields[2]; path.size() > 1; path.resize(path.rfind('/'))) {
      group.directories.push_back(mount + path);
      if (path.rfind('/') == std::string::npos) break;
    }
    group.directories.push_back(mount);
    groups.push_back(std::move(group));
  }
  return groups;
}

std::optional<double> QuotaOfCpuMax(std::string_view cpu_max) {
  const std::vector<std::string> fields = absl::StrSplit(
      absl::string_view(cpu_max.data(), cpu_max.size()), absl::ByAnyChar(" \n"), absl::SkipEmpty());
  int64_t quota = 0, period = 0;
  if (fields.size() != 2 || !absl::SimpleAtoi(fields[0], &quota) ||
      !absl::SimpleAtoi(fields[1], &period) || quota <= 0 || period <= 0)
    return std::nullopt;
  return static_cast<double>(quota) / static_cast<double>(period);
}

std::optional<double> QuotaCores(const std::string& root) {
  std::optional<double> least;
  for (const CgroupMembership& group : CgroupsOf(root)) {
    if (!group.v2 && group.controllers.find("cpu") == std::string::npos) continue;
    for (const std::string& at : group.directories) {
      const std::string text = group.v2 ? ReadFile(at + "/cpu.max")
                                        : absl::StrCat(ReadFile(at + "/cpu.cfs_quota_us"), " ",
                                                       ReadFile(at + "/cpu.cfs_period_us"));
      const std::optional<double> quota = QuotaOfCpuMax(text);
      if (quota && (!least || *quota < *least)) least = quota;
    }
  }
  return least;
}

uint32_t AllowedCores(const std::string& root) {
  cpu_set_t set;
  uint32_t cores = 1;
  if (sched_getaffinity(0, sizeof(set), &set) == 0)
    cores = static_cast<uint32_t>(std::max(1, CPU_COUNT(&set)));
  if (const auto quota = QuotaCores(root)) {
    cores = std::min(cores, static_cast<uint32_t>(std::clamp(*quota, 1.0, 4096.0)));
  }
  return cores;
}

}  // namespace flotilla
