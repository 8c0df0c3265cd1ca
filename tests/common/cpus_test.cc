#include "common/base/cpus.h"

#include <gtest/gtest.h>
#include <sched.h>

#include "tests/support/fake_root.h"

namespace flotilla {
namespace {

TEST(CpusTest, ReadsQuotas) {
  EXPECT_EQ(QuotaOfCpuMax("200000 100000\n"), 2.0);
  EXPECT_EQ(QuotaOfCpuMax("250000 100000"), 2.5);
  EXPECT_EQ(QuotaOfCpuMax("50000 100000"), 0.5);
  EXPECT_EQ(QuotaOfCpuMax("max 100000"), std::nullopt);
  EXPECT_EQ(QuotaOfCpuMax("-1 100000"), std::nullopt) << "cgroup v1: no quota";
  EXPECT_EQ(QuotaOfCpuMax(""), std::nullopt);
  EXPECT_EQ(QuotaOfCpuMax("1 0"), std::nullopt);
}

using CgroupTest = testing::FakeRootTest;

TEST_F(CgroupTest, TheTightestGroupOfVersion2Counts) {
  Write("proc/self/cgroup", "0::/pod/worker\n");
  EXPECT_EQ(QuotaCores(root_), std::nullopt);
  Write("sys/fs/cgroup/pod/worker/cpu.max", "400000 100000\n");
  EXPECT_EQ(QuotaCores(root_), 4.0);
  Write("sys/fs/cgroup/pod/cpu.max", "150000 100000\n");
  EXPECT_EQ(QuotaCores(root_), 1.5);
  Write("sys/fs/cgroup/cpu.max", "50000 100000\n");  // a container sees its own at the mount
  EXPECT_EQ(QuotaCores(root_), 0.5);
  EXPECT_EQ(AllowedCores(root_), 1u) << "less than a core is still one";
}

TEST_F(CgroupTest, Version1) {
  Write("proc/self/cgroup", "4:memory:/a\n2:cpu,cpuacct:/docker/x\n0::/\n");
  Write("sys/fs/cgroup/cpu,cpuacct/docker/x/cpu.cfs_quota_us", "-1\n");
  Write("sys/fs/cgroup/cpu,cpuacct/docker/x/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(QuotaCores(root_), std::nullopt);
  Write("sys/fs/cgroup/cpu,cpuacct/docker/cpu.cfs_quota_us", "300000\n");
  Write("sys/fs/cgroup/cpu,cpuacct/docker/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(QuotaCores(root_), 3.0);
}

TEST_F(CgroupTest, AffinityLimits) {
  cpu_set_t all, one;
  ASSERT_EQ(sched_getaffinity(0, sizeof(all), &all), 0);
  EXPECT_EQ(AllowedCores(root_), static_cast<uint32_t>(CPU_COUNT(&all)));
  CPU_ZERO(&one);
  for (int cpu = 0; CPU_COUNT(&one) == 0; ++cpu) {
    if (CPU_ISSET(cpu, &all)) CPU_SET(cpu, &one);
  }
  ASSERT_EQ(sched_setaffinity(0, sizeof(one), &one), 0);
  EXPECT_EQ(AllowedCores(root_), 1u);
  sched_setaffinity(0, sizeof(all), &all);
}

}  // namespace
}  // namespace flotilla
