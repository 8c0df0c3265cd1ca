// The integer matrix product of every instruction set: against fp64, and bit for bit against the
// reference.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <tuple>

#include "tests/worker_proc/quant_cases.h"

namespace flotilla::cpu {
namespace {

using testing::AllQuantTables;
using testing::PackAll;
using testing::RandomActs;
using testing::RandomTensor;

struct Shape {
  uint32_t out;
  uint32_t in;
};
// SmolLM2 at TP 1, 2 and 3 (qkv, o, gate_up, down; a part of the head), and odd ones.
const Shape kShapes[] = {{960, 576}, {576, 576}, {3072, 576}, {576, 1536}, {1024, 576}, {640, 576},
                         {320, 576}, {288, 576}, {1536, 576}, {288, 1536}, {192, 576},  {192, 1536},
                         {1, 32},    {7, 32},    {16, 64},    {17, 96},    {33, 4160},  {31, 2048},
                         {65, 160},  {100, 128}, {129, 32}};
constexpr uint32_t kMaxTokens = 130;
const uint32_t kTokens[] = {1,  2,  3,  4,  5,  6,  7,  8,  9,  10, 11,
                            12, 13, 16, 17, 23, 24, 25, 31, 64, 65, 130};

// A column more than asked for, and what is not computed, must stay untouched.
constexpr float kUntouched = -7.0f;

struct Problem {
  Problem(DType dtype, Shape shape, uint64_t seed)
      : shape(shape),
        format(*QuantFormatOf(dtype)),
        packed(PackAll(RandomTensor(dtype, shape.out, shape.in, seed)->view)),
        x(RandomActs(kMaxTokens, shape.in, seed + 1)) {}

  uint32_t panels() const { return (shape.out + kPanelRows - 1) / kPanelRows; }
  size_t y_stride() const { return shape.out + 1; }
  QuantGemmArgs Args(uint32_t tokens, std::vector<float>& y) const {
    return {format, packed.data(), shape.in,   shape.out, x.data(), shape.in / kQuantBlock,
            tokens, y.data(),      y_stride(), 0,         panels()};
  }
  std::vector<float> Output(uint32_t tokens) const {
    return std::vector<float>((tokens + 1) * y_stride(), kUntouched);
  }
  std::vector<float> Run(const QuantKernelTable& table, uint32_t tokens) const {
    std::vector<float> y = Output(tokens);
    table.gemm(Args(tokens, y));
    return y;
  }
  // Of the first `tokens` tokens, in fp64.
  std::vector<double> Exact(uint32_t tokens) const {
    std::vector<double> y;
    std::vector<double> row(shape.in);
    for (uint32_t r = 0; r < shape.out; ++r) {
      for (uint32_t k = 0; k < shape.in; ++k) {
        row[k] = UnpackQuantWeight(format, packed.data(), shape.in, r, k);
      }
      for (uint32_t t = 0; t < tokens; ++t) {
        double sum = 0;
        for (uint32_t k = 0; k < shape.in; ++k) {
          const ActBlock& block = x[(size_t{t} * shape.in + k) / kQuantBlock];
          sum += row[k] * block.q[k % kQuantBlock] * static_cast<double>(block.scale);
        }
        y.push_back(sum);
      }
    }
    return y;  // [out, tokens]
  }

  Shape shape;
  QuantFormat format;
  std::vector<uint8_t> packed;
  std::vector<ActBlock> x;
};

// The rows of `tokens` tokens, the columns beside them and one row more.
::testing::AssertionResult SameRows(const std::vector<float>& y, const std::vector<float>& expected,
                                    size_t rows, size_t stride) {
  if (std::memcmp(y.data(), expected.data(), rows * stride * sizeof(float)) != 0) {
    return ::testing::AssertionFailure() << "other bits";
  }
  for (size_t i = rows * stride; i < y.size(); ++i) {
    if (y[i] != kUntouched) return ::testing::AssertionFailure() << "wrote past the last token";
  }
  return ::testing::AssertionSuccess();
}

class QuantGemmTest : public ::testing::TestWithParam<std::tuple<DType, Shape>> {};

TEST_P(QuantGemmTest, AllTablesGiveTheReferencesBitsForAnyNumberOfTokens) {
  const Problem problem(std::get<0>(GetParam()), std::get<1>(GetParam()), 1);
  const auto expected = problem.Run(ReferenceQuantKernels(), kMaxTokens);
  for (uint32_t tokens : kTokens) {
    for (const QuantKernelTable* table : AllQuantTables()) {
      if (table == &ReferenceQuantKernels() && tokens > 2) continue;  // slow, one token at a time
      ASSERT_TRUE(SameRows(problem.Run(*table, tokens), expected, tokens, problem.y_stride()))
          << table->name << " " << tokens << " tokens";
    }
  }
}

TEST_P(QuantGemmTest, ErrorAgainstDoubleIsSmall) {
  const Problem problem(std::get<0>(GetParam()), std::get<1>(GetParam()), 5);
  constexpr uint32_t kSome = 4;
  const std::vector<double> exact = problem.Exact(kSome);
  for (const QuantKernelTable* table : AllQuantTables()) {
    const std::vector<float> y = problem.Run(*table, kSome);
    std::vector<float> transposed;
    for (uint32_t r = 0; r < problem.shape.out; ++r) {
      for (uint32_t t = 0; t < kSome; ++t) transposed.push_back(y[t * problem.y_stride() + r]);
    }
    EXPECT_LT(testing::RelativeError(transposed, exact), 1e-5) << table->name;
  }
}

TEST_P(QuantGemmTest, AnySplitOfThePanelsGivesTheSameBits) {
  const Problem problem(std::get<0>(GetParam()), std::get<1>(GetParam()), 9);
  for (const QuantKernelTable* table : AllQuantTables()) {
    for (uint32_t tokens : {1u, 5u, 14u}) {
      if (table == &ReferenceQuantKernels() && tokens > 1) continue;
      const auto whole = problem.Run(*table, tokens);
      for (uint32_t share : {1u, 3u, 8u}) {
        std::vector<float> y = problem.Output(tokens);
        QuantGemmArgs args = problem.Args(tokens, y);
        for (uint32_t end = problem.panels(); end > 0; end = args.panel_begin) {
          args.panel_end = end;
          args.panel_begin = end > share ? end - share : 0;
          table->gemm(args);
        }
        ASSERT_TRUE(testing::SameBits(y, whole)) << table->name << " shares of " << share;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, QuantGemmTest,
                         ::testing::Combine(::testing::ValuesIn(testing::kQuantTypes),
                                            ::testing::ValuesIn(kShapes)),
                         [](const auto& info) {
                           const Shape shape = std::get<1>(info.param);
                           return std::string(Traits(std::get<0>(info.param)).name) + "_" +
                                  std::to_string(shape.out) + "x" + std::to_string(shape.in);
                         });

// ---- Extremes ---------------------------------------------------------------------------------

class QuantExtremesTest : public ::testing::TestWithParam<DType> {};

// Every weight's byte is `value`, every scale `half`, every min the same negated.
std::vector<uint8_t> ConstantWeights(DType dtype, Shape shape, uint8_t value, uint16_t half) {
  testing::QuantTensor tensor;
  tensor.view = {"constant", dtype, shape.out, shape.in, {}};
  tensor.bytes.assign(shape.out * tensor.view.row_bytes(), value);
  for (size_t block = 0; block < tensor.bytes.size(); block += Traits(dtype).block_bytes) {
    testing::SetHalf(&tensor.bytes[block], half);
    if (dtype == DType::kQ4_1) testing::SetHalf(&tensor.bytes[block + 2], half ^ 0x8000);
  }
  tensor.view.data = tensor.bytes;
  return PackAll(tensor.view);
}

ActBlock ConstantAct(int8_t q, float scale) {
  ActBlock block;
  std::memset(block.q, q, sizeof(block.q));
  block.scale = scale;
  block.sum = q * static_cast<int32_t>(kQuantBlock);
  return block;
}

TEST_P(QuantExtremesTest, TheLargestAndSmallestValuesAreExact) {
  Problem problem(GetParam(), {40, 96}, 1);
  // fp16: 1, 0, -0, the smallest subnormal, a larger one, the largest.
  const uint16_t kHalves[] = {0x3c00, 0x0000, 0x8000, 0x0001, 0x83ff, 0x7bff};
  // As the file has them: 0x80 is Q8_0's -128, the packed byte 0; 0x7f becomes 255.
  const uint8_t kValues[] = {0x00, 0xff, 0x80, 0x7f, 0xf0, 0x0f};
  for (uint8_t value : kValues) {
    for (uint16_t half : kHalves) {
      problem.packed = ConstantWeights(GetParam(), problem.shape, value, half);
      for (int8_t q : {127, -127, 0, 1}) {
        for (float scale : {1.0f, 0.0f, kMinActMax / 127, 1e25f}) {
          problem.x.assign(problem.x.size(), ConstantAct(q, scale));
          // Half of each token's blocks have the other sign.
          for (size_t i = 0; i < problem.x.size(); i += 2) {
            problem.x[i] = ConstantAct(static_cast<int8_t>(-q), scale);
          }
          const auto expected = problem.Run(ReferenceQuantKernels(), 13);
          const std::vector<double> exact = problem.Exact(13);
          for (size_t i = 0; i < exact.size(); ++i) {
            const float y = expected[i % 13 * problem.y_stride() + i / 13];
            ASSERT_NEAR(y, exact[i], 1e-6 * std::abs(exact[i]) + 1e-40);
          }
          for (const QuantKernelTable* table : AllQuantTables()) {
            ASSERT_TRUE(testing::SameBits(problem.Run(*table, 13), expected))
                << table->name << " value " << int{value} << " half " << half << " q " << int{q}
                << " scale " << scale;
          }
        }
      }
    }
  }
}

TEST_P(QuantExtremesTest, ABlockThatIsNotFiniteSpoilsItsTokenAndNoOther) {
  Problem problem(GetParam(), {24, 128}, 3);
  const auto clean = problem.Run(ReferenceQuantKernels(), 9);
  const uint32_t blocks = problem.shape.in / kQuantBlock;
  std::vector<float> bad(kQuantBlock, 1.0f);
  bad[7] = std::numeric_limits<float>::infinity();
  ReferenceQuantKernels().quantize(bad.data(), 1, kQuantBlock, &problem.x[4 * blocks + 2]);
  for (const QuantKernelTable* table : AllQuantTables()) {
    const auto y = problem.Run(*table, 9);
    for (uint32_t t = 0; t < 9; ++t) {
      for (uint32_t r = 0; r < problem.shape.out; ++r) {
        const size_t i = t * problem.y_stride() + r;
        if (t == 4) {
          EXPECT_TRUE(std::isnan(y[i])) << table->name;
        } else {
          EXPECT_EQ(y[i], clean[i]) << table->name;
        }
      }
    }
  }
}

TEST_P(QuantExtremesTest, NoTokensAndNoPanelsWriteNothing) {
  const Problem problem(GetParam(), {40, 64}, 4);
  for (const QuantKernelTable* table : AllQuantTables()) {
    std::vector<float> y = problem.Output(2);
    const std::vector<float> untouched = y;
    table->gemm(problem.Args(0, y));
    QuantGemmArgs args = problem.Args(2, y);
    args.panel_begin = args.panel_end = 1;
    table->gemm(args);
    EXPECT_EQ(y, untouched) << table->name;
  }
}

INSTANTIATE_TEST_SUITE_P(Types, QuantExtremesTest, ::testing::ValuesIn(testing::kQuantTypes),
                         [](const auto& info) { return std::string(Traits(info.param).name); });

}  // namespace
}  // namespace flotilla::cpu
