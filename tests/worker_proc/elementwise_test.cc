// RMSNorm, the gates, soft-capping, exp and RoPE: against fp64, and bit for bit between instruction
// sets.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "tests/worker_proc/kernel_cases.h"

namespace flotilla::cpu {
namespace {

using testing::AllTables;
using testing::RandomFloats;

TEST(ExpTest, IsWithinThreeUlpOverItsRange) {
  double worst = 0;
  for (float x = -86.9f; x < 87.9f; x += 0.00137f) {
    const double exact = std::exp(static_cast<double>(x));
    worst = std::max(worst, std::abs(ReferenceExp(x) - exact) / exact);
  }
  EXPECT_LT(worst, 3.6e-7);
  EXPECT_EQ(ReferenceExp(0.0f), 1.0f);
  EXPECT_EQ(ReferenceExp(-1000.0f), ReferenceExp(-87.0f));
  EXPECT_EQ(ReferenceExp(1000.0f), ReferenceExp(88.0f));
}

std::vector<float> Norm(const KernelTable& table, uint32_t rows, uint32_t cols,
                        const std::vector<float>& x, std::vector<float>* residual,
                        const std::vector<float>& weight) {
  std::vector<float> out(size_t{rows} * cols);
  table.rms_norm({x.data(), residual ? residual->data() : nullptr, weight.data(), 1e-5f, rows, cols,
                  out.data()});
  return out;
}

TEST(RmsNormTest, MatchesDoubleAndAllTablesAgree) {
  for (uint32_t cols : {1u, 5u, 16u, 31u, 64u, 100u, 576u, 577u}) {
    const auto x = RandomFloats(size_t{3} * cols, 1, 2.0f);
    const auto start = RandomFloats(size_t{3} * cols, 2, 2.0f);
    const auto weight = RandomFloats(cols, 3);
    std::vector<float> residual = start;
    const auto expected = Norm(ReferenceKernels(), 3, cols, x, &residual, weight);
    std::vector<double> exact;
    for (uint32_t t = 0; t < 3; ++t) {
      double squares = 0;
      for (uint32_t i = 0; i < cols; ++i) squares += std::pow(residual[t * cols + i], 2.0);
      const double scale = 1 / std::sqrt(squares / cols + 1e-5);
      for (uint32_t i = 0; i < cols; ++i) {
        EXPECT_EQ(residual[t * cols + i], start[t * cols + i] + x[t * cols + i]);
        exact.push_back(residual[t * cols + i] * scale * weight[i]);
      }
    }
    EXPECT_LT(testing::RelativeError(expected, exact), 1e-6);
    for (const KernelTable* table : AllTables()) {
      std::vector<float> other = start;
      EXPECT_TRUE(testing::SameBits(Norm(*table, 3, cols, x, &other, weight), expected))
          << table->name << " " << cols;
      EXPECT_TRUE(testing::SameBits(other, residual)) << table->name << " " << cols;
      // Without a residual it is the norm of x.
      EXPECT_TRUE(testing::SameBits(Norm(*table, 3, cols, residual, nullptr, weight), expected))
          << table->name << " " << cols;
    }
  }
}

using ActMul = void (*)(const float*, uint32_t, uint32_t, float*);
void ExpectActMul(ActMul KernelTable::*act_mul, double (*act)(double)) {
  for (uint32_t cols : {1u, 7u, 8u, 16u, 17u, 100u, 768u, 1536u}) {
    auto gate_up = RandomFloats(size_t{2} * 2 * cols, 5, 4.0f);
    gate_up[0] = -200.0f;  // far outside exp's range
    std::vector<double> exact;
    for (uint32_t t = 0; t < 2; ++t) {
      for (uint32_t i = 0; i < cols; ++i) {
        exact.push_back(act(gate_up[t * 2 * cols + i]) * gate_up[t * 2 * cols + cols + i]);
      }
    }
    std::vector<float> expected(size_t{2} * cols);
    (ReferenceKernels().*act_mul)(gate_up.data(), 2, cols, expected.data());
    EXPECT_LT(testing::RelativeError(expected, exact), 1e-6);
    for (const KernelTable* table : AllTables()) {
      std::vector<float> out(size_t{2} * cols);
      (table->*act_mul)(gate_up.data(), 2, cols, out.data());
      EXPECT_TRUE(testing::SameBits(out, expected)) << table->name << " " << cols;
    }
  }
}

double Gelu(double x) {
  return 0.5 * x * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
}

TEST(SiluMulTest, MatchesDoubleAndAllTablesAgree) {
  ExpectActMul(&KernelTable::silu_mul, [](double x) { return x / (1 + std::exp(-x)); });
}

TEST(GeluMulTest, MatchesDoubleAndAllTablesAgree) { ExpectActMul(&KernelTable::gelu_mul, Gelu); }

TEST(GeluMulTest, FollowsTheFormulaOverItsRange) {
  for (float x = -12; x < 12; x += 0.0037f) EXPECT_NEAR(ReferenceGelu(x), Gelu(x), 1e-6) << x;
  for (const float x : {1e20f, 1e30f}) {
    EXPECT_EQ(ReferenceGelu(x), x);
    EXPECT_NEAR(ReferenceGelu(-x), 0.0f, 1e-7f);
  }
}

TEST(SoftCapTest, MatchesDoubleAndAllTablesAgree) {
  for (const float cap : {0.5f, 30.0f, 50.0f}) {
    for (const uint32_t count : {1u, 7u, 8u, 16u, 19u, 333u}) {
      auto x = RandomFloats(count, 6, 3 * cap);
      x[0] = -1e30f;
      std::vector<float> expected = x;
      ReferenceKernels().soft_cap(expected.data(), count, cap);
      for (uint32_t i = 0; i < count; ++i) {
        EXPECT_NEAR(expected[i], cap * std::tanh(static_cast<double>(x[i]) / cap), 3e-7 * cap);
      }
      for (const KernelTable* table : AllTables()) {
        std::vector<float> out = x;
        out.push_back(-7.0f);
        table->soft_cap(out.data(), count, cap);
        EXPECT_EQ(out.back(), -7.0f) << "written past the end";
        out.pop_back();
        EXPECT_TRUE(testing::SameBits(out, expected)) << table->name << " " << count;
      }
    }
  }
}

// A damaged weight must end in logits that are refused, not in an answer.
TEST(NotANumberTest, StaysOneThroughEveryTable) {
  constexpr uint32_t kCount = 19;
  const float nan = std::numeric_limits<float>::quiet_NaN();
  std::vector<const KernelTable*> tables = AllTables();
  tables.push_back(&ReferenceKernels());
  EXPECT_TRUE(std::isnan(ReferenceExp(nan)));
  for (const KernelTable* table : tables) {
    for (const uint32_t at : {0u, 8u, kCount - 1}) {
      std::vector<float> capped(kCount, 1.0f);
      capped[at] = nan;
      table->soft_cap(capped.data(), kCount, 30);
      std::vector<float> gate_up(2 * kCount, 1.0f);
      gate_up[at] = nan;
      std::vector<float> silu(kCount), gelu(kCount);
      table->silu_mul(gate_up.data(), 1, kCount, silu.data());
      table->gelu_mul(gate_up.data(), 1, kCount, gelu.data());
      for (uint32_t i = 0; i < kCount; ++i) {
        EXPECT_EQ(std::isnan(capped[i]), i == at) << table->name << " " << i;
        EXPECT_EQ(std::isnan(silu[i]), i == at) << table->name << " " << i;
        EXPECT_EQ(std::isnan(gelu[i]), i == at) << table->name << " " << i;
      }
    }
  }
}

// Pairs (2i, 2i+1) or (i, i + d/2) rotate by position * theta^(-2i/d); other dims stay.
TEST(RopeTest, RotatesPairsOfBothKinds) {
  constexpr uint32_t kDim = 12, kRopeDim = 8, kHeads = 3, kTokens = 5;
  const uint32_t positions[kTokens] = {0, 1, 2, 40, 7};
  std::vector<float> table;
  for (uint32_t p = 0; p < 41; ++p) {
    for (uint32_t i = 0; i < kRopeDim / 2; ++i) {
      const double angle = p * std::pow(10000.0, -2.0 * i / kRopeDim);
      table.push_back(static_cast<float>(std::cos(angle)));
      table.push_back(static_cast<float>(std::sin(angle)));
    }
  }
  for (const bool interleaved : {true, false}) {
    const auto before = RandomFloats(size_t{kTokens} * kHeads * kDim, 9);
    std::vector<float> x = before;
    ReferenceKernels().rope({x.data(), size_t{kHeads} * kDim, positions, kTokens, kHeads, kDim,
                             kRopeDim, interleaved, table.data()});
    for (uint32_t t = 0; t < kTokens; ++t) {
      for (uint32_t h = 0; h < kHeads; ++h) {
        const size_t at = (size_t{t} * kHeads + h) * kDim;
        for (uint32_t i = 0; i < kRopeDim / 2; ++i) {
          const size_t a = at + (interleaved ? 2 * i : i);
          const size_t b = interleaved ? a + 1 : a + kRopeDim / 2;
          const double angle = positions[t] * std::pow(10000.0, -2.0 * i / kRopeDim);
          EXPECT_NEAR(x[a], before[a] * std::cos(angle) - before[b] * std::sin(angle), 1e-6);
          EXPECT_NEAR(x[b], before[b] * std::cos(angle) + before[a] * std::sin(angle), 1e-6);
        }
        for (uint32_t i = kRopeDim; i < kDim; ++i) EXPECT_EQ(x[at + i], before[at + i]);
      }
    }
  }
}

}  // namespace
}  // namespace flotilla::cpu
