// How many cores this process may use: the smaller of its affinity mask and its cgroup's CPU quota
// (v2 cpu.max or v1 cpu.cfs_quota_us), at least 1. Threads: any. Source: cgroup-v2.rst, cpu.max.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace flotilla {

// "200000 100000" → 2; "max 100000" → nothing. Quotas are rounded down, but not to 0.
std::optional<uint32_t> CoresOfCpuMax(std::string_view cpu_max);

// `cgroup_root` is where cgroup filesystems are mounted ("/sys/fs/cgroup").
uint32_t AllowedCores(const std::string& cgroup_root = "/sys/fs/cgroup");

}  // namespace flotilla
