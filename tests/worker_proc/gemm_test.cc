// GEMM of every instruction set: against fp64, and bit for bit against the reference.
#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <cstdio>

#include "tests/worker_proc/kernel_cases.h"

namespace flotilla::cpu {
namespace {

using testing::AllTables;
using testing::Pack;
using testing::RandomFloats;

struct Shape {
  uint32_t out;
  uint32_t in;
};
// SmolLM2 at TP 1, 2 and 3 (qkv, o, gate_up, down), and odd ones.
const Shape kShapes[] = {{960, 576}, {576, 576},  {3072, 576}, {576, 1536}, {640, 576},
                         {320, 576}, {288, 1536}, {192, 576},  {1, 1},      {7, 5},
                         {17, 33},   {100, 63},   {129, 1},    {16, 100},   {65, 129}};
const uint32_t kTokens[] = {1, 2, 3, 4, 5, 6, 7, 8, 11, 12, 13, 16, 17, 23, 31, 64, 65, 130};

std::vector<float> RunGemm(const KernelTable& table, const Shape& shape, uint32_t tokens,
                           const std::vector<float>& packed, const std::vector<float>& x) {
  // A row more and a column more than asked for must stay untouched.
  const size_t stride = shape.out + 1;
  std::vector<float> y((tokens + 1) * stride, -7.0f);
  // In two shares, as two threads would.
  const uint32_t panels = NumPanels(shape.out);
  GemmArgs args{packed.data(), shape.out, shape.in, x.data(), shape.in,
                tokens,        y.data(),  stride,   0,        (panels + 1) / 3};
  table.gemm(args);
  args.panel_begin = args.panel_end;
  args.panel_end = panels;
  table.gemm(args);
  return y;
}

class GemmTest : public ::testing::TestWithParam<Shape> {};

TEST_P(GemmTest, AllTablesGiveTheReferencesBitsForAnyNumberOfTokens) {
  const Shape shape = GetParam();
  const auto packed = Pack(RandomFloats(size_t{shape.out} * shape.in, 1), shape.out, shape.in);
  const auto x = RandomFloats(size_t{130} * shape.in, 2);
  const auto all = RunGemm(ReferenceKernels(), shape, 130, packed, x);
  for (uint32_t tokens : kTokens) {
    const auto expected = RunGemm(ReferenceKernels(), shape, tokens, packed, x);
    // A token's result does not depend on how many are beside it.
    ASSERT_EQ(std::memcmp(expected.data(), all.data(), tokens * (shape.out + 1) * sizeof(float)),
              0);
    for (const KernelTable* table : AllTables()) {
      ASSERT_TRUE(testing::SameBits(RunGemm(*table, shape, tokens, packed, x), expected))
          << table->name << " " << tokens << " tokens";
    }
  }
}

TEST_P(GemmTest, ErrorAgainstDoubleIsWithinTheRoundingOfAChain) {
  const Shape shape = GetParam();
  const auto weight = RandomFloats(size_t{shape.out} * shape.in, 3);
  const auto x = RandomFloats(size_t{4} * shape.in, 4);
  std::vector<double> exact;
  for (uint32_t t = 0; t < 4; ++t) {
    for (uint32_t r = 0; r < shape.out; ++r) {
      double sum = 0;
      for (uint32_t k = 0; k < shape.in; ++k) {
        sum += static_cast<double>(weight[size_t{r} * shape.in + k]) * x[size_t{t} * shape.in + k];
      }
      exact.push_back(sum);
    }
  }
  const auto packed = Pack(weight, shape.out, shape.in);
  for (const KernelTable* table : AllTables()) {
    std::vector<float> y(size_t{4} * shape.out);
    table->gemm({packed.data(), shape.out, shape.in, x.data(), shape.in, 4, y.data(), shape.out, 0,
                 NumPanels(shape.out)});
    EXPECT_LT(testing::RelativeError(y, exact), 1e-6 * std::sqrt(shape.in)) << table->name;
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, GemmTest, ::testing::ValuesIn(kShapes), [](const auto& info) {
  return std::to_string(info.param.out) + "x" + std::to_string(info.param.in);
});

// Not a check: the figures are for the log.
TEST(GemmSpeed, Report) {
  const Shape shape{3072, 576};
  const auto packed = Pack(RandomFloats(size_t{shape.out} * shape.in, 1), shape.out, shape.in);
  for (const KernelTable* table : AllTables()) {
    for (uint32_t tokens : {1u, 2u, 4u, 8u, 16u, 32u, 128u, 512u}) {
      const auto x = RandomFloats(size_t{tokens} * shape.in, 2);
      std::vector<float> y(size_t{tokens} * shape.out);
      double best = 1e9;
      for (int i = 0; i < 5; ++i) {
        const auto start = std::chrono::steady_clock::now();
        table->gemm({packed.data(), shape.out, shape.in, x.data(), shape.in, tokens, y.data(),
                     shape.out, 0, NumPanels(shape.out)});
        best = std::min(
            best, std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
      }
      EXPECT_GT(best, 0);
      std::printf("%-10s %4u tokens %7.1f GFLOPS\n", table->name, tokens,
                  2e-9 * tokens * shape.out * shape.in / best);
    }
  }
}

}  // namespace
}  // namespace flotilla::cpu
