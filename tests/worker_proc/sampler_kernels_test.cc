#include "worker_proc/cpu/sampler_kernels.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "tests/worker_proc/sampler_cases.h"
#include "worker_proc/cpu/isa.h"

namespace flotilla {
namespace {

using testing::AdversarialRows;
using testing::RandomLogits;
using testing::SamplerTables;

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kQuantum = 0x1p-36f;

// Everything that one table says of a row.
struct Answers {
  bool good = false;
  std::vector<float> tile_max;
  std::vector<double> tile_sums;
  std::vector<float> weights;
  std::vector<size_t> counts;
  std::vector<std::vector<float>> values;
  std::vector<std::vector<int32_t>> tokens;
};

Answers Ask(const SamplerKernels& kernels, const std::vector<float>& row, float inverse) {
  const size_t n = row.size();
  Answers out;
  out.tile_max.resize((n + kSamplerTile - 1) / kSamplerTile);
  out.good = kernels.tile_max(row.data(), n, out.tile_max.data());
  const WeightScale scale{*std::max_element(row.begin(), row.end()), inverse, kQuantum};
  out.tile_sums.resize(out.tile_max.size());
  kernels.tile_sums(row.data(), n, scale, out.tile_sums.data());
  out.weights.resize(n);
  kernels.weights(row.data(), n, scale, out.weights.data());
  for (const float bound : {-kInf, scale.max - 2, scale.max, row[n / 2], 0.0f, kInf}) {
    out.counts.push_back(kernels.count(row.data(), n, bound));
    std::vector<float> values(n);
    std::vector<int32_t> tokens(n);
    const size_t found = kernels.collect(row.data(), n, bound, 1000, values.data(), tokens.data());
    values.resize(found);
    tokens.resize(found);
    out.values.push_back(values);
    out.tokens.push_back(tokens);
  }
  return out;
}

template <typename T>
void ExpectSameBits(const std::vector<T>& a, const std::vector<T>& b) {
  ASSERT_EQ(a.size(), b.size());
  EXPECT_EQ(std::memcmp(a.data(), b.data(), a.size() * sizeof(T)), 0);
}

TEST(SamplerKernelsTest, AllTablesGiveTheReferencesBits) {
  for (const SamplerKernels* kernels : SamplerTables()) {
    SCOPED_TRACE(kernels->name);
    for (const auto& row : AdversarialRows()) {
      SCOPED_TRACE(::testing::Message() << row.name << " of " << row.logits.size());
      for (const float inverse : {1.0f, 0.5f, 1 / 0.7f, 1e5f}) {
        const Answers expected = Ask(cpu::ReferenceSamplerKernels(), row.logits, inverse);
        const Answers got = Ask(*kernels, row.logits, inverse);
        EXPECT_TRUE(got.good);
        EXPECT_EQ(got.tile_max, expected.tile_max);  // a zero may have either sign
        ExpectSameBits(got.tile_sums, expected.tile_sums);
        ExpectSameBits(got.weights, expected.weights);
        EXPECT_EQ(got.counts, expected.counts);
        EXPECT_EQ(got.values, expected.values);
        EXPECT_EQ(got.tokens, expected.tokens);
      }
    }
  }
}

TEST(SamplerKernelsTest, TheReferenceIsRight) {
  for (const auto& row : AdversarialRows()) {
    SCOPED_TRACE(::testing::Message() << row.name << " of " << row.logits.size());
    const Answers got = Ask(cpu::ReferenceSamplerKernels(), row.logits, 1.0f);
    const float max = *std::max_element(row.logits.begin(), row.logits.end());
    for (size_t i = 0; i < row.logits.size(); ++i) {
      EXPECT_LE(row.logits[i], got.tile_max[i / kSamplerTile]);
      // Besides the rounding of the difference to a float.
      const double x = static_cast<double>(row.logits[i]) - max;
      const double error = 2e-7 + std::min(-x, 40.0) * (3e-8 + 0x1p-24);
      EXPECT_NEAR(got.weights[i], std::exp(x), error * std::exp(x) + kQuantum / 2);
    }
    for (size_t tile = 0; tile < got.tile_max.size(); ++tile) {
      const size_t begin = tile * kSamplerTile;
      const size_t end = std::min(row.logits.size(), begin + kSamplerTile);
      const auto first = row.logits.begin() + static_cast<ptrdiff_t>(begin);
      const auto last = row.logits.begin() + static_cast<ptrdiff_t>(end);
      EXPECT_NE(std::find(first, last, got.tile_max[tile]), last);
      double sum = 0;
      for (size_t i = end; i-- > begin;) sum += got.weights[i];  // backwards: order is nothing
      EXPECT_EQ(got.tile_sums[tile], sum);
    }
    EXPECT_EQ(got.counts[0], row.logits.size());
    EXPECT_GE(got.counts[2], 1u);
    for (size_t b = 0; b < got.counts.size(); ++b) {
      ASSERT_EQ(got.tokens[b].size(), got.counts[b]);
      for (size_t i = 0; i < got.tokens[b].size(); ++i) {
        EXPECT_EQ(got.values[b][i], row.logits[static_cast<size_t>(got.tokens[b][i] - 1000)]);
        EXPECT_TRUE(i == 0 || got.tokens[b][i] > got.tokens[b][i - 1]);
      }
    }
  }
}

TEST(SamplerKernelsTest, WeightsFollowExpAndAreMultiplesOfTheQuantum) {
  std::vector<float> row;
  for (float x = -40; x <= 0; x += 0.00071f) row.push_back(x);
  row.push_back(0);
  for (const float quantum : {0x1p-36f, 0x1p-33f}) {
    for (const SamplerKernels* kernels : SamplerTables()) {
      std::vector<float> weights(row.size());
      kernels->weights(row.data(), row.size(), {0, 1, quantum}, weights.data());
      EXPECT_EQ(weights.back(), 1.0f);
      for (size_t i = 0; i < row.size(); ++i) {
        const double exact = std::exp(static_cast<double>(row[i]));
        const double error = 2e-7 + 3e-8 * -row[i];
        ASSERT_NEAR(weights[i], exact, error * exact + quantum / 2) << row[i];
        const double multiple = weights[i] / static_cast<double>(quantum);
        ASSERT_EQ(multiple, std::floor(multiple)) << row[i];
      }
    }
  }
}

TEST(SamplerKernelsTest, ANanIsFoundWhereverItIs) {
  for (const SamplerKernels* kernels : SamplerTables()) {
    for (const size_t n : {1u, 7u, 16u, 300u, 1000u}) {
      std::vector<float> row = RandomLogits(n, n, 3);
      std::vector<float> tile_max(n);
      EXPECT_TRUE(kernels->tile_max(row.data(), n, tile_max.data()));
      for (size_t i = 0; i < n; ++i) {
        const float kept = row[i];
        row[i] = std::nanf("");
        EXPECT_FALSE(kernels->tile_max(row.data(), n, tile_max.data())) << i << " of " << n;
        row[i] = kept;
      }
    }
  }
}

TEST(SamplerKernelsTest, AMaskLeavesWhatItsBitsSay) {
  std::mt19937_64 random(3);
  for (const SamplerKernels* kernels : SamplerTables()) {
    for (const size_t n : {1u, 7u, 31u, 32u, 33u, 300u, 1000u}) {
      const std::vector<float> row = RandomLogits(n, n, 3);
      std::vector<uint32_t> mask((n + 31) / 32);
      for (uint32_t& word : mask) word = static_cast<uint32_t>(random());
      std::vector<float> out(n, 7.0f), expected(n);
      for (size_t i = 0; i < n; ++i)
        expected[i] = (mask[i / 32] >> (i % 32) & 1) != 0 ? row[i] : -kInf;
      kernels->mask(row.data(), n, mask.data(), out.data());
      EXPECT_EQ(out, expected) << kernels->name << " of " << n;
    }
  }
}

TEST(SamplerKernelsTest, EveryInstructionSetOfTheBackendHasATable) {
  for (const std::string& isa : cpu::SupportedIsas()) {
    const auto kernels = cpu::SelectSamplerKernels(isa);
    ASSERT_TRUE(kernels.ok()) << kernels.status();
    EXPECT_EQ((*kernels)->name, isa == "amx" ? "avx512" : isa);
  }
  EXPECT_EQ(cpu::SelectSamplerKernels("mmx").status().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace flotilla
