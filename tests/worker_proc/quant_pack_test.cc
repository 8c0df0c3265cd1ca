#include "worker_proc/cpu/quant_pack.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "tests/worker_proc/quant_cases.h"

namespace flotilla::cpu {
namespace {

using testing::PackAll;
using testing::RandomTensor;

class QuantPackTest : public ::testing::TestWithParam<DType> {};

// The value of every weight is the checkpoint's own; fp32 rounds it once or twice where it has a
// min.
void ExpectSameWeights(const std::vector<uint8_t>& packed, const std::vector<float>& expected,
                       const QuantFormat& format, uint64_t cols) {
  for (size_t i = 0; i < expected.size(); ++i) {
    const double weight = UnpackQuantWeight(format, packed.data(), cols, i / cols, i % cols);
    const double tolerance = format.has_min ? 2e-7 * (0.5 + std::abs(weight)) : 0;
    ASSERT_NEAR(weight, expected[i], tolerance) << "row " << i / cols << ", column " << i % cols;
  }
}

TEST_P(QuantPackTest, EveryWeightIsTheCheckpoints) {
  for (const auto& [rows, some] : {std::pair{16, 32}, {48, 576}, {17, 64}, {1, 32}, {65, 96}}) {
    const uint32_t cols = testing::WholeBlocks(GetParam(), static_cast<uint32_t>(some));
    const auto tensor = RandomTensor(GetParam(), rows, cols, 1);
    std::vector<float> expected(static_cast<size_t>(rows) * cols);
    DequantizeRows(tensor->view, 0, rows, expected.data());
    ExpectSameWeights(PackAll(tensor->view), expected, *QuantFormatOf(GetParam()), cols);
  }
}

TEST_P(QuantPackTest, RowsHaveTheBitsOfTheCheckpoints) {
  const uint32_t cols = testing::WholeBlocks(GetParam(), 96);
  const auto tensor = RandomTensor(GetParam(), 37, cols, 4);
  const std::vector<uint8_t> packed = PackAll(tensor->view);
  std::vector<float> expected(cols), row(cols, NAN);
  for (uint64_t i = 0; i < 37; ++i) {
    DequantizeRows(tensor->view, i, i + 1, expected.data());
    UnpackQuantRow(*QuantFormatOf(GetParam()), packed.data(), cols, i, row.data());
    ASSERT_EQ(std::memcmp(row.data(), expected.data(), cols * sizeof(float)), 0) << "row " << i;
  }
}

TEST_P(QuantPackTest, RowsOfAPanelMayComeFromSeveralTensors) {
  const uint64_t cols = testing::WholeBlocks(GetParam(), 64);
  const auto a = RandomTensor(GetParam(), 40, cols, 2);
  const auto b = RandomTensor(GetParam(), 30, cols, 3);
  const WeightRows rows[] = {
      {&a->view, 3, 10}, {&b->view, 0, 1}, {&b->view, 5, 5}, {&a->view, 20, 40}, {&b->view, 1, 30}};
  std::vector<float> expected;
  for (const WeightRows& part : rows) {
    const size_t at = expected.size();
    expected.resize(at + (part.end - part.begin) * cols);
    DequantizeRows(*part.view, part.begin, part.end, expected.data() + at);
  }
  const QuantFormat format = *QuantFormatOf(GetParam());
  const uint64_t out = expected.size() / cols;
  const uint64_t panels = (out + kPanelRows - 1) / kPanelRows;
  std::vector<uint8_t> packed(PackedQuantBytes(format, out, cols), 0xaa);
  PackQuantPanels(rows, 0, panels, packed.data());
  ExpectSameWeights(packed, expected, format, cols);

  // Rows past the last are zero.
  for (uint64_t row = out; row < panels * kPanelRows; ++row) {
    for (uint64_t k = 0; k < cols; ++k) {
      ASSERT_EQ(UnpackQuantWeight(format, packed.data(), cols, row, k), 0);
    }
  }

  // Panel by panel, in any order, gives the same bytes.
  std::vector<uint8_t> single(packed.size(), 0x55);
  for (uint64_t panel = panels; panel-- > 0;) {
    PackQuantPanels(rows, panel, panel + 1, single.data());
  }
  EXPECT_EQ(single, packed);
}

TEST_P(QuantPackTest, WeightsKeepTheirWidth) {
  const QuantFormat format = *QuantFormatOf(GetParam());
  // As many bytes as in the file where the rows fill their panels; but the 6-bit scales and mins of
  // Q4_K and Q5_K are bytes.
  const size_t more = format.super_blocks && format.has_min ? 4 : 0;
  const size_t row_bytes =
      768 / Traits(GetParam()).block_values * (Traits(GetParam()).block_bytes + more);
  EXPECT_EQ(PackedQuantBytes(format, 64, 768), 64 * row_bytes);
  EXPECT_EQ(PackedQuantBytes(format, 65, 768), 80 * row_bytes);
}

TEST(QuantFormatTest, OnlyBlockTypesHaveOne) {
  EXPECT_FALSE(QuantFormatOf(DType::kF32).has_value());
  EXPECT_FALSE(QuantFormatOf(DType::kF16).has_value());
}

INSTANTIATE_TEST_SUITE_P(Types, QuantPackTest, ::testing::ValuesIn(testing::kQuantTypes),
                         [](const auto& info) { return std::string(Traits(info.param).name); });

}  // namespace
}  // namespace flotilla::cpu
