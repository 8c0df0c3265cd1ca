#include "common/base/memory_info.h"

#include <algorithm>
#include <charconv>
#include <fstream>
#include <optional>
#include <sstream>
#include <string_view>

namespace flotilla {
namespace {

std::optional<uint64_t> ReadNumber(const std::string& path) {
  std::ifstream file(path);
  uint64_t value = 0;
  if (file >> value) return value;  // "max" is no number: no limit
  return std::nullopt;
}

// The value after `key` in a file of "key value" lines.
std::optional<uint64_t> ReadKey(const std::string& path, std::string_view key) {
  std::ifstream file(path);
  std::string line;
  while (std::getline(file, line)) {
    std::istringstream words(line);
    std::string name;
    uint64_t value = 0;
    if (words >> name >> value && name == key) return value;
  }
  return std::nullopt;
}

// The names of one version of cgroups.
struct CgroupNames {
  const char *limit, *usage;                           // files
  const char *inactive_cache, *active_cache, *mapped;  // in memory.stat, with the cgroups below
};
constexpr CgroupNames kCgroupV2{"memory.max", "memory.current", "inactive_file", "active_file",
                                "file_mapped"};
constexpr CgroupNames kCgroupV1{"memory.limit_in_bytes", "memory.usage_in_bytes",
                                "total_inactive_file", "total_active_file", "total_mapped_file"};

// File cache that can be dropped: the inactive, and of the active what nobody has mapped. (A file
// that was mapped and read twice, as the model's is, is active.)
uint64_t DroppableCache(const std::string& directory, const CgroupNames& names) {
  const auto stat = [&](const char* key) {
    return ReadKey(directory + "memory.stat", key).value_or(0);
  };
  const uint64_t inactive = stat(names.inactive_cache);
  const uint64_t all = inactive + stat(names.active_cache);
  const uint64_t mapped = stat(names.mapped);
  return std::max(inactive, all - std::min(mapped, all));
}

// What one cgroup directory leaves: limit - usage.
uint64_t CgroupFree(const std::string& directory, const CgroupNames& names) {
  const std::optional<uint64_t> limit = ReadNumber(directory + names.limit);
  const std::optional<uint64_t> usage = ReadNumber(directory + names.usage);
  if (!limit || !usage) return UINT64_MAX;
  const uint64_t used = *usage - std::min(DroppableCache(directory, names), *usage);
  return *limit - std::min(used, *limit);
}

uint64_t CgroupLimit(const std::string& directory, const CgroupNames& names) {
  return ReadNumber(directory + names.limit).value_or(UINT64_MAX);
}

// This process's cgroup path in the hierarchy of `controller` ("" for v2), from /proc/self/cgroup.
std::string CgroupPath(const std::string& root, std::string_view controller) {
  std::ifstream file(root + "proc/self/cgroup");
  std::string line;
  while (std::getline(file, line)) {
    const size_t first = line.find(':');
    const size_t second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    if (line.substr(first + 1, second - first - 1) == controller) return line.substr(second + 1);
  }
  return "/";
}

// The least of `what` from the process's own cgroup up to the root.
template <typename What>
uint64_t Tightest(const std::string& mount, std::string path, const CgroupNames& names, What what) {
  uint64_t least = UINT64_MAX;
  for (;;) {
    const std::string directory = mount + path + (path.ends_with('/') ? "" : "/");
    least = std::min(least, what(directory, names));
    if (path.empty() || path == "/") return least;
    path.resize(path.rfind('/'));
  }
}

// Of both versions' hierarchies.
template <typename What>
uint64_t TightestOfAll(const std::string& root, What what) {
  return std::min(
      Tightest(root + "sys/fs/cgroup", CgroupPath(root, ""), kCgroupV2, what),
      Tightest(root + "sys/fs/cgroup/memory", CgroupPath(root, "memory"), kCgroupV1, what));
}

}  // namespace

uint64_t AvailableMemoryBytes(const std::string& root) {
  uint64_t available = UINT64_MAX;
  if (const auto kib = ReadKey(root + "proc/meminfo", "MemAvailable:")) available = *kib * 1024;
  return std::min(available, TightestOfAll(root, CgroupFree));
}

std::optional<uint64_t> MemoryLimitBytes(const std::string& root) {
  const uint64_t limit = TightestOfAll(root, CgroupLimit);
  const auto machine_kib = ReadKey(root + "proc/meminfo", "MemTotal:");
  if (limit >= (machine_kib ? *machine_kib * 1024 : UINT64_MAX)) return std::nullopt;
  return limit;
}

}  // namespace flotilla
