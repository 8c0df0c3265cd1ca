#include "worker_proc/cpu/cpu_options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "common/base/check.h"
#include "tests/fakes/gguf_builder.h"

namespace flotilla {
namespace {

using cpu::ComputeType;
using cpu::KvType;
using ::testing::HasSubstr;

std::unique_ptr<Checkpoint> Model(DType dtype, testing::TinyLlamaOptions options = {}) {
  options.matrix_dtype = dtype;
  options.embedding_dtype = dtype;
  const std::string path = StrCat(::testing::TempDir(), "cpu_options_test_", getpid(), ".gguf");
  testing::WriteTinyLlama(path, options);
  auto opened = OpenCheckpoint(path);
  CHECK_OK(opened.status());
  unlink(path.c_str());  // the mapping stays
  return std::move(*opened);
}

class CpuOptionsTest : public ::testing::Test {
 protected:
  StatusOr<CpuBackendOptions> Resolve(const CpuFlags& flags, uint32_t cores = 8) {
    return ResolveCpuOptions(flags, *quantised_, cores);
  }
  const std::unique_ptr<Checkpoint> quantised_ = Model(DType::kQ4_1);
  const std::unique_ptr<Checkpoint> floats_ = Model(DType::kF16);
};

TEST_F(CpuOptionsTest, AutoFollowsTheFile) {
  const auto quantised = ResolveCpuOptions({}, *quantised_, 1);
  ASSERT_TRUE(quantised.ok()) << quantised.status();
  EXPECT_EQ(quantised->dtype, ComputeType::kInt8);
  EXPECT_EQ(quantised->kv_cache_dtype, KvType::kBFloat16);
  EXPECT_STREQ(MakeCpuBackend(*quantised)->name(), "cpu-int8-kv-bfloat16");
  const auto floats = ResolveCpuOptions({}, *floats_, 1);
  ASSERT_TRUE(floats.ok()) << floats.status();
  EXPECT_EQ(floats->dtype, ComputeType::kFloat32);
  EXPECT_EQ(floats->kv_cache_dtype, KvType::kFloat32);
  EXPECT_STREQ(MakeCpuBackend(*floats)->name(), "cpu-float32-kv-float32");
}

TEST_F(CpuOptionsTest, FlagsDecide) {
  CpuFlags flags;
  flags.dtype = "float32";
  flags.kv_cache_dtype = "bfloat16";
  EXPECT_STREQ(MakeCpuBackend(*Resolve(flags))->name(), "cpu-float32-kv-bfloat16");
  flags.dtype = "int8";
  flags.kv_cache_dtype = "float32";
  EXPECT_STREQ(MakeCpuBackend(*Resolve(flags))->name(), "cpu-int8-kv-float32");
  flags.kv_cache_dtype = "int8";
  EXPECT_STREQ(MakeCpuBackend(*Resolve(flags))->name(), "cpu-int8-kv-int8");
  // A page is 2 layers of 16 tokens of 3 heads: 64 + 32 elements and two scales.
  EXPECT_EQ(MakeCpuBackend(*Resolve(flags))->KvPageBytes({2, 16, 3, 64, 32}),
            2u * 16 * 3 * (64 + 4 + 32 + 4));
}

TEST_F(CpuOptionsTest, Int8QuantisesAModelOfFloats) {
  CpuFlags flags;
  flags.dtype = "int8";
  const auto options = ResolveCpuOptions(flags, *floats_, 1);
  ASSERT_TRUE(options.ok()) << options.status();
  EXPECT_EQ(options->dtype, ComputeType::kInt8OfFloats);
  EXPECT_STREQ(MakeCpuBackend(*options)->name(), "cpu-int8-q8_0-kv-bfloat16");
}

TEST_F(CpuOptionsTest, WhatCantBeIsRefusedWithWhatCan) {
  CpuFlags flags;
  flags.dtype = "int8";
  testing::TinyLlamaOptions narrow;
  narrow.hidden_size = 100;
  narrow.intermediate_size = 168;
  narrow.head_dim = 20;  // 120 columns of o_proj
  EXPECT_THAT(
      std::string(ResolveCpuOptions(flags, *Model(DType::kF16, narrow), 1).status().message()),
      HasSubstr("no matrix whose width is a multiple of 32; use auto or float32"));
  flags.dtype = "int4";
  EXPECT_THAT(std::string(Resolve(flags).status().message()),
              HasSubstr("--device cpu has auto, int8 and float32"));
  flags = {};
  flags.kv_cache_dtype = "fp8";
  EXPECT_THAT(std::string(Resolve(flags).status().message()),
              HasSubstr("--kv-cache-dtype fp8: --device cpu has auto, float32, bfloat16 and int8"));
  flags = {};
  flags.isa = "mmx";
  EXPECT_EQ(Resolve(flags).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(CpuOptionsTest, ThreadsAreAShareOfTheCoresAndNeverMore) {
  const auto threads = [&](uint32_t wanted, uint32_t ranks, uint32_t cores) {
    CpuFlags flags;
    flags.threads = wanted;
    flags.ranks = ranks;
    flags.spin_us = 50;
    return Resolve(flags, cores)->threads;
  };
  EXPECT_EQ(threads(0, 1, 8).threads, 8u);
  EXPECT_EQ(threads(0, 3, 8).threads, 2u);
  EXPECT_EQ(threads(0, 3, 2).threads, 1u);
  EXPECT_EQ(threads(5, 1, 8).threads, 5u);
  EXPECT_EQ(threads(9, 1, 8).threads, 8u);
  // Spinning needs a core for each thread of each rank.
  EXPECT_EQ(threads(0, 2, 8).spin_ns, 50'000);
  EXPECT_EQ(threads(5, 2, 8).spin_ns, 0);
  EXPECT_EQ(threads(0, 3, 2).spin_ns, 0);
}

TEST_F(CpuOptionsTest, EachThreadHasItsCpu) {
  CpuFlags flags;
  flags.threads = 2;
  flags.cpus = {3, 5};
  EXPECT_EQ(Resolve(flags)->threads.cpus, flags.cpus);
  // The container's limit has been lowered since the launcher planned: no reason to stay away.
  EXPECT_EQ(Resolve(flags, /*cores=*/1)->threads.threads, 1u);
  EXPECT_EQ(Resolve(flags, /*cores=*/1)->threads.cpus, std::vector<uint32_t>{3});
  flags.threads = 3;
  EXPECT_THAT(std::string(Resolve(flags).status().message()),
              HasSubstr("--cpus has 2 CPUs for 3 threads"));
}

}  // namespace
}  // namespace flotilla
