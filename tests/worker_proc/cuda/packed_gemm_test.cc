// Products with weights in blocks of 4 to 8 bits, emulated: the same bits as with the matrix that
// DequantizeRows and rounding make of them, for every type, any number of rows and any rows beside.
#include <gtest/gtest.h>

#include <random>

#include "common/base/check.h"
#include "common/checkpoint/checkpoint.h"
#include "common/checkpoint/float8.h"
#include "tests/fakes/gguf_builder.h"
#include "tests/worker_proc/cuda/device_values.h"
#include "worker_proc/cuda/emulation/launch_queue.h"
#include "worker_proc/cuda/float8_blocks.h"
#include "worker_proc/runner/forward_batch.h"

namespace flotilla::cuda {
namespace {

using testing::kSeeds;
using testing::RandomFloats;
using testing::Table;
using testing::Values;

constexpr DType kPackedTypes[] = {DType::kQ4_0, DType::kQ4_1, DType::kQ5_0,
                                  DType::kQ5_1, DType::kQ8_0, DType::kQ4_K,
                                  DType::kQ5_K, DType::kQ6_K, DType::kF8E4M3};
constexpr Element kHalves[] = {Element::kBFloat16, Element::kFloat16};

// A matrix in blocks, which begin `shift` bytes behind an aligned address, and as elements.
class PackedMatrix {
 public:
  PackedMatrix(DType dtype, uint32_t rows, uint32_t cols, uint32_t shift, Element type)
      : expanded(type, size_t{rows} * cols), shift_(shift) {
    TensorView view = {"w", dtype, rows, cols, {}};
    std::string data;
    ScaleGrid scales = {.block_rows = 3, .block_cols = 128};
    if (dtype == DType::kF8E4M3) {
      std::mt19937 random(rows + cols);
      while (data.size() < size_t{rows} * cols) {
        const auto bits = static_cast<uint8_t>(random());
        if (!IsNanE4M3(bits)) data.push_back(static_cast<char>(bits));
      }
      scales.factors = RandomFloats(size_t{rows} * cols / 128 + 1, 3, 0.01f);
      view.scales = &scales;
    } else {
      data = flotilla::testing::Quantize(dtype, RandomFloats(size_t{rows} * cols, rows + cols));
    }
    view.data = {reinterpret_cast<const uint8_t*>(data.data()), data.size()};
    std::string blocks = data;
    if (dtype == DType::kF8E4M3) {
      blocks.resize(rows * Float8RowBytes(view));
      CHECK_OK(PackFloat8(view, 0, rows, reinterpret_cast<uint8_t*>(blocks.data())));
    }
    packs_.resize((shift + blocks.size() + kPackedEnd) / sizeof(packs_[0]) + 1);
    std::memset(packs_.data(), 0xff, packs_.size() * sizeof(packs_[0]));
    std::memcpy(reinterpret_cast<char*>(packs_.data()) + shift, blocks.data(), blocks.size());
    std::vector<float> floats(size_t{rows} * cols);
    DequantizeRows(view, 0, rows, floats.data());
    for (size_t i = 0; i < floats.size(); ++i) expanded.Set(i, floats[i]);
  }
  const void* blocks() const { return reinterpret_cast<const char*>(packs_.data()) + shift_; }

  Values expanded;

 private:
  const uint32_t shift_;
  std::vector<Pack<uint8_t>> packs_;
};

// What skinny_gemm makes of the elements, kSkinnyRows rows at a time.
Values Expected(const GemvArgs& product, uint32_t rows) {
  Values y(product.y_type, size_t{rows} * product.out_features);
  for (uint32_t row = 0; row < rows; row += kSkinnyRows) {
    SkinnyGemmArgs part = {product, std::min(kSkinnyRows, rows - row)};
    part.matrix.x = static_cast<const uint16_t*>(product.x) + size_t{row} * product.in_features;
    part.matrix.y = static_cast<std::byte*>(y.data()) +
                    size_t{row} * product.out_features * ElementBytes(product.y_type);
    Table().skinny_gemm(part, nullptr);
  }
  return y;
}

TEST(PackedGemmTest, HasTheBitsOfTheExpandedMatrix) {
  struct Shape {
    uint32_t out, in;
    uint32_t shift;  // even; where the blocks of a part of a matrix may begin
  };
  for (const DType dtype : kPackedTypes) {
    // Of whole chunks; of a chunk and a half; wide, for blocks of several warps.
    const uint32_t odd = Traits(dtype).block_values == 32 ? 96
                         : dtype == DType::kF8E4M3        ? 128
                                                          : 256;
    for (const Shape shape :
         {Shape{40, 512, 0}, {13, 256 + odd, 6}, {1, odd, 14}, {2056, 256, 2}}) {
      for (const Element type : kHalves) {
        const PackedMatrix weight(dtype, shape.out, shape.in, shape.shift, type);
        const uint32_t most = shape.out > 1000 ? 2 : 70;
        const Values x(type, RandomFloats(size_t{most} * shape.in, 9));
        const auto bias = RandomFloats(shape.out, 10);
        for (const uint32_t rows : {1u, 2u, 17u, 32u, 70u}) {
          if (rows > most) continue;
          const bool biased = rows % 2 == 0;
          const Element y_type = rows == 17 ? type : Element::kFloat32;
          const GemvArgs product = {
              weight.expanded.data(),         type,    shape.out, shape.in, x.data(),
              biased ? bias.data() : nullptr, nullptr, y_type};
          const Values expected = Expected(product, rows);
          // In the middle of wider rows, whose other columns stay as they are.
          const uint32_t y_stride = shape.out + 5;
          for (const uint64_t seed : {kSeeds[0], kSeeds[1]}) {
            emulation::SetSeed(seed);
            Values y(y_type, size_t{rows} * y_stride);
            PackedGemmArgs args = {product, dtype, rows, y_stride};
            args.matrix.weight = weight.blocks();
            args.matrix.y = static_cast<std::byte*>(y.data()) + 2 * ElementBytes(y_type);
            Table().packed_gemm(args, nullptr);
            for (uint32_t row = 0; row < rows; ++row) {
              for (uint32_t c = 0; c < y_stride; ++c) {
                const float value = y.At(size_t{row} * y_stride + c);
                const bool outside = c < 2 || c >= shape.out + 2;
                ASSERT_EQ(std::isnan(value), outside) << row << " " << c;
                if (outside) continue;
                ASSERT_EQ(value, expected.At(size_t{row} * shape.out + c - 2))
                    << Traits(dtype).name << " " << shape.out << " x " << shape.in << ", row "
                    << row << " of " << rows << ", column " << c - 2;
              }
            }
          }
        }
      }
    }
  }
}

TEST(PackedGemmTest, GatesHaveTheBitsOfAProductAndItsGate) {
  constexpr uint32_t kOut = 21, kIn = 512;
  for (const DType dtype : kPackedTypes) {
    for (const Element type : kHalves) {
      const PackedMatrix weight(dtype, 2 * kOut, kIn, 4, type);
      const Values x(type, RandomFloats(size_t{33} * kIn, 9));
      for (const HiddenAct act : {HiddenAct::kSilu, HiddenAct::kGeluTanh}) {
        for (const uint32_t rows : {1u, 16u, 33u}) {
          const GemvArgs product = {
              weight.expanded.data(), type, 2 * kOut, kIn, x.data(), nullptr, nullptr, type};
          const Values gate_up = Expected(product, rows);
          Values expected(type, size_t{rows} * kOut);
          Table().act_mul({gate_up.data(), type, act, rows, kOut, expected.data()}, nullptr);
          Values y(type, size_t{rows} * kOut);
          const GemvArgs gated = {weight.blocks(), type,     kOut, kIn,  x.data(),
                                  nullptr,         y.data(), type, true, act};
          Table().packed_gemm({gated, dtype, rows, kOut}, nullptr);
          EXPECT_TRUE(y == expected) << Traits(dtype).name << ", rows " << rows;
        }
      }
    }
  }
}

TEST(ExpandTest, GivesTheElements) {
  for (const DType dtype : kPackedTypes) {
    for (const Element type : kHalves) {
      const PackedMatrix weight(dtype, 11, 512, 2, type);
      std::vector<Pack<uint16_t>> packs(11 * 512 / 8);
      Table().expand({weight.blocks(), dtype, 11 * 512, packs.data(), type}, nullptr);
      EXPECT_EQ(std::memcmp(packs.data(), weight.expanded.data(), 11 * 512 * 2), 0)
          << Traits(dtype).name;
    }
  }
}

// Products ask for their weights before the kernel before is done, but not for an expanded copy.
TEST(ExpandTest, WhatItWritesIsNotReadTooEarly) {
  constexpr uint32_t kOut = 24;
  for (const uint32_t in : {256u, 4352u}) {  // all of the weights at hand, and streamed
    const PackedMatrix weight(DType::kQ4_K, kOut, in, 0, Element::kBFloat16);
    const Values x(Element::kBFloat16, RandomFloats(size_t{2} * in, 9));
    GemvArgs product = {weight.expanded.data(), Element::kBFloat16, kOut, in, x.data()};
    const Values expected = Expected(product, 2);
    EXPECT_EQ(IsResident({product, 2}), in == 256);
    for (uint64_t seed = 1; seed <= 20; ++seed) {
      emulation::SetSeed(seed);
      std::vector<Pack<uint16_t>> copy(kOut * in / 8);
      Values y(Element::kFloat32, size_t{2} * kOut);
      product.weight = copy.data();
      product.y = y.data();
      product.weight_is_new = true;
      emulation::LaunchQueue queue;
      Table().expand({weight.blocks(), DType::kQ4_K, uint64_t{kOut} * in, copy.data()}, &queue);
      Table().skinny_gemm({product, 2}, &queue);
      queue.Drain();
      EXPECT_TRUE(y == expected) << in << " seed " << seed;
    }
  }
}

TEST(PackedEmbeddingTest, HasTheBitsOfTheExpandedTable) {
  for (const DType dtype : kPackedTypes) {
    for (const Element type : kHalves) {
      const PackedMatrix table(dtype, 11, 512, 0, type);
      const std::vector<int32_t> ids = {10, TokenOfSlot(1), 3, TokenOfSlot(0)};
      const std::vector<int32_t> last_tokens = {-1, 7};
      std::vector<float> out(ids.size() * 512);
      EmbeddingArgs args = {table.blocks(), type,       ids.data(),        4, 512,
                            2.5f,           out.data(), last_tokens.data()};
      Table().packed_embedding({args, dtype}, nullptr);
      std::vector<float> expected(out.size());
      args.table = table.expanded.data();
      args.out = expected.data();
      Table().embedding(args, nullptr);
      EXPECT_EQ(out, expected) << Traits(dtype).name;
    }
  }
}

}  // namespace
}  // namespace flotilla::cuda
