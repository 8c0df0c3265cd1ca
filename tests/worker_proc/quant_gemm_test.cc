// The integer matrix product of every instruction set: against fp64, and bit for bit against the
// reference.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <span>
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
                         {65, 160},  {100, 128}, {129, 32},   {17, 27136}};
// Whole super-blocks: one, some, and more than a tile holds at once.
const Shape kKShapes[] = {{960, 768}, {576, 1536}, {3072, 768}, {1, 256},   {7, 512},
                          {17, 768},  {33, 4352},  {31, 2048},  {129, 256}, {65, 2304}};
constexpr uint32_t kMaxTokens = 130;
const uint32_t kTokens[] = {1,  2,  3,  4,  5,  6,  7,  8,  9,  10, 11, 12, 13, 14,
                            15, 16, 17, 23, 24, 25, 28, 29, 31, 48, 64, 65, 130};

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
  QuantGemmArgs Args(uint32_t tokens, std::vector<float>& y, const void* tiles = nullptr) const {
    return {format, packed.data(), shape.in,   shape.out, x.data(), shape.in / kQuantBlock,
            tokens, y.data(),      y_stride(), 0,         panels(), tiles};
  }
  testing::PackedTokens Tiles(const QuantKernelTable& table, uint32_t tokens) const {
    return {table, format, x, tokens, shape.in};
  }
  std::vector<float> Output(uint32_t tokens) const {
    return std::vector<float>((tokens + 1) * y_stride(), kUntouched);
  }
  std::vector<float> Run(const QuantKernelTable& table, uint32_t tokens) const {
    std::vector<float> y = Output(tokens);
    const testing::PackedTokens tiles = Tiles(table, tokens);
    table.gemm(Args(tokens, y, tiles.get()));
    return y;
  }
  // Of the first `tokens` tokens, in fp64; `sizes`: the sums of the terms without their signs.
  std::vector<double> Exact(uint32_t tokens, std::vector<double>* sizes = nullptr) const {
    std::vector<double> y;
    std::vector<double> row(shape.in);
    for (uint32_t r = 0; r < shape.out; ++r) {
      for (uint32_t k = 0; k < shape.in; ++k) {
        row[k] = UnpackQuantWeight(format, packed.data(), shape.in, r, k);
      }
      for (uint32_t t = 0; t < tokens; ++t) {
        double sum = 0;
        double size = 0;
        for (uint32_t k = 0; k < shape.in; ++k) {
          const ActBlock& block = x[(size_t{t} * shape.in + k) / kQuantBlock];
          const double term = row[k] * block.q[k % kQuantBlock] * static_cast<double>(block.scale);
          sum += term;
          size += std::abs(term);
        }
        y.push_back(sum);
        if (sizes != nullptr) sizes->push_back(size);
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
    if (problem.shape.in > 5000 && tokens != 1 && tokens != 31) continue;  // long
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
    for (uint32_t tokens : {1u, 5u, 14u, 35u}) {
      if (table == &ReferenceQuantKernels() && tokens > 1) continue;
      const testing::PackedTokens tiles = problem.Tiles(*table, tokens);
      const auto whole = problem.Run(*table, tokens);
      for (uint32_t share : {1u, 3u, 8u}) {
        std::vector<float> y = problem.Output(tokens);
        QuantGemmArgs args = problem.Args(tokens, y, tiles.get());
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

// Their bits are those of the vectors, so only a count shows that they ran.
TEST(QuantTilesTest, TakeWhatIsWorthThem) {
  for (const testing::EmulatedTiles* tiles : testing::AllEmulatedTiles()) {
    for (DType dtype : testing::kQuantTypes) {
      const Problem problem(dtype, {32, 256}, 1);
      const bool takes = dtype != DType::kQ6_K;
      for (uint32_t tokens : {1u, 12u, 13u, 16u, 17u, 29u, 130u}) {
        const uint64_t before = *tiles->products;
        problem.Run(*tiles->table, tokens);
        const uint64_t expected = (tokens + 3) / 16 * 2 * (256 / kQuantBlock);  // 2 panels
        EXPECT_EQ(*tiles->products - before, takes ? expected : 0)
            << Traits(dtype).name << " " << tokens;
      }
    }
  }
}

std::string CaseName(const ::testing::TestParamInfo<std::tuple<DType, Shape>>& info) {
  const Shape shape = std::get<1>(info.param);
  return std::string(Traits(std::get<0>(info.param)).name) + "_" + std::to_string(shape.out) + "x" +
         std::to_string(shape.in);
}

INSTANTIATE_TEST_SUITE_P(Shapes, QuantGemmTest,
                         ::testing::Combine(::testing::ValuesIn(testing::kBlockTypes),
                                            ::testing::ValuesIn(kShapes)),
                         CaseName);
INSTANTIATE_TEST_SUITE_P(SuperBlocks, QuantGemmTest,
                         ::testing::Combine(::testing::ValuesIn(testing::kKTypes),
                                            ::testing::ValuesIn(kKShapes)),
                         CaseName);

// ---- Extremes ---------------------------------------------------------------------------------

class QuantExtremesTest : public ::testing::TestWithParam<DType> {};

// Bytes of a file's blocks, all of a kind alike.
struct Constant {
  uint8_t value = 0;
  uint8_t sub_scale = 0;  // of K types: their scales and mins
  uint16_t half = 0;  // scales, and mins: those of Q4_1 and Q5_1 negated, as they are in K types
};

void FillBlocks(DType dtype, const Constant& constant, std::span<uint8_t> bytes) {
  std::fill(bytes.begin(), bytes.end(), constant.value);
  const bool k_type = QuantFormatOf(dtype)->super_blocks;
  for (size_t at = 0; at < bytes.size(); at += Traits(dtype).block_bytes) {
    uint8_t* const block = &bytes[at];
    if (k_type && dtype == DType::kQ6_K) std::memset(block + 192, constant.sub_scale, 16);
    if (k_type && dtype != DType::kQ6_K) std::memset(block + 4, constant.sub_scale, 12);
    testing::SetHalf(block + testing::ScaleAt(dtype), constant.half);
    const auto min = static_cast<uint16_t>(constant.half ^ (k_type ? 0 : 0x8000));
    if (testing::HasMin(dtype)) testing::SetHalf(block + 2, min);
  }
}

std::vector<uint8_t> ConstantWeights(DType dtype, Shape shape, const Constant& constant) {
  testing::QuantTensor tensor;
  tensor.view = {"constant", dtype, shape.out, shape.in, {}};
  tensor.bytes.resize(shape.out * tensor.view.row_bytes());
  FillBlocks(dtype, constant, tensor.bytes);
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

constexpr uint32_t kExtremeTokens = 17;  // a tile, and one by vectors

// Activations that are all q or, in a third of the blocks, -q: every table gives the same bits,
// near the exact values.
void ExpectExact(Problem* problem, int8_t q, float scale) {
  for (size_t i = 0; i < problem->x.size(); ++i) {
    problem->x[i] = ConstantAct(i % 3 == 0 ? static_cast<int8_t>(-q) : q, scale);
  }
  const auto expected = problem->Run(ReferenceQuantKernels(), kExtremeTokens);
  std::vector<double> sizes;
  const std::vector<double> exact = problem->Exact(kExtremeTokens, &sizes);
  // A scale that is subnormal in fp32 may be half its step off, times an integer below 2^24.
  const double subnormal = problem->format.super_blocks ? 0x1p-150 * 0x1p24 * kSuperBlocks : 1e-40;
  for (size_t i = 0; i < exact.size(); ++i) {
    const float y = expected[i % kExtremeTokens * problem->y_stride() + i / kExtremeTokens];
    ASSERT_NEAR(y, exact[i], 2e-6 * sizes[i] + subnormal);
  }
  for (const QuantKernelTable* table : AllQuantTables()) {
    ASSERT_TRUE(testing::SameBits(problem->Run(*table, kExtremeTokens), expected)) << table->name;
  }
}

TEST_P(QuantExtremesTest, TheLargestAndSmallestValuesAreExact) {
  Problem problem(GetParam(), {40, testing::WholeBlocks(GetParam(), 96)}, 1);
  // fp16: 1, 0, -0, the smallest subnormal, a larger one, the largest.
  const uint16_t kHalves[] = {0x3c00, 0x0000, 0x8000, 0x0001, 0x83ff, 0x7bff};
  // As the file has them: 0x80 is Q8_0's -128, the packed byte 0; 0x7f becomes 255.
  std::vector<uint8_t> values = {0x00, 0xff, 0x80, 0x7f, 0xf0, 0x0f};
  std::vector<uint8_t> sub_scales = {0};
  if (problem.format.super_blocks) {
    values = {0x00, 0xff, 0xf0};
    sub_scales = {0x00, 0xff, 0x80, 0x7f};  // Q6_K's 0, -1, -128 and 127
  }
  for (uint8_t value : values) {
    for (uint8_t sub_scale : sub_scales) {
      for (uint16_t half : kHalves) {
        problem.packed = ConstantWeights(GetParam(), problem.shape, {value, sub_scale, half});
        SCOPED_TRACE(::testing::Message() << "value " << int{value} << " sub-scale "
                                          << int{sub_scale} << " half " << half);
        for (int8_t q : {127, -127, 0, 1}) {
          for (float scale : {1.0f, 0.0f, kMinActMax / 127, 1e25f}) {
            SCOPED_TRACE(::testing::Message() << "q " << int{q} << " scale " << scale);
            ASSERT_NO_FATAL_FAILURE(ExpectExact(&problem, q, scale));
          }
        }
      }
    }
  }
}

// No bit of one row gets into another.
TEST_P(QuantExtremesTest, RowsOfOppositeExtremesDoNotMeet) {
  const Shape shape{32, testing::WholeBlocks(GetParam(), 64)};
  Problem problem(GetParam(), shape, 1);
  const Constant low{0x00, 0x80, 0x3c00};
  const Constant high{0xff, 0x7f, 0x3c00};
  problem.packed = ConstantWeights(GetParam(), shape, low);
  const auto low_y = problem.Run(ReferenceQuantKernels(), kExtremeTokens);
  problem.packed = ConstantWeights(GetParam(), shape, high);
  const auto high_y = problem.Run(ReferenceQuantKernels(), kExtremeTokens);
  const auto mixed = RandomTensor(GetParam(), shape.out, shape.in, 1);
  const size_t row_bytes = mixed->view.row_bytes();
  for (uint32_t row = 0; row < shape.out; ++row) {
    FillBlocks(GetParam(), row % 3 == 1 ? high : low,
               std::span(mixed->bytes).subspan(row * row_bytes, row_bytes));
  }
  problem.packed = PackAll(mixed->view);
  for (const QuantKernelTable* table : AllQuantTables()) {
    const auto y = problem.Run(*table, kExtremeTokens);
    for (uint32_t t = 0; t < kExtremeTokens; ++t) {
      for (uint32_t row = 0; row < shape.out; ++row) {
        const size_t i = t * problem.y_stride() + row;
        ASSERT_EQ(y[i], row % 3 == 1 ? high_y[i] : low_y[i]) << table->name << " row " << row;
      }
    }
  }
}

TEST_P(QuantExtremesTest, ABlockThatIsNotFiniteSpoilsItsTokenAndNoOther) {
  Problem problem(GetParam(), {24, testing::WholeBlocks(GetParam(), 128)}, 3);
  const auto clean = problem.Run(ReferenceQuantKernels(), kExtremeTokens);
  const uint32_t blocks = problem.shape.in / kQuantBlock;
  std::vector<float> bad(kQuantBlock, 1.0f);
  bad[7] = std::numeric_limits<float>::infinity();
  ReferenceQuantKernels().quantize(bad.data(), 1, kQuantBlock, &problem.x[4 * blocks + 2]);
  for (const QuantKernelTable* table : AllQuantTables()) {
    const auto y = problem.Run(*table, kExtremeTokens);
    for (uint32_t t = 0; t < kExtremeTokens; ++t) {
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
  const Problem problem(GetParam(), {40, testing::WholeBlocks(GetParam(), 64)}, 4);
  for (const QuantKernelTable* table : AllQuantTables()) {
    std::vector<float> y = problem.Output(kTileTokens);
    const std::vector<float> untouched = y;
    const testing::PackedTokens tiles = problem.Tiles(*table, kTileTokens);
    table->gemm(problem.Args(0, y, tiles.get()));
    QuantGemmArgs args = problem.Args(kTileTokens, y, tiles.get());
    args.panel_begin = args.panel_end = 1;
    table->gemm(args);
    EXPECT_EQ(y, untouched) << table->name;
  }
}

INSTANTIATE_TEST_SUITE_P(Types, QuantExtremesTest, ::testing::ValuesIn(testing::kQuantTypes),
                         [](const auto& info) { return std::string(Traits(info.param).name); });

}  // namespace
}  // namespace flotilla::cpu
