// Quantisation, RMSNorm and gate-up-SiLU of every instruction set: against fp64, and bit for bit
// against the reference.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <tuple>

#include "tests/support/equal_bytes.h"
#include "tests/worker_proc/quant_cases.h"

namespace flotilla::cpu {
namespace {

using testing::AllQuantTables;
using testing::RandomActs;
using testing::RandomFloats;
using testing::RandomTensor;

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

::testing::AssertionResult SameBlocks(const std::vector<ActBlock>& a,
                                      const std::vector<ActBlock>& b) {
  for (size_t i = 0; i < b.size(); ++i) {
    if (!flotilla::testing::EqualBytes(a[i], b[i])) {
      return ::testing::AssertionFailure()
             << "block " << i << " has scale " << a[i].scale << " sum " << a[i].sum << ", not "
             << b[i].scale << " and " << b[i].sum;
    }
  }
  return ::testing::AssertionSuccess();
}

std::vector<ActBlock> Quantize(const QuantKernelTable& table, const std::vector<float>& x,
                               uint32_t cols) {
  std::vector<ActBlock> out(x.size() / kQuantBlock);
  table.quantize(x.data(), static_cast<uint32_t>(x.size() / cols), cols, out.data());
  return out;
}

// Every value lies within half a step of what the block says, and the sum is the integers'.
void ExpectQuantized(const std::vector<ActBlock>& blocks, const std::vector<double>& x) {
  ASSERT_EQ(blocks.size() * kQuantBlock, x.size());
  for (size_t b = 0; b < blocks.size(); ++b) {
    double max = 0;
    int32_t sum = 0;
    for (uint32_t i = 0; i < kQuantBlock; ++i) {
      max = std::max(max, std::abs(x[b * kQuantBlock + i]));
      sum += blocks[b].q[i];
    }
    EXPECT_EQ(blocks[b].sum, sum);
    const double scale = blocks[b].scale;
    EXPECT_NEAR(scale, max / 127, 2e-6 * max / 127) << "block " << b;
    for (uint32_t i = 0; i < kQuantBlock; ++i) {
      ASSERT_GE(blocks[b].q[i], -127);
      ASSERT_NEAR(blocks[b].q[i] * scale, x[b * kQuantBlock + i], scale * 0.501) << "block " << b;
    }
  }
}

TEST(QuantizeTest, IsWithinHalfAStepAndTheSameEverywhere) {
  for (float size : {1e-20f, 1e-3f, 1.0f, 1e5f, 1e37f}) {
    const auto x = RandomFloats(7 * 96, 1, size);
    const auto expected = Quantize(ReferenceQuantKernels(), x, 96);
    ExpectQuantized(expected, std::vector<double>(x.begin(), x.end()));
    for (const QuantKernelTable* table : AllQuantTables()) {
      EXPECT_TRUE(SameBlocks(Quantize(*table, x, 96), expected)) << table->name;
    }
  }
}

TEST(QuantizeTest, RoundsHalvesToEvenAndReaches127) {
  std::vector<float> x(kQuantBlock, 0.0f);
  const float values[] = {127, -127, 0.5f, 1.5f, 2.5f, -0.5f, -1.5f, -2.5f, 126.5f, 63.49f};
  const int8_t expected[] = {127, -127, 0, 2, 2, 0, -2, -2, 126, 63};
  std::copy(std::begin(values), std::end(values), x.begin());
  for (const QuantKernelTable* table : AllQuantTables()) {
    const ActBlock block = Quantize(*table, x, kQuantBlock)[0];
    EXPECT_EQ(block.scale, 1.0f);
    for (size_t i = 0; i < std::size(expected); ++i) {
      EXPECT_EQ(block.q[i], expected[i]) << table->name << " " << values[i];
    }
    EXPECT_EQ(block.sum, 189);
  }
}

TEST(QuantizeTest, TheLargestOfEachSignNeverOverflows) {
  // max * (127 / max) must not round past 127, whatever max is.
  std::vector<float> x(kQuantBlock, 0.0f);
  for (const float max : RandomFloats(4000, 3, 100.0f)) {
    x[5] = max;
    x[30] = -max;
    const auto expected = Quantize(ReferenceQuantKernels(), x, kQuantBlock);
    ASSERT_EQ(std::abs(expected[0].q[5]), 127);
    ASSERT_EQ(expected[0].sum, 0);
    for (const QuantKernelTable* table : AllQuantTables()) {
      ASSERT_TRUE(SameBlocks(Quantize(*table, x, kQuantBlock), expected)) << table->name;
    }
  }
}

TEST(QuantizeTest, TinyBlocksAreZero) {
  for (float tiny : {0.0f, -0.0f, 1e-45f, 1e-38f, -9e-31f}) {
    const std::vector<float> x(kQuantBlock, tiny);
    for (const QuantKernelTable* table : AllQuantTables()) {
      EXPECT_TRUE(SameBlocks(Quantize(*table, x, kQuantBlock), {ActBlock{}}))
          << table->name << tiny;
    }
  }
  std::vector<float> x(kQuantBlock, 0.0f);
  x[0] = -kMinActMax;
  for (const QuantKernelTable* table : AllQuantTables()) {
    EXPECT_EQ(Quantize(*table, x, kQuantBlock)[0].q[0], -127) << table->name;
  }
}

TEST(QuantizeTest, ABlockThatIsNotFiniteHasANanScaleAndItsNeighboursAreUntouched) {
  const auto clean = RandomFloats(3 * kQuantBlock, 4);
  const auto neighbours = Quantize(ReferenceQuantKernels(), clean, kQuantBlock);
  for (float bad : {kInf, -kInf, kNan, -kNan}) {
    for (uint32_t at = 0; at < kQuantBlock; ++at) {
      auto x = clean;
      x[kQuantBlock + at] = bad;
      const auto expected = Quantize(ReferenceQuantKernels(), x, kQuantBlock);
      ASSERT_TRUE(std::isnan(expected[1].scale));
      ASSERT_EQ(expected[1].sum, 0);
      ASSERT_EQ(std::memcmp(expected[1].q, ActBlock{}.q, kQuantBlock), 0);
      for (const QuantKernelTable* table : AllQuantTables()) {
        const auto blocks = Quantize(*table, x, kQuantBlock);
        ASSERT_TRUE(SameBlocks(blocks, expected)) << table->name;
        ASSERT_TRUE(SameBlocks({blocks[0], blocks[2]}, {neighbours[0], neighbours[2]}));
      }
    }
  }
}

// ---- RMSNorm ----------------------------------------------------------------------------------

struct NormCase {
  uint32_t rows;
  uint32_t cols;
  bool residual;
};

class QuantRmsNormTest : public ::testing::TestWithParam<NormCase> {};

TEST_P(QuantRmsNormTest, IsTheFloatNormQuantised) {
  const auto [rows, cols, with_residual] = GetParam();
  const auto x = RandomFloats(size_t{rows} * cols, 5);
  const auto before = RandomFloats(x.size(), 6);
  const auto weight = RandomFloats(cols, 7);
  constexpr float kEps = 1e-5f;

  std::vector<double> exact;
  for (uint32_t t = 0; t < rows; ++t) {
    std::vector<double> sum(cols);
    double squares = 0;
    for (uint32_t i = 0; i < cols; ++i) {
      const size_t at = size_t{t} * cols + i;
      sum[i] = with_residual ? before[at] + x[at] : x[at];
      squares += sum[i] * sum[i];
    }
    for (uint32_t i = 0; i < cols; ++i) {
      exact.push_back(sum[i] / std::sqrt(squares / cols + kEps) * weight[i]);
    }
  }
  std::vector<ActBlock> expected;
  std::vector<float> expected_residual;
  std::vector<const QuantKernelTable*> tables = AllQuantTables();
  tables.insert(tables.begin(), &ReferenceQuantKernels());
  for (const QuantKernelTable* table : tables) {
    std::vector<float> residual = before;
    std::vector<ActBlock> out(x.size() / kQuantBlock);
    table->rms_norm({x.data(), with_residual ? residual.data() : nullptr, weight.data(), kEps, rows,
                     cols, out.data()});
    if (expected.empty()) {
      ExpectQuantized(out, exact);
      expected = out;
      expected_residual = residual;
    }
    EXPECT_TRUE(SameBlocks(out, expected)) << table->name;
    EXPECT_TRUE(testing::SameBits(residual, expected_residual)) << table->name;
  }
  // The float kernels' norm, rounded to fp32, is what is quantised.
  std::vector<float> residual = before;
  std::vector<float> normed(x.size());
  ReferenceKernels().rms_norm({x.data(), with_residual ? residual.data() : nullptr, weight.data(),
                               kEps, rows, cols, normed.data()});
  EXPECT_TRUE(SameBlocks(Quantize(ReferenceQuantKernels(), normed, cols), expected));
  EXPECT_TRUE(testing::SameBits(residual, expected_residual));
}

INSTANTIATE_TEST_SUITE_P(Cases, QuantRmsNormTest,
                         ::testing::Values(NormCase{1, 32, false}, NormCase{3, 96, true},
                                           NormCase{5, 576, true}, NormCase{2, 576, false},
                                           NormCase{1, 2048, true}, NormCase{0, 64, false}),
                         [](const auto& info) { return std::to_string(info.index); });

// ---- Gate, up and SiLU ------------------------------------------------------------------------

struct GateUpCase {
  uint32_t columns;
  uint32_t in;
  HiddenAct act = HiddenAct::kSilu;
};

class QuantGateUpTest : public ::testing::TestWithParam<std::tuple<DType, GateUpCase>> {};

TEST_P(QuantGateUpTest, IsTheActivatedGateTimesUpQuantised) {
  const DType dtype = std::get<0>(GetParam());
  const GateUpCase shape = std::get<1>(GetParam());  // lambdas can't have a structured binding
  const uint32_t max_tokens = shape.columns < 100 ? 150 : 48;  // more than a group of tiles
  const QuantFormat format = *QuantFormatOf(dtype);
  const auto packed =
      testing::PackAll(RandomTensor(dtype, 2 * uint64_t{shape.columns}, shape.in, 1)->view);
  const auto x = RandomActs(max_tokens, shape.in, 2);
  const uint32_t blocks = shape.columns / kQuantBlock;
  const uint32_t stride = blocks + 1;  // a block beside them must stay untouched
  ActBlock untouched{};
  untouched.sum = -7;
  const auto run = [&](const QuantKernelTable& table, uint32_t tokens, uint32_t share) {
    std::vector<ActBlock> out(size_t{tokens + 1} * stride, untouched);
    const testing::PackedTokens tiles(table, format, x, tokens, shape.in);
    for (uint32_t begin = 0; begin < blocks; begin += share) {
      table.gate_up({format, packed.data(), shape.in, shape.columns, x.data(),
                     shape.in / kQuantBlock, tokens, out.data(), stride, begin,
                     std::min(blocks, begin + share), shape.act, tiles.get()});
    }
    return out;
  };
  const auto expected = run(ReferenceQuantKernels(), max_tokens, blocks);
  for (uint32_t tokens : {0u, 1u, 2u, 3u, 5u, 6u, 7u, 12u, 13u, 27u, 48u, 150u}) {
    if (tokens > max_tokens) continue;
    for (const QuantKernelTable* table : AllQuantTables()) {
      if (table == &ReferenceQuantKernels() && tokens > 2) continue;
      for (uint32_t share : {1u, 5u, blocks}) {
        auto part = expected;
        part.resize(size_t{tokens + 1} * stride);
        std::fill(part.end() - stride, part.end(), untouched);
        ASSERT_TRUE(SameBlocks(run(*table, tokens, share), part))
            << table->name << " " << tokens << " tokens, shares of " << share;
      }
    }
  }

  // Against fp64, from the matrix product's own test outputs.
  std::vector<double> exact;
  const uint32_t some = 2;
  for (uint32_t t = 0; t < some; ++t) {
    std::vector<double> y(2 * size_t{shape.columns});
    for (uint32_t r = 0; r < y.size(); ++r) {
      for (uint32_t k = 0; k < shape.in; ++k) {
        const ActBlock& block = x[(size_t{t} * shape.in + k) / kQuantBlock];
        y[r] += UnpackQuantWeight(format, packed.data(), shape.in, r, k) *
                block.q[k % kQuantBlock] * static_cast<double>(block.scale);
      }
    }
    for (uint32_t c = 0; c < shape.columns; ++c) {
      const double gelu =
          0.5 * y[c] * (1 + std::tanh(std::sqrt(2 / M_PI) * (y[c] + 0.044715 * std::pow(y[c], 3))));
      const double silu = y[c] / (1 + std::exp(-y[c]));
      exact.push_back((shape.act == HiddenAct::kSilu ? silu : gelu) * y[shape.columns + c]);
    }
  }
  std::vector<ActBlock> first;
  for (uint32_t t = 0; t < some; ++t) {
    first.insert(first.end(), expected.begin() + t * stride,
                 expected.begin() + t * stride + blocks);
  }
  ExpectQuantized(first, exact);
}

// SmolLM2's at TP 1, 2 and 3, and odd ones; Gemma's gate.
std::string CaseName(const ::testing::TestParamInfo<std::tuple<DType, GateUpCase>>& info) {
  const GateUpCase shape = std::get<1>(info.param);
  return std::string(Traits(std::get<0>(info.param)).name) + "_" + std::to_string(shape.columns) +
         "x" + std::to_string(shape.in);
}

INSTANTIATE_TEST_SUITE_P(
    Shapes, QuantGateUpTest,
    ::testing::Combine(::testing::ValuesIn(testing::kBlockTypes),
                       ::testing::Values(GateUpCase{1536, 576}, GateUpCase{768, 576},
                                         GateUpCase{512, 576}, GateUpCase{32, 32},
                                         GateUpCase{288, 96}, GateUpCase{64, 4160},
                                         GateUpCase{320, 96, HiddenAct::kGeluTanh})),
    CaseName);
INSTANTIATE_TEST_SUITE_P(
    SuperBlocks, QuantGateUpTest,
    ::testing::Combine(::testing::ValuesIn(testing::kKTypes),
                       ::testing::Values(GateUpCase{512, 1536}, GateUpCase{32, 256},
                                         GateUpCase{288, 512}, GateUpCase{64, 4352})),
    CaseName);

}  // namespace
}  // namespace flotilla::cpu
