#include "deploy/launcher/machine.h"

#include <sched.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <system_error>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/base/cpu_features.h"
#include "common/base/cpus.h"
#include "common/base/memory_info.h"

namespace flotilla {
namespace {

constexpr uint32_t kMaxNodes = 1024;

std::string ReadText(const std::string& path) {
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  return std::string(absl::StripAsciiWhitespace(text.str()));
}

std::vector<uint32_t> Affinity() {
  std::vector<uint32_t> cpus;
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof(set), &set) != 0) return {0};
  for (uint32_t cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (CPU_ISSET(cpu, &set)) cpus.push_back(cpu);
  }
  return cpus;
}

// Of the group or of one above it: those below share it with nobody outside.
bool ExclusiveCpuset(const std::string& root) {
  for (const CgroupMembership& group : CgroupsOf(root)) {
    if (!group.v2 && group.controllers != "cpuset") continue;
    for (const std::string& directory : group.directories) {
      const std::string partition = ReadText(directory + "/cpuset.cpus.partition");
      if (group.v2 && (partition == "root" || partition == "isolated")) return true;
      // The root of v1 is always exclusive, which says nothing.
      if (!group.v2 && directory != group.directories.back() &&
          ReadText(directory + "/cpuset.cpu_exclusive") == "1") {
        return true;
      }
    }
  }
  return false;
}

std::vector<std::vector<uint32_t>> NumaNodes(const std::string& root) {
  std::vector<std::vector<uint32_t>> nodes;
  for (const uint32_t node : ParseCpuList(ReadText(root + "sys/devices/system/node/online"))) {
    if (node >= kMaxNodes) break;
    const std::string path = absl::StrCat(root, "sys/devices/system/node/node", node, "/cpulist");
    std::vector<uint32_t> cpus = ParseCpuList(ReadText(path));
    if (!cpus.empty()) nodes.push_back(std::move(cpus));
  }
  return nodes;
}

// The word in brackets: "always [madvise] never".
std::string HugePages(const std::string& root) {
  const std::string text = ReadText(root + "sys/kernel/mm/transparent_hugepage/enabled");
  const size_t begin = text.find('[');
  const size_t end = text.find(']');
  if (begin == std::string::npos || end == std::string::npos || end < begin) return "";
  return text.substr(begin + 1, end - begin - 1);
}

// "Model: \t\t NVIDIA H100 80GB HBM3", a folder a GPU.
std::vector<std::string> Gpus(const std::string& root) {
  std::vector<std::string> gpus;
  std::error_code error;
  for (const auto& gpu :
       std::filesystem::directory_iterator(root + "proc/driver/nvidia/gpus", error)) {
    const std::string text = ReadText((gpu.path() / "information").string());
    for (const absl::string_view line : absl::StrSplit(text, '\n')) {
      if (!absl::StartsWith(line, "Model:")) continue;
      gpus.emplace_back(absl::StripAsciiWhitespace(line.substr(sizeof("Model:") - 1)));
    }
  }
  return gpus;
}

}  // namespace

uint32_t Machine::cores() const {
  size_t cores = std::max<size_t>(1, allowed.size());
  if (quota_cores) cores = std::min(cores, static_cast<size_t>(std::max(1.0, *quota_cores)));
  return static_cast<uint32_t>(cores);
}

std::vector<uint32_t> ParseCpuList(std::string_view text) {
  constexpr uint32_t kMostCpus = 1 << 16;
  std::vector<uint32_t> cpus;
  const absl::string_view list(text.data(), text.size());
  for (absl::string_view part : absl::StrSplit(list, ',', absl::SkipWhitespace())) {
    const std::vector<absl::string_view> ends = absl::StrSplit(part, absl::MaxSplits('-', 1));
    uint32_t first = 0, last = 0;
    if (!absl::SimpleAtoi(ends.front(), &first) || !absl::SimpleAtoi(ends.back(), &last)) continue;
    for (uint32_t cpu = first; cpu <= last && cpu < kMostCpus; ++cpu) cpus.push_back(cpu);
  }
  return cpus;
}

std::string FormatCpuList(const std::vector<uint32_t>& cpus) {
  std::string text;
  for (size_t i = 0; i < cpus.size();) {
    size_t end = i + 1;
    while (end < cpus.size() && cpus[end] == cpus[end - 1] + 1) ++end;
    absl::StrAppend(&text, text.empty() ? "" : ",", cpus[i]);
    if (end > i + 1) absl::StrAppend(&text, "-", cpus[end - 1]);
    i = end;
  }
  return text;
}

Machine ThisMachine(const std::string& root) {
  Machine machine;
  machine.allowed = Affinity();
  machine.online = ParseCpuList(ReadText(root + "sys/devices/system/cpu/online"));
  if (machine.online.empty()) machine.online = machine.allowed;
  machine.quota_cores = QuotaCores(root);
  machine.exclusive_cpuset = ExclusiveCpuset(root);
  machine.numa_nodes = NumaNodes(root);
  if (machine.numa_nodes.empty()) machine.numa_nodes = {machine.online};
  machine.isas = SupportedIsaNames();
  machine.available_bytes = AvailableMemoryBytes(root);
  machine.memory_limit_bytes = MemoryLimitBytes(root);
  machine.huge_pages = HugePages(root);
  machine.gpus = Gpus(root);
  return machine;
}

}  // namespace flotilla
