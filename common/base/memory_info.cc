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

// What one cgroup directory leaves: limit - usage, counting file cache that can be dropped as free.
uint64_t CgroupFree(const std::string& directory, const char* limit_file, const char* usage_file,
                    const char* cache_key) {
  const std::optional<uint64_t> limit = ReadNumber(directory + limit_file);
  const std::optional<uint64_t> usage = ReadNumber(directory + usage_file);
  if (!limit || !usage) return UINT64_MAX;
  const uint64_t cache = ReadKey(directory + "memory.stat", cache_key).value_or(0);
  const uint64_t used = *usage - std::min(cache, *usage);
  return *limit - std::min(used, *limit);
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

// The tightest limit from the process's own cgroup up to the root.
uint64_t HierarchyFree(const std::string& mount, std::string path, const char* limit_file,
                       const char* usage_file, const char* cache_key) {
  uint64_t free = UINT64_MAX;
  for (;;) {
    const std::string directory = mount + path + (path.ends_with('/') ? "" : "/");
    free = std::min(free, CgroupFree(directory, limit_file, usage_file, cache_key));
    if (path.empty() || path == "/") return free;
    path.resize(path.rfind('/'));
  }
}

}  // namespace

uint64_t AvailableMemoryBytes(const std::string& root) {
  uint64_t available = UINT64_MAX;
  if (const auto kib = ReadKey(root + "proc/meminfo", "MemAvailable:")) available = *kib * 1024;
  available = std::min(available, HierarchyFree(root + "sys/fs/cgroup", CgroupPath(root, ""),
                                                "memory.max", "memory.current", "inactive_file"));
  return std::min(available, HierarchyFree(root + "sys/fs/cgroup/memory",
                                           CgroupPath(root, "memory"), "memory.limit_in_bytes",
                                           "memory.usage_in_bytes", "total_inactive_file"));
}

}  // namespace flotilla
