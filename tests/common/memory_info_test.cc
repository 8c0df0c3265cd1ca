#include "common/base/memory_info.h"

#include <gtest/gtest.h>

#include "tests/support/fake_root.h"

namespace flotilla {
namespace {

class MemoryInfoTest : public testing::FakeRootTest {
 protected:
  void SetUp() override {
    testing::FakeRootTest::SetUp();
    Write("proc/meminfo", "MemTotal: 8000 kB\nMemAvailable:    4000 kB\n");
  }
};

TEST_F(MemoryInfoTest, WithoutCgroupsItIsTheMachines) {
  EXPECT_EQ(AvailableMemoryBytes(root_), 4000u * 1024);
}

TEST_F(MemoryInfoTest, ACgroupV2LimitOfAnyAncestorCountsAndFileCacheIsFree) {
  Write("proc/self/cgroup", "0::/pod/worker\n");
  Write("sys/fs/cgroup/pod/worker/memory.max", "max\n");
  Write("sys/fs/cgroup/pod/worker/memory.current", "1000\n");
  EXPECT_EQ(AvailableMemoryBytes(root_), 4000u * 1024);
  Write("sys/fs/cgroup/pod/memory.max", "1000000\n");
  Write("sys/fs/cgroup/pod/memory.current", "900000\n");
  EXPECT_EQ(AvailableMemoryBytes(root_), 100000u);
  Write("sys/fs/cgroup/pod/memory.stat", "anon 1\ninactive_file 300000\n");
  EXPECT_EQ(AvailableMemoryBytes(root_), 400000u);
  // What was read twice is active; it can be dropped, too, unless somebody has it mapped.
  Write("sys/fs/cgroup/pod/memory.stat",
        "inactive_file 300000\nactive_file 200000\nfile_mapped 50000\n");
  EXPECT_EQ(AvailableMemoryBytes(root_), 550000u);
  Write("sys/fs/cgroup/pod/memory.stat",
        "inactive_file 300000\nactive_file 200000\nfile_mapped 700000\n");
  EXPECT_EQ(AvailableMemoryBytes(root_), 400000u);
}

TEST_F(MemoryInfoTest, AContainerSeesItsOwnLimitAtTheMount) {
  Write("proc/self/cgroup", "0::/\n");
  Write("sys/fs/cgroup/memory.max", "500000\n");
  Write("sys/fs/cgroup/memory.current", "100000\n");
  EXPECT_EQ(AvailableMemoryBytes(root_), 400000u);
}

TEST_F(MemoryInfoTest, CgroupV1) {
  Write("proc/self/cgroup", "4:memory:/docker/x\n1:cpu:/\n");
  Write("sys/fs/cgroup/memory/docker/x/memory.limit_in_bytes", "300000\n");
  Write("sys/fs/cgroup/memory/docker/x/memory.usage_in_bytes", "200000\n");
  Write("sys/fs/cgroup/memory/docker/x/memory.stat", "total_inactive_file 50000\n");
  EXPECT_EQ(AvailableMemoryBytes(root_), 150000u);
  Write("sys/fs/cgroup/memory/docker/x/memory.stat",
        "total_inactive_file 50000\ntotal_active_file 30000\ntotal_mapped_file 20000\n");
  EXPECT_EQ(AvailableMemoryBytes(root_), 160000u);
}

TEST_F(MemoryInfoTest, TheTightestLimitOfBothVersionsIsTold) {
  EXPECT_FALSE(MemoryLimitBytes(root_).has_value());
  Write("proc/self/cgroup", "4:memory:/x\n0::/pod/worker\n");
  Write("sys/fs/cgroup/pod/worker/memory.max", "max\n");
  EXPECT_FALSE(MemoryLimitBytes(root_).has_value());
  Write("sys/fs/cgroup/memory/x/memory.limit_in_bytes", "9223372036854771712\n");  // v1's "max"
  EXPECT_FALSE(MemoryLimitBytes(root_).has_value());
  Write("sys/fs/cgroup/pod/memory.max", "1000000\n");
  EXPECT_EQ(MemoryLimitBytes(root_), 1000000u);
  Write("sys/fs/cgroup/memory/x/memory.limit_in_bytes", "300000\n");
  EXPECT_EQ(MemoryLimitBytes(root_), 300000u);
}

TEST(MemoryInfo, ThisMachineHasSome) { EXPECT_GT(AvailableMemoryBytes(), 1u << 20); }

}  // namespace
}  // namespace flotilla
