// The launcher's defaults over a table of machines, and how a machine is read.
#include "deploy/launcher/core_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>
#include <set>

#include "tests/support/fake_root.h"

namespace flotilla {
namespace {

using ::testing::HasSubstr;

std::vector<uint32_t> Cpus(uint32_t first, uint32_t count) {
  std::vector<uint32_t> cpus(count);
  std::iota(cpus.begin(), cpus.end(), first);
  return cpus;
}

// All cores ours, in nodes of equal size.
Machine MachineOf(uint32_t cores, uint32_t nodes = 1) {
  Machine machine;
  machine.online = machine.allowed = Cpus(0, cores);
  for (uint32_t n = 0; n < nodes; ++n) {
    machine.numa_nodes.push_back(Cpus(n * cores / nodes, cores / nodes));
  }
  return machine;
}
Machine WithQuota(Machine machine, double quota) {
  machine.quota_cores = quota;
  return machine;
}
Machine WithCpuset(Machine machine, std::vector<uint32_t> cpus, bool exclusive) {
  machine.allowed = std::move(cpus);
  machine.exclusive_cpuset = exclusive;
  return machine;
}

struct Case {
  const char* what;
  Machine machine;
  CoreRequest request;
  uint32_t cores, tp, threads;
  bool pinned;
};

std::vector<Case> Cases() {
  const auto kv3 = [](uint32_t replicas = 1) {
    return CoreRequest{.replicas = replicas, .kv_heads = 3};
  };
  const auto with = [](const char* tp, uint32_t threads, const char* pin) {
    return CoreRequest{.tp = tp, .threads = threads, .pin = pin, .kv_heads = 3};
  };
  const Machine big = MachineOf(64, 2);
  return {
      {"one core", MachineOf(1), kv3(), 1, 1, 1, false},
      {"two cores", MachineOf(2), kv3(), 2, 1, 2, false},
      {"two cores, two replicas", MachineOf(2), kv3(2), 2, 1, 1, false},
      {"two cores, three replicas", MachineOf(2), kv3(3), 2, 1, 1, false},
      {"a quota of one and a half", WithQuota(MachineOf(8), 1.5), kv3(), 1, 1, 1, false},
      {"half a core", WithQuota(MachineOf(8), 0.5), kv3(), 1, 1, 1, false},
      {"a quota above the cores", WithQuota(MachineOf(4), 9), kv3(), 4, 1, 4, false},
      {"a cpuset", WithCpuset(MachineOf(8), {2, 3, 6}, false), kv3(), 3, 1, 3, false},
      {"an exclusive cpuset", WithCpuset(MachineOf(8), {2, 3, 6}, true), kv3(), 3, 1, 3, true},
      {"an exclusive cpuset with a quota", WithQuota(WithCpuset(MachineOf(8), {2, 3, 6}, true), 2),
       kv3(), 2, 1, 2, false},
      {"two nodes", big, kv3(), 64, 2, 32, true},
      {"two nodes, two replicas", big, kv3(2), 64, 1, 32, true},
      {"two nodes, one kv head", big, {.kv_heads = 1}, 64, 1, 64, true},
      {"two nodes, shared", WithCpuset(big, Cpus(16, 40), false), kv3(), 40, 1, 40, false},
      {"two nodes, a cpuset in one", WithCpuset(big, Cpus(40, 8), true), kv3(), 8, 1, 8, true},
      {"eight nodes, three kv heads", MachineOf(64, 8), kv3(), 64, 3, 21, true},
      {"two nodes, not pinned", big, with("auto", 0, "off"), 64, 1, 64, false},
      {"ranks as asked for", MachineOf(2), with("2", 0, "auto"), 2, 2, 1, false},
      {"threads as asked for", MachineOf(8), with("auto", 3, "auto"), 8, 1, 3, false},
      {"more threads than cores", MachineOf(2), with("auto", 64, "auto"), 2, 1, 2, false},
      {"more threads than the quota", WithQuota(MachineOf(8), 1.5), with("auto", 8, "auto"), 1, 1,
       1, false},
      {"pinned as asked for", MachineOf(2), with("auto", 0, "on"), 2, 1, 2, true},
      {"pinned in a shared cpuset", WithCpuset(MachineOf(8), {2, 3, 6}, false),
       with("auto", 0, "on"), 3, 1, 3, true},
      {"more ranks than cores", MachineOf(2), with("3", 0, "auto"), 2, 3, 1, false},
  };
}

TEST(CorePlanTest, OverATableOfMachines) {
  for (const Case& c : Cases()) {
    SCOPED_TRACE(c.what);
    const auto plan = PlanCores(c.machine, c.request);
    ASSERT_TRUE(plan.ok()) << plan.status();
    EXPECT_EQ(plan->cores, c.cores);
    EXPECT_EQ(plan->tp, c.tp);
    EXPECT_EQ(plan->threads, c.threads);
    EXPECT_EQ(plan->pinned, c.pinned) << plan->pin_reason;
    EXPECT_NE(plan->tp_reason, "");
    EXPECT_NE(plan->threads_reason, "");
    EXPECT_NE(plan->pin_reason, "");
    const uint32_t workers = plan->tp * c.request.replicas;
    ASSERT_EQ(plan->cpus.size(), c.pinned ? workers : 0);
    // A CPU of ours for each thread, and for no other.
    std::multiset<uint32_t> used;
    for (const auto& cpus : plan->cpus) {
      EXPECT_EQ(cpus.size(), plan->threads);
      used.insert(cpus.begin(), cpus.end());
    }
    for (const uint32_t cpu : used) {
      EXPECT_EQ(used.count(cpu), 1u) << cpu;
      EXPECT_EQ(std::count(c.machine.allowed.begin(), c.machine.allowed.end(), cpu), 1) << cpu;
    }
  }
}

TEST(CorePlanTest, AWorkersThreadsAreInOneNode) {
  const auto plan = PlanCores(MachineOf(64, 2), {.kv_heads = 3});
  ASSERT_EQ(plan->cpus.size(), 2u);
  EXPECT_EQ(plan->cpus[0], Cpus(0, 32));
  EXPECT_EQ(plan->cpus[1], Cpus(32, 32));
  const auto replicas = PlanCores(MachineOf(16, 2), {.threads = 3, .replicas = 4, .kv_heads = 3});
  ASSERT_EQ(replicas->cpus.size(), 4u);
  EXPECT_EQ(replicas->cpus[1], Cpus(3, 3));
  EXPECT_EQ(replicas->cpus[2], Cpus(8, 3));
}

TEST(CorePlanTest, WhatCantBeNamesTheFlag) {
  const auto reason = [](const CoreRequest& request) {
    return std::string(PlanCores(MachineOf(2), request).status().message());
  };
  EXPECT_THAT(reason({.tp = "10", .query_heads = 9, .kv_heads = 3}), HasSubstr("--tp"));
  EXPECT_THAT(reason({.tp = "3", .pin = "on", .kv_heads = 3}), HasSubstr("--pin on: 3 compute"));
}

TEST(MachineTest, CpuLists) {
  EXPECT_EQ(ParseCpuList("0-3,8\n"), (std::vector<uint32_t>{0, 1, 2, 3, 8}));
  EXPECT_EQ(ParseCpuList(""), std::vector<uint32_t>{});
  EXPECT_EQ(ParseCpuList("5,x,7-"), std::vector<uint32_t>{5});
  EXPECT_EQ(ParseCpuList("3-1"), std::vector<uint32_t>{});
  EXPECT_EQ(ParseCpuList("0-4000000000").size(), 65536u);
  EXPECT_EQ(FormatCpuList({0, 1, 2, 3, 8}), "0-3,8");
  EXPECT_EQ(FormatCpuList({}), "");
}

using ThisMachineTest = testing::FakeRootTest;

TEST_F(ThisMachineTest, ReadsNodesQuotaMemoryAndHugePages) {
  Write("sys/devices/system/cpu/online", "0-7\n");
  Write("sys/devices/system/node/online", "0-2\n");
  Write("sys/devices/system/node/node0/cpulist", "0-3\n");
  Write("sys/devices/system/node/node1/cpulist", "4-7\n");
  Write("sys/devices/system/node/node2/cpulist", "\n");  // memory only
  Write("sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never\n");
  Write("proc/meminfo", "MemAvailable:    4000 kB\n");
  Write("proc/driver/nvidia/gpus/0000:1b:00.0/information",
        "Model: \t\t NVIDIA H100 80GB HBM3\nIRQ:   \t\t 18\n");
  Write("proc/self/cgroup", "0::/pod\n");
  Write("sys/fs/cgroup/pod/cpu.max", "150000 100000\n");
  Write("sys/fs/cgroup/pod/memory.max", "3072000\n");
  Write("sys/fs/cgroup/pod/cpuset.cpus.partition", "member\n");
  Machine machine = ThisMachine(root_);
  EXPECT_EQ(machine.online, Cpus(0, 8));
  EXPECT_EQ(machine.numa_nodes, (std::vector<std::vector<uint32_t>>{Cpus(0, 4), Cpus(4, 4)}));
  EXPECT_EQ(machine.huge_pages, "madvise");
  EXPECT_EQ(machine.gpus, std::vector<std::string>{"NVIDIA H100 80GB HBM3"});
  EXPECT_EQ(machine.available_bytes, 4000u * 1024);
  EXPECT_EQ(machine.quota_cores, 1.5);
  EXPECT_EQ(machine.memory_limit_bytes, 3000u * 1024);
  EXPECT_EQ(machine.cores(), 1u);
  EXPECT_FALSE(machine.exclusive_cpuset);
  Write("sys/fs/cgroup/pod/cpuset.cpus.partition", "root\n");
  EXPECT_TRUE(ThisMachine(root_).exclusive_cpuset);
}

TEST_F(ThisMachineTest, CpusetsOfVersion1) {
  Write("proc/self/cgroup", "3:cpuset:/docker/x\n");
  Write("sys/fs/cgroup/cpuset/cpuset.cpu_exclusive", "1\n");  // always so
  EXPECT_FALSE(ThisMachine(root_).exclusive_cpuset);
  Write("sys/fs/cgroup/cpuset/docker/x/cpuset.cpu_exclusive", "1\n");
  EXPECT_TRUE(ThisMachine(root_).exclusive_cpuset);
}

TEST_F(ThisMachineTest, NothingToReadIsNoLimit) {
  const Machine machine = ThisMachine(root_);
  EXPECT_FALSE(machine.allowed.empty());
  EXPECT_EQ(machine.online, machine.allowed);
  EXPECT_EQ(machine.cores(), machine.allowed.size());
  EXPECT_EQ(machine.numa_nodes.size(), 1u);
}

}  // namespace
}  // namespace flotilla
