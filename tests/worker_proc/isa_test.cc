#include "worker_proc/cpu/isa.h"

#include <gtest/gtest.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdint>
#include <fstream>
#include <iterator>
#include <string>

#include "common/base/cpu_features.h"

namespace flotilla::cpu {
namespace {

TEST(IsaTest, EveryLevelOfThisMachineHasFloatAndIntegerKernels) {
  const std::vector<std::string> levels = SupportedIsas();
  ASSERT_FALSE(levels.empty()) << "the tests need x86-64-v3";
  EXPECT_EQ(levels.back(), "reference");
  EXPECT_EQ(levels, SupportedIsaNames()) << "what flotilla doctor tells";
  for (const std::string& level : levels) {
    ASSERT_TRUE(SelectKernels(level).ok());
    EXPECT_EQ((*SelectKernels(level))->name, level == "amx" ? "avx512" : level);
    ASSERT_TRUE(SelectQuantKernels(level).ok());
  }
  EXPECT_EQ(*SelectKernels("auto"), *SelectKernels(levels.front()));
  EXPECT_EQ(*SelectQuantKernels("auto"), *SelectQuantKernels(levels.front()));
}

TEST(IsaTest, IntegerKernelsFollowTheLevel) {
  EXPECT_EQ(*SelectQuantKernels("reference"), &ReferenceQuantKernels());
  EXPECT_EQ(*SelectQuantKernels("avx2"), &Avx2QuantKernels());
  if (!SelectKernels("avx512").ok()) GTEST_SKIP() << "no AVX-512 here";
  // AVX-512 without VNNI has no use for wider vectors: the AVX2 table.
  const QuantKernelTable* expected =
      __builtin_cpu_supports("avx512vnni") ? &Avx512QuantKernels() : &Avx2QuantKernels();
  EXPECT_EQ(*SelectQuantKernels("avx512"), expected);
  if (SelectKernels("amx").ok()) {
    EXPECT_EQ(*SelectQuantKernels("amx"), &AmxQuantKernels());
  }
}

// Asked otherwise than CpuHasAmxInt8 does: what the kernel lists, and which states it gives.
TEST(IsaTest, TilesAreTakenWhereTheSystemHasThem) {
  std::ifstream file("/proc/cpuinfo");
  const std::string cpu{std::istreambuf_iterator<char>(file), {}};
  const auto lists = [&](const char* flag) {
    return cpu.find(StrCat(" ", flag, " ")) != std::string::npos ||
           cpu.find(StrCat(" ", flag, "\n")) != std::string::npos;
  };
  constexpr long kSupportedStates = 0x1021;  // ARCH_GET_XCOMP_SUPP
  uint64_t states = 0;
  const bool asked = syscall(SYS_arch_prctl, kSupportedStates, &states) == 0;
  const bool tiles = asked && (states >> 18 & 1) != 0 && lists("amx_tile") && lists("amx_int8") &&
                     lists("avx512_vnni");
  EXPECT_EQ(SupportedIsas().front() == "amx", tiles);
}

TEST(IsaTest, AnUnknownLevelIsRefusedWithWhatThereIs) {
  const auto kernels = SelectKernels("mmx");
  ASSERT_EQ(kernels.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(kernels.status().message().find("reference"), std::string::npos);
  EXPECT_EQ(SelectQuantKernels("mmx").status(), kernels.status());
}

}  // namespace
}  // namespace flotilla::cpu
