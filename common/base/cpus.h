// How many cores this process may use: the smaller of its affinity mask and its cgroups' CPU quota
// (v2 cpu.max or v1 cpu.cfs_quota_us), at least 1. Threads: any. Source: cgroup-v2.rst, cpu.max.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace flotilla {

// A line of /proc/self/cgroup.
struct CgroupMembership {
  bool v2 = false;
  std::string controllers;               // v1: "cpu,cpuacct"; v2: none
  std::vector<std::string> directories;  // the group's, then those above it up to the mount
};
// root: where proc/ and sys/fs/cgroup/ are found, with a slash at its end.
std::vector<CgroupMembership> CgroupsOf(const std::string& root = "/");

// "250000 100000" → 2.5; "max 100000" → nothing.
std::optional<double> QuotaOfCpuMax(std::string_view cpu_max);
// Of the groups and all those above them: the smallest counts.
std::optional<double> QuotaCores(const std::string& root = "/");

// Quotas are rounded down, but not to 0.
uint32_t AllowedCores(const std::string& root = "/");

}  // namespace flotilla
