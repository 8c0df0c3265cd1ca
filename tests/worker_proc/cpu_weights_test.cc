// What the store makes of a checkpoint's tensors: their width, their place in panels, their bytes.
#include "worker_proc/cpu/cpu_weights.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "common/base/check.h"
#include "tests/fakes/gguf_builder.h"
#include "tests/worker_proc/kernel_cases.h"
#include "worker_proc/cpu/quant_pack.h"

namespace flotilla::cpu {
namespace {

using ::testing::ElementsAre;

struct OwnedTensor {
  std::string bytes;
  TensorView view;
};

OwnedTensor MakeTensor(DType dtype, uint64_t rows, uint64_t cols, uint64_t seed) {
  OwnedTensor tensor;
  tensor.bytes = flotilla::testing::Quantize(dtype, testing::RandomFloats(rows * cols, seed));
  tensor.view = {"t",
                 dtype,
                 rows,
                 cols,
                 {reinterpret_cast<const uint8_t*>(tensor.bytes.data()), tensor.bytes.size()}};
  return tensor;
}

class CpuWeightsTest : public ::testing::Test {
 protected:
  std::unique_ptr<CpuLinear> Load(WeightStore* store, std::span<const WeightRows> rows) {
    auto weight = store->LoadLinear(rows);
    CHECK_OK(weight.status());
    return std::unique_ptr<CpuLinear>(static_cast<CpuLinear*>(weight->release()));
  }

  ThreadPool pool_{{.threads = 2}};
  const Heartbeat heartbeat_{};
};

// The bytes of weight [row, k] of a part of floats, where kernels.h says that they are.
std::string WeightAt(const LinearPart& part, uint64_t in_features, uint64_t row, uint64_t k) {
  const size_t bytes = WeightTypeBytes(part.type);
  const size_t at = (row / kPanelRows * in_features + k) * kPanelRows + row % kPanelRows;
  return {static_cast<const char*>(part.floats) + at * bytes, bytes};
}

TEST_F(CpuWeightsTest, FloatsKeepTheirWidthAndTheirBits) {
  const std::pair<DType, WeightType> types[] = {{DType::kF32, WeightType::kFloat32},
                                                {DType::kF16, WeightType::kFloat16},
                                                {DType::kBF16, WeightType::kBFloat16}};
  for (const ComputeType compute : {ComputeType::kFloat32, ComputeType::kInt8}) {
    for (const auto& [dtype, type] : types) {
      WeightStore store(compute, &pool_, heartbeat_, {});
      const OwnedTensor a = MakeTensor(dtype, 40, 7, 1);
      const OwnedTensor b = MakeTensor(dtype, 30, 7, 2);
      const WeightRows rows[] = {
          {&a.view, 3, 10}, {&b.view, 0, 30}, {&a.view, 20, 20}, {&a.view, 39, 40}};
      const auto weight = Load(&store, rows);
      ASSERT_EQ(weight->parts.size(), 1u);
      const LinearPart& part = weight->parts[0];
      ASSERT_EQ(part.type, type);
      ASSERT_EQ(part.rows, 38u);
      std::string expected;
      for (const WeightRows& each : rows) {
        const auto data = each.view->data.subspan(each.begin * each.view->row_bytes(),
                                                  (each.end - each.begin) * each.view->row_bytes());
        expected.append(reinterpret_cast<const char*>(data.data()), data.size());
      }
      std::string stored;
      for (uint64_t row = 0; row < 38; ++row) {
        for (uint64_t k = 0; k < 7; ++k) stored += WeightAt(part, 7, row, k);
      }
      EXPECT_EQ(stored, expected) << Traits(dtype).name;
      // Rows past the last are zero.
      for (uint64_t row = 38; row < 48; ++row) {
        for (uint64_t k = 0; k < 7; ++k) {
          ASSERT_EQ(WeightAt(part, 7, row, k), std::string(WeightTypeBytes(type), 0));
        }
      }
    }
  }
}

TEST_F(CpuWeightsTest, HalvesTakeHalfTheBytesOfFloats) {
  const auto bytes = [&](DType dtype) {
    WeightStore store(ComputeType::kFloat32, &pool_, heartbeat_, {});
    const OwnedTensor tensor = MakeTensor(dtype, 64, 96, 1);
    const WeightRows rows[] = {{&tensor.view, 0, 64}};
    Load(&store, rows);
    EXPECT_EQ(store.matrix_bytes(), store.WeightBytes(tensor.view)) << Traits(dtype).name;
    return store.matrix_bytes();
  };
  EXPECT_EQ(bytes(DType::kF32), 64u * 96 * 4);
  EXPECT_EQ(bytes(DType::kQ8_0), 64u * 96 * 4);
  EXPECT_EQ(bytes(DType::kF16), 64u * 96 * 2);
  EXPECT_EQ(bytes(DType::kBF16), 64u * 96 * 2);
}

// With float32 what is quantised in the file lies beside what is F32 there.
TEST_F(CpuWeightsTest, AlikeTensorsMakeOnePart) {
  const OwnedTensor q4 = MakeTensor(DType::kQ4_1, 16, 32, 1),
                    q8 = MakeTensor(DType::kQ8_0, 16, 32, 2);
  const OwnedTensor f32 = MakeTensor(DType::kF32, 16, 32, 3),
                    f16 = MakeTensor(DType::kF16, 16, 32, 4);
  const OwnedTensor bf16 = MakeTensor(DType::kBF16, 16, 32, 5);
  const WeightRows rows[] = {{&q4.view, 0, 16},  {&q8.view, 0, 16}, {&f32.view, 0, 16},
                             {&f16.view, 0, 16}, {&f16.view, 0, 8}, {&bf16.view, 0, 16}};
  const auto part_rows = [&](ComputeType compute) {
    WeightStore store(compute, &pool_, heartbeat_, {});
    const auto weight = Load(&store, rows);
    std::vector<uint32_t> counts;
    for (const LinearPart& part : weight->parts) counts.push_back(part.rows);
    return counts;
  };
  EXPECT_THAT(part_rows(ComputeType::kFloat32), ElementsAre(48, 24, 16));
  EXPECT_THAT(part_rows(ComputeType::kInt8), ElementsAre(16, 16, 16, 24, 16));
}

TEST_F(CpuWeightsTest, EmbeddingsAreReadFromTheHeadThatHasThemWhole) {
  const auto packed = [&](ComputeType compute, DType dtype, uint64_t begin, uint64_t end) {
    const OwnedTensor table = MakeTensor(dtype, 40, 96, 5);
    WeightStore store(compute, &pool_, heartbeat_, {});
    const auto weight = store.LoadEmbedding(table.view);
    const auto& embedding = static_cast<const CpuEmbedding&>(*weight);
    const WeightRows rows[] = {{&table.view, begin, end}};
    const auto head = Load(&store, rows);
    if (embedding.packed == nullptr) return false;
    EXPECT_EQ(embedding.packed, head->parts[0].quant);
    std::vector<float> row(96), expected(96);
    UnpackQuantRow(embedding.format, embedding.packed, 96, 39, row.data());
    DequantizeRows(table.view, 39, 40, expected.data());
    EXPECT_EQ(row, expected);
    return true;
  };
  EXPECT_TRUE(packed(ComputeType::kInt8, DType::kQ8_0, 0, 40));
  EXPECT_TRUE(packed(ComputeType::kInt8, DType::kQ4_1, 0, 40));
  EXPECT_FALSE(packed(ComputeType::kInt8, DType::kQ8_0, 0, 16));  // a rank's share
  EXPECT_FALSE(packed(ComputeType::kFloat32, DType::kQ8_0, 0, 40));
  EXPECT_FALSE(packed(ComputeType::kInt8OfFloats, DType::kF32, 0, 40));  // rounded
}

// The fake's quantiser is written apart from ours.
TEST_F(CpuWeightsTest, FloatsBecomeQ8_0WhereTheyAreWholeBlocks) {
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
    WeightStore store(ComputeType::kInt8OfFloats, &pool_, heartbeat_, {});
    const OwnedTensor a = MakeTensor(dtype, 40, 96, 1), b = MakeTensor(DType::kF32, 30, 96, 2);
    const WeightRows rows[] = {{&a.view, 3, 40}, {&b.view, 0, 30}};
    const auto weight = Load(&store, rows);
    ASSERT_EQ(weight->parts.size(), 1u) << Traits(dtype).name;
    const LinearPart& part = weight->parts[0];
    ASSERT_NE(part.quant, nullptr);
    EXPECT_EQ(store.matrix_bytes(), 80u * 96 / 32 * 34);

    std::vector<float> values(67 * 96);
    DequantizeRows(a.view, 3, 40, values.data());
    DequantizeRows(b.view, 0, 30, values.data() + 37 * 96);
    const std::string blocks = flotilla::testing::Quantize(DType::kQ8_0, values);
    const TensorView expected = {"q",
                                 DType::kQ8_0,
                                 67,
                                 96,
                                 {reinterpret_cast<const uint8_t*>(blocks.data()), blocks.size()}};
    std::vector<float> quantised(67 * 96);
    DequantizeRows(expected, 0, 67, quantised.data());
    for (size_t i = 0; i < values.size(); ++i) {
      ASSERT_EQ(UnpackQuantWeight(part.format, part.quant, 96, i / 96, i % 96), quantised[i]);
      ASSERT_NEAR(quantised[i], values[i], 0.02);
    }
  }
  const OwnedTensor odd = MakeTensor(DType::kF16, 32, 33, 3);
  WeightStore store(ComputeType::kInt8OfFloats, &pool_, heartbeat_, {});
  const WeightRows rows[] = {{&odd.view, 0, 32}};
  EXPECT_EQ(Load(&store, rows)->parts[0].type, WeightType::kFloat16);
}

TEST_F(CpuWeightsTest, WhatNoScaleHoldsIsRefused) {
  for (const float bad : {NAN, -INFINITY, 1e7f}) {
    std::vector<float> values = testing::RandomFloats(size_t{20} * 64, 1);
    values[777] = bad;
    OwnedTensor tensor;
    tensor.bytes.assign(reinterpret_cast<const char*>(values.data()),
                        values.size() * sizeof(float));
    tensor.view = {"some.weight",
                   DType::kF32,
                   20,
                   64,
                   {reinterpret_cast<const uint8_t*>(tensor.bytes.data()), tensor.bytes.size()}};
    WeightStore store(ComputeType::kInt8OfFloats, &pool_, heartbeat_, {});
    const WeightRows rows[] = {{&tensor.view, 0, 20}};
    const Status status = store.LoadLinear(rows).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()), ::testing::HasSubstr("tensor some.weight"));
  }
}

}  // namespace
}  // namespace flotilla::cpu
