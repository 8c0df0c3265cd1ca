// GEMM of every instruction set: against fp64, and bit for bit against the reference.
#include <gtest/gtest.h>

#include <bit>
#include <chrono>
#include <cmath>
#include <cstdio>

#include "common/checkpoint/half.h"
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

struct Weights {
  WeightType type = WeightType::kFloat32;
  const void* packed = nullptr;
};

std::vector<float> RunGemm(const KernelTable& table, const Shape& shape, uint32_t tokens,
                           const Weights& weights, const std::vector<float>& x) {
  // A row more and a column more than asked for must stay untouched.
  const size_t stride = shape.out + 1;
  std::vector<float> y((tokens + 1) * stride, -7.0f);
  // In two shares, as two threads would.
  const uint32_t panels = NumPanels(shape.out);
  GemmArgs args{weights.type, weights.packed, shape.out, shape.in, x.data(),        shape.in,
                tokens,       y.data(),       stride,    0,        (panels + 1) / 3};
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
  const Weights weights{WeightType::kFloat32, packed.data()};
  const auto x = RandomFloats(size_t{130} * shape.in, 2);
  const auto all = RunGemm(ReferenceKernels(), shape, 130, weights, x);
  for (uint32_t tokens : kTokens) {
    const auto expected = RunGemm(ReferenceKernels(), shape, tokens, weights, x);
    // A token's result does not depend on how many are beside it.
    ASSERT_EQ(std::memcmp(expected.data(), all.data(), tokens * (shape.out + 1) * sizeof(float)),
              0);
    for (const KernelTable* table : AllTables()) {
      ASSERT_TRUE(testing::SameBits(RunGemm(*table, shape, tokens, weights, x), expected))
          << table->name << " " << tokens << " tokens";
    }
  }
}

// Random bits of the type: subnormals, zeros of both signs and numbers of all sizes up to 4.
std::vector<uint16_t> RandomHalves(WeightType type, size_t n) {
  std::mt19937 random(5);
  const uint32_t four = type == WeightType::kFloat16 ? 0x4400 : 0x4080;
  std::vector<uint16_t> values(n);
  for (uint16_t& value : values) {
    const uint32_t bits = random();
    value = static_cast<uint16_t>(bits % four | (bits >> 16 & 0x8000));
  }
  return values;
}

float Widen(WeightType type, uint16_t bits) {
  return type == WeightType::kFloat16 ? HalfToFloat(bits)
                                      : std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
}

TEST_P(GemmTest, WeightsOf16BitsGiveTheBitsOfTheSameWeightsIn32) {
  const Shape shape = GetParam();
  const auto x = RandomFloats(size_t{130} * shape.in, 2);
  for (const WeightType type : {WeightType::kFloat16, WeightType::kBFloat16}) {
    const auto halves = RandomHalves(type, size_t{shape.out} * shape.in);
    std::vector<float> wide;
    for (const uint16_t half : halves) wide.push_back(Widen(type, half));
    const auto packed = Pack(halves, shape.out, shape.in);
    const auto packed_wide = Pack(wide, shape.out, shape.in);
    for (const uint32_t tokens : kTokens) {
      const auto expected =
          RunGemm(ReferenceKernels(), shape, tokens, {WeightType::kFloat32, packed_wide.data()}, x);
      for (const KernelTable* table : AllTables()) {
        ASSERT_TRUE(
            testing::SameBits(RunGemm(*table, shape, tokens, {type, packed.data()}, x), expected))
            << table->name << " " << tokens << " tokens, type " << static_cast<uint32_t>(type);
      }
    }
  }
}

// One weight at a time: every finite pattern there is.
TEST(GemmWeights, EveryHalfIsWidenedExactly) {
  for (const WeightType type : {WeightType::kFloat16, WeightType::kBFloat16}) {
    std::vector<uint16_t> all;
    for (uint32_t bits = 0; bits < 0x10000; ++bits) {
      if (std::isfinite(Widen(type, static_cast<uint16_t>(bits)))) {
        all.push_back(static_cast<uint16_t>(bits));
      }
    }
    const Shape shape{static_cast<uint32_t>(all.size()), 1};
    const std::vector<float> one = {1.0f};
    const auto packed = Pack(all, shape.out, 1);
    for (const KernelTable* table : AllTables()) {
      const auto y = RunGemm(*table, shape, 1, {type, packed.data()}, one);
      for (size_t i = 0; i < all.size(); ++i) {
        ASSERT_EQ(y[i], Widen(type, all[i])) << table->name << " " << all[i];
      }
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
    table->gemm({WeightType::kFloat32, packed.data(), shape.out, shape.in, x.data(), shape.in, 4,
                 y.data(), shape.out, 0, NumPanels(shape.out)});
    EXPECT_LT(testing::RelativeError(y, exact), 1e-6 * std::sqrt(shape.in)) << table->name;
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, GemmTest, ::testing::ValuesIn(kShapes), [](const auto& info) {
  return std::to_string(info.param.out) + "x" + std::to_string(info.param.in);
});

// Not a check: the figures are for the log. Few tokens read matrices from memory, as in a model.
TEST(GemmSpeed, Report) {
  const Shape shape{3072, 576};
  const size_t elements = size_t{shape.out} * shape.in;
  constexpr size_t kCopies = 9;
  const std::vector<float> floats = RandomFloats(elements * kCopies, 1);
  const std::vector<uint16_t> halves = RandomHalves(WeightType::kFloat16, elements * 2 * kCopies);
  for (const KernelTable* table : AllTables()) {
    for (uint32_t tokens : {1u, 2u, 4u, 8u, 16u, 32u, 128u, 512u}) {
      const auto x = RandomFloats(size_t{tokens} * shape.in, 2);
      std::vector<float> y(size_t{tokens} * shape.out);
      double best[3] = {1e9, 1e9, 1e9};
      for (size_t i = 0; i < (tokens <= 32 ? kCopies : 2) * 3; ++i) {
        const auto type = static_cast<WeightType>(i % 3);
        const size_t at = i / 3 * elements;
        const void* matrix = halves.data() + 2 * at + i % 3 / 2 * elements;
        if (type == WeightType::kFloat32) matrix = floats.data() + at;
        const auto start = std::chrono::steady_clock::now();
        table->gemm({type, matrix, shape.out, shape.in, x.data(), shape.in, tokens, y.data(),
                     shape.out, 0, NumPanels(shape.out)});
        const std::chrono::duration<double> time = std::chrono::steady_clock::now() - start;
        best[i % 3] = std::min(best[i % 3], time.count());
      }
      EXPECT_GT(best[0], 0);
      std::printf("%-10s %4u tokens %7.1f GFLOPS; time with float16 %.2f, bfloat16 %.2f\n",
                  table->name, tokens, 2e-9 * tokens * shape.out * shape.in / best[0],
                  best[1] / best[0], best[2] / best[0]);
    }
  }
}

}  // namespace
}  // namespace flotilla::cpu
