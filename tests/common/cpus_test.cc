#include "common/base/cpus.h"

#include <gtest/gtest.h>
#include <sched.h>

namespace flotilla {
namespace {

TEST(CpusTest, ReadsQuotas) {
  EXPECT_EQ(CoresOfCpuMax("200000 100000\n"), 2u);
  EXPECT_EQ(CoresOfCpuMax("250000 100000"), 2u);
  EXPECT_EQ(CoresOfCpuMax("50000 100000"), 1u) << "less than a core is still one";
  EXPECT_EQ(CoresOfCpuMax("max 100000"), std::nullopt);
  EXPECT_EQ(CoresOfCpuMax("-1 100000"), std::nullopt) << "cgroup v1: no quota";
  EXPECT_EQ(CoresOfCpuMax(""), std::nullopt);
  EXPECT_EQ(CoresOfCpuMax("1 0"), std::nullopt);
}

TEST(CpusTest, AffinityLimits) {
  cpu_set_t all, one;
  ASSERT_EQ(sched_getaffinity(0, sizeof(all), &all), 0);
  const std::string no_cgroup = "/nonexistent";
  EXPECT_EQ(AllowedCores(no_cgroup), static_cast<uint32_t>(CPU_COUNT(&all)));
  CPU_ZERO(&one);
  for (int cpu = 0; CPU_COUNT(&one) == 0; ++cpu) {
    if (CPU_ISSET(cpu, &all)) CPU_SET(cpu, &one);
  }
  ASSERT_EQ(sched_setaffinity(0, sizeof(one), &one), 0);
  EXPECT_EQ(AllowedCores(no_cgroup), 1u);
  sched_setaffinity(0, sizeof(all), &all);
}

}  // namespace
}  // namespace flotilla
