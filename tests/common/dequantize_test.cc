// Dequantisation against formulas written independently, in double, from the block's definition,
// and against what the gguf package makes of the same blocks (make_dequantize_golden.py).
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <fstream>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "common/checkpoint/checkpoint.h"
#include "common/checkpoint/half.h"
#include "tests/fakes/gguf_builder.h"

namespace flotilla {
namespace {

using ::flotilla::testing::Quantize;

TensorView View(DType dtype, uint64_t rows, uint64_t cols, const std::string& bytes) {
  return {.name = "t",
          .dtype = dtype,
          .rows = rows,
          .cols = cols,
          .data = {reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size()}};
}

std::vector<float> Rows(const TensorView& view, uint64_t begin, uint64_t end) {
  std::vector<float> out((end - begin) * view.cols);
  DequantizeRows(view, begin, end, out.data());
  return out;
}

// The value of a binary16 from its three fields.
double HalfValue(uint32_t half) {
  const double sign = (half & 0x8000) != 0 ? -1.0 : 1.0;
  const int exponent = static_cast<int>((half >> 10) & 31);
  const double fraction = (half & 1023) / 1024.0;
  if (exponent == 31) return fraction == 0 ? sign * HUGE_VAL : std::nan("");
  if (exponent == 0) return sign * std::ldexp(fraction, -14);
  return sign * std::ldexp(1.0 + fraction, exponent - 15);
}

// Finite scales of both signs, subnormals and zeros among them.
uint16_t ScaleBits(uint32_t i) { return static_cast<uint16_t>((i * 2654435761u) >> 16) & 0xbbff; }

TEST(DequantizeTest, BFloat16IsTheUpperHalfOfAFloat) {
  const uint16_t halves[] = {0x3f80, 0xc2f7, 0x0001, 0x7f80, 0x8000, 0x4049};
  const std::string bytes(reinterpret_cast<const char*>(halves), sizeof(halves));
  const std::vector<float> values = Rows(View(DType::kBF16, 2, 3, bytes), 0, 2);
  const double expected[] = {1.0, -123.5, std::ldexp(1.0, -133), HUGE_VAL, -0.0, 3.140625};
  for (size_t i = 0; i < values.size(); ++i) EXPECT_EQ(values[i], expected[i]);
  EXPECT_EQ(Rows(View(DType::kBF16, 2, 3, bytes), 1, 2)[2], 3.140625f);
}
bool HasMin(DType dtype) { return dtype == DType::kQ4_1 || dtype == DType::kQ5_1; }

// `count` blocks with pseudo-random contents and scales from ScaleBits.
std::string Blocks(DType dtype, uint32_t count) {
  const size_t size = Traits(dtype).block_bytes;
  std::string bytes;
  for (uint32_t b = 0; b < count; ++b) {
    for (size_t i = 0; i < size; ++i) {
      bytes.push_back(static_cast<char>((b * 131 + i * 37 + b * i) & 0xff));
    }
    std::vector<size_t> halves = {0};
    if (HasMin(dtype) || dtype == DType::kQ4_K || dtype == DType::kQ5_K) halves.push_back(2);
    if (dtype == DType::kQ6_K) halves = {208};
    for (size_t h = 0; h < halves.size(); ++h) {
      const uint16_t bits = ScaleBits(2 * b + static_cast<uint32_t>(h));
      std::memcpy(&bytes[b * size + halves[h]], &bits, sizeof(bits));
    }
  }
  return bytes;
}

uint32_t Byte(const std::string& bytes, size_t i) { return static_cast<uint8_t>(bytes[i]); }

double Half(const std::string& bytes, size_t i) {
  return HalfValue(Byte(bytes, i) | (Byte(bytes, i + 1) << 8));
}

int Nibble(const std::string& bytes, size_t quants, int j) {
  const uint32_t byte = Byte(bytes, quants + static_cast<size_t>(j % 16));
  return static_cast<int>(j < 16 ? byte & 15 : byte >> 4);
}

// Bit j of the word at `word`, as the fifth of a value.
int FifthBit(const std::string& bytes, size_t word, int j) {
  return static_cast<int>((Byte(bytes, word + static_cast<size_t>(j / 8)) >> (j % 8)) & 1) * 16;
}

// Half precision times a small integer is exact in fp32, so only a sum with a min rounds, once.
float Expected(DType dtype, const std::string& bytes, size_t block, int j) {
  const size_t at = block * Traits(dtype).block_bytes;
  const double d = Half(bytes, at);
  switch (dtype) {
    case DType::kQ4_0:
      return static_cast<float>(d * (Nibble(bytes, at + 2, j) - 8));
    case DType::kQ4_1:
      return static_cast<float>(d * Nibble(bytes, at + 4, j) + Half(bytes, at + 2));
    case DType::kQ5_0:
      return static_cast<float>(d * (Nibble(bytes, at + 6, j) + FifthBit(bytes, at + 2, j) - 16));
    case DType::kQ5_1:
      return static_cast<float>(d * (Nibble(bytes, at + 8, j) + FifthBit(bytes, at + 4, j)) +
                                Half(bytes, at + 2));
    default:
      return static_cast<float>(d *
                                static_cast<int8_t>(Byte(bytes, at + 2 + static_cast<size_t>(j))));
  }
}

class BlockTypeTest : public ::testing::TestWithParam<DType> {};

TEST_P(BlockTypeTest, EqualsTheFormulaInEveryBit) {
  constexpr uint32_t kRows = 64;
  constexpr uint32_t kBlocksPerRow = 9;
  const std::string bytes = Blocks(GetParam(), kRows * kBlocksPerRow);
  const TensorView view = View(GetParam(), kRows, kBlocksPerRow * 32, bytes);
  const std::vector<float> values = Rows(view, 0, kRows);
  for (size_t i = 0; i < values.size(); ++i) {
    const float expected = Expected(GetParam(), bytes, i / 32, static_cast<int>(i % 32));
    ASSERT_EQ(std::bit_cast<uint32_t>(values[i]), std::bit_cast<uint32_t>(expected))
        << i << ": " << values[i] << " for " << expected;
  }
}

INSTANTIATE_TEST_SUITE_P(All, BlockTypeTest,
                         ::testing::Values(DType::kQ4_0, DType::kQ4_1, DType::kQ5_0, DType::kQ5_1,
                                           DType::kQ8_0),
                         [](const auto& info) { return Traits(info.param).name; });

class RangeTest : public ::testing::TestWithParam<DType> {};

TEST_P(RangeTest, AnyRangeOfRowsIsThatPartOfTheWhole) {
  const uint32_t cols = 2 * Traits(GetParam()).block_values;
  const std::string bytes = Blocks(GetParam(), 10);
  const TensorView view = View(GetParam(), 5, cols, bytes);
  const std::vector<float> all = Rows(view, 0, 5);
  for (uint64_t begin = 0; begin <= 5; ++begin) {
    for (uint64_t end = begin; end <= 5; ++end) {
      const std::vector<float> part = Rows(view, begin, end);
      ASSERT_EQ(part.size(), (end - begin) * cols);
      EXPECT_TRUE(
          std::equal(part.begin(), part.end(), all.begin() + static_cast<int>(begin * cols)));
    }
  }
  EXPECT_DEATH(Rows(view, 0, 6), "CHECK");
}

INSTANTIATE_TEST_SUITE_P(All, RangeTest,
                         ::testing::Values(DType::kQ4_0, DType::kQ4_1, DType::kQ5_0, DType::kQ5_1,
                                           DType::kQ8_0, DType::kQ4_K, DType::kQ5_K, DType::kQ6_K),
                         [](const auto& info) { return Traits(info.param).name; });

std::string Golden() {
  std::ifstream file(FLOTILLA_DEQUANTIZE_GOLDEN, std::ios::binary);
  std::stringstream bytes;
  bytes << file.rdbuf();
  return bytes.str();
}

TEST(DequantizeTest, EqualsTheGgufPackageInEveryBit) {
  const std::string golden = Golden();
  std::set<uint32_t> types;
  for (size_t at = 0; at < golden.size();) {
    uint32_t header[2];  // type, blocks
    ASSERT_LE(at + sizeof(header), golden.size());
    std::memcpy(header, &golden[at], sizeof(header));
    at += sizeof(header);
    const DTypeTraits* traits = FindDType(header[0]);
    ASSERT_NE(traits, nullptr) << header[0];
    const std::string blocks = golden.substr(at, size_t{header[1]} * traits->block_bytes);
    at += blocks.size();
    const uint64_t count = uint64_t{header[1]} * traits->block_values;
    ASSERT_LE(at + count * sizeof(float), golden.size());
    const std::vector<float> values =
        Rows(View(static_cast<DType>(header[0]), 1, count, blocks), 0, 1);
    for (uint64_t i = 0; i < count; ++i, at += sizeof(float)) {
      uint32_t bits;
      std::memcpy(&bits, &golden[at], sizeof(bits));
      ASSERT_EQ(std::bit_cast<uint32_t>(values[i]), bits)
          << traits->name << " value " << i << ": " << values[i];
    }
    types.insert(header[0]);
  }
  EXPECT_EQ(types, (std::set<uint32_t>{2, 3, 6, 7, 8, 12, 13, 14}));
}

TEST(DequantizeTest, EveryHalfIsExact) {
  std::string bytes;
  for (uint32_t half = 0; half < 65536; ++half) {
    bytes.push_back(static_cast<char>(half & 0xff));
    bytes.push_back(static_cast<char>(half >> 8));
  }
  const std::vector<float> values = Rows(View(DType::kF16, 1, 65536, bytes), 0, 1);
  for (uint32_t half = 0; half < 65536; ++half) {
    const double expected = HalfValue(half);
    if (std::isnan(expected)) {
      ASSERT_TRUE(std::isnan(values[half])) << half;
    } else {
      ASSERT_EQ(values[half], expected) << half;
      ASSERT_EQ(std::signbit(values[half]), (half & 0x8000) != 0) << half;
    }
  }
}

TEST(DequantizeTest, FloatsAreCopied) {
  const std::vector<float> values = {0.0f, -0.0f, 1.5f, 1e-40f, HUGE_VALF, -3.0f};
  const std::string bytes = Quantize(DType::kF32, values);
  const std::vector<float> out = Rows(View(DType::kF32, 2, 3, bytes), 0, 2);
  EXPECT_EQ(std::memcmp(out.data(), values.data(), bytes.size()), 0);
}

TEST(DequantizeTest, TheTestsQuantizerRoundTrips) {
  std::vector<float> values;
  values.reserve(512);
  for (int i = 0; i < 512; ++i) values.push_back(std::sin(static_cast<float>(i)) * 0.1f);
  const auto worst = [&](DType dtype) {
    const std::string bytes = Quantize(dtype, values);
    const std::vector<float> out = Rows(View(dtype, 2, 256, bytes), 0, 2);
    float error = 0;
    for (size_t i = 0; i < values.size(); ++i)
      error = std::max(error, std::fabs(out[i] - values[i]));
    return error;
  };
  EXPECT_LT(worst(DType::kF16), 0.1f / 2000);
  EXPECT_LT(worst(DType::kQ8_0), 0.1f / 200);
  EXPECT_LT(worst(DType::kQ4_1), 0.1f / 12);
  EXPECT_LT(worst(DType::kQ4_0), 0.1f / 12);
  EXPECT_LT(worst(DType::kQ5_1), 0.1f / 25);
  EXPECT_LT(worst(DType::kQ5_0), 0.1f / 25);
  EXPECT_LT(worst(DType::kQ4_K), 0.1f / 11);
  EXPECT_LT(worst(DType::kQ5_K), 0.1f / 20);
  EXPECT_LT(worst(DType::kQ6_K), 0.1f / 50);
}

// Every half there is, what lies in the middle of two, and its neighbours.
TEST(HalfTest, FloatsBecomeTheNearestHalf) {
  for (const uint16_t sign : {0, 0x8000}) {
    for (uint16_t half = 0; half < 0x7c00; ++half) {
      const auto expected = static_cast<uint16_t>(half | sign);
      const auto above = static_cast<uint16_t>(expected + 1);  // infinity after the largest
      const float value = HalfToFloat(expected);
      ASSERT_EQ(FloatToHalf(value), expected);
      const double step = half < 0x0400 ? 0x1p-24 : std::ldexp(1.0, (half >> 10) - 25);
      const auto middle = static_cast<float>(value + (sign != 0 ? -step : step) / 2);
      ASSERT_EQ(FloatToHalf(middle), half % 2 == 0 ? expected : above) << half;
      ASSERT_EQ(FloatToHalf(std::nextafterf(middle, 0)), expected) << half;
      ASSERT_EQ(FloatToHalf(std::nextafterf(middle, sign != 0 ? -1e9f : 1e9f)), above) << half;
    }
    EXPECT_EQ(FloatToHalf(sign != 0 ? -INFINITY : INFINITY), 0x7c00 | sign);
    EXPECT_EQ(FloatToHalf(sign != 0 ? -1e30f : 1e30f), 0x7c00 | sign);
    EXPECT_EQ(FloatToHalf(sign != 0 ? -1e-30f : 1e-30f), sign);
  }
  EXPECT_TRUE(std::isnan(HalfToFloat(FloatToHalf(NAN))));
}

TEST(DequantizeTest, OnlyTheElevenTypesAreKnown) {
  int known = 0;
  for (uint32_t type = 0; type < 1000; ++type) known += FindDType(type) != nullptr ? 1 : 0;
  EXPECT_EQ(known, 11);
  EXPECT_EQ(Traits(DType::kQ4_1).block_bytes, 20u);
  EXPECT_EQ(Traits(DType::kQ5_1).block_bytes, 24u);
  EXPECT_EQ(Traits(DType::kQ6_K).block_values, 256u);
  EXPECT_EQ(Traits(DType::kQ6_K).block_bytes, 210u);
  EXPECT_STREQ(FindDType(8)->name, "Q8_0");
  EXPECT_STREQ(FindDType(12)->name, "Q4_K");
}

}  // namespace
}  // namespace flotilla
