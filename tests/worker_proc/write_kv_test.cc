// What write_kv leaves in the cache: each token where attention reads it, rounded as kernels.h
// says.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "tests/worker_proc/attention_problem.h"

namespace flotilla::cpu {
namespace {

using testing::RandomFloats;

template <typename Kv>
void ExpectWritten(KvType type, float (*as_float)(Kv)) {
  const KvGeometry kv{4, 2, 3, 5, type};
  const auto k = RandomFloats(3 * 2 * 8, 1);
  std::vector<Kv> k_pages(3 * 2 * kv.k_head_size(), 0), v_pages(3 * 2 * kv.v_head_size(), 0);
  const int64_t slots[] = {2 * 4 + 3, -1, 4};
  // A token's row: k heads (2 x 3), then v heads (2 x 5).
  ReferenceKernels().write_kv(
      {kv, k.data(), k.data() + 6, 16, slots, 3, k_pages.data(), v_pages.data()});
  const auto kept = [&](float x) {
    return type == KvType::kFloat32 ? x : FromBFloat16(ToBFloat16(x));
  };
  for (uint32_t h = 0; h < 2; ++h) {
    for (uint32_t d = 0; d < 3; ++d) {
      EXPECT_EQ(as_float(k_pages[((2 * 2 + h) * 3 + d) * 4 + 3]), kept(k[h * 3 + d]));
      EXPECT_EQ(as_float(k_pages[((1 * 2 + h) * 3 + d) * 4 + 0]), kept(k[2 * 16 + h * 3 + d]));
    }
    for (uint32_t d = 0; d < 5; ++d) {
      EXPECT_EQ(as_float(v_pages[((2 * 2 + h) * 4 + 3) * 5 + d]), kept(k[6 + h * 5 + d]));
    }
  }
  const auto written = [](const std::vector<Kv>& pages) {
    return std::count_if(pages.begin(), pages.end(), [](Kv x) { return x != 0; });
  };
  EXPECT_EQ(written(k_pages), 2 * 2 * 3);
  EXPECT_EQ(written(v_pages), 2 * 2 * 5);
}

TEST(WriteKvTest, PutsEachTokenWhereAttentionReadsItAndSkipsMinusOne) {
  ExpectWritten<float>(KvType::kFloat32, [](float x) { return x; });
  ExpectWritten<uint16_t>(KvType::kBFloat16, FromBFloat16);
}

// The cache after writing K rows of 3 and V rows of 5 to the slots 0, 1, … of one head.
struct Int8Cache {
  explicit Int8Cache(const std::vector<float>& rows)
      : k(2 * kv.k_head_bytes(), 0x55), v(2 * kv.v_head_bytes(), 0x55) {
    const auto tokens = static_cast<uint32_t>(rows.size() / 8);
    std::vector<int64_t> slots(tokens);
    for (uint32_t t = 0; t < tokens; ++t) slots[t] = t;
    ReferenceKernels().write_kv(
        {kv, rows.data(), rows.data() + 3, 8, slots.data(), tokens, k.data(), v.data()});
  }
  int8_t K(uint32_t slot, uint32_t d) const {
    return static_cast<int8_t>(k[slot / 4 * kv.k_head_bytes() + d * 4 + slot % 4]);
  }
  int8_t V(uint32_t slot, uint32_t d) const {
    return static_cast<int8_t>(v[slot / 4 * kv.v_head_bytes() + slot % 4 * 5 + d]);
  }
  float KScale(uint32_t slot) const { return Scale(&k[slot / 4 * kv.k_head_bytes() + 12], slot); }
  float VScale(uint32_t slot) const { return Scale(&v[slot / 4 * kv.v_head_bytes() + 20], slot); }
  static float Scale(const uint8_t* scales, uint32_t slot) {
    float scale;
    std::memcpy(&scale, scales + slot % 4 * sizeof(scale), sizeof(scale));
    return scale;
  }

  const KvGeometry kv{4, 1, 3, 5, KvType::kInt8};
  std::vector<uint8_t> k, v;
};

TEST(WriteKvTest, Int8RowsHaveAScaleOfTheirOwnBesideThem) {
  const auto rows = RandomFloats(6 * 8, 3);
  const Int8Cache cache(rows);
  EXPECT_EQ(cache.k.size(), 2 * 4 * (3 + 4u));
  for (uint32_t slot = 0; slot < 6; ++slot) {
    const float* const row = rows.data() + slot * 8;
    int8_t k[3], v[5];
    EXPECT_EQ(cache.KScale(slot), testing::QuantizeRow({row, row + 3}, k));
    EXPECT_EQ(cache.VScale(slot), testing::QuantizeRow({row + 3, row + 8}, v));
    for (uint32_t d = 0; d < 3; ++d) {
      EXPECT_EQ(cache.K(slot, d), k[d]);
      EXPECT_NEAR(cache.K(slot, d) * cache.KScale(slot), row[d], cache.KScale(slot) * 0.5001);
    }
    for (uint32_t d = 0; d < 5; ++d) EXPECT_EQ(cache.V(slot, d), v[d]);
  }
  // The other slots of the second page are as they were.
  for (uint32_t d = 0; d < 3; ++d) EXPECT_EQ(cache.K(6, d), 0x55);
  EXPECT_EQ(cache.v[cache.kv.v_head_bytes() + 2 * 5], 0x55);
}

TEST(WriteKvTest, Int8RoundsToNearestEvenAndKeepsWithin127) {
  // 127 is the largest of K, so its elements are the values rounded.
  const Int8Cache cache({0.5f, 1.5f, -127.0f, 0, 0, 0, 0, 0,  //
                         -2.5f, 126.5f, 127.0f, 0, 0, 0, 0, 0});
  EXPECT_EQ(cache.KScale(0), 1.0f);
  EXPECT_EQ(cache.K(0, 0), 0);
  EXPECT_EQ(cache.K(0, 1), 2);
  EXPECT_EQ(cache.K(0, 2), -127);
  EXPECT_EQ(cache.K(1, 0), -2);
  EXPECT_EQ(cache.K(1, 1), 126);
  EXPECT_EQ(cache.K(1, 2), 127);
}

TEST(WriteKvTest, Int8OfZerosTinyHugeAndNonFiniteRowsIsDefined) {
  const float inf = std::numeric_limits<float>::infinity();
  const Int8Cache cache({0,       -0.0f,    0, 1, 2, 3,   4, 5,    // zeros
                         0,       9e-31f,   0, 1, 2, 3,   4, 5,    // too small for a scale
                         3.4e38f, -1.7e38f, 1, 1, 2, 3,   4, 5,    // near the largest
                         1,       inf,      1, 1, 2, 3,   4, 5,    // K is infinite
                         1,       2,        3, 1, 2, NAN, 4, 5});  // V is none
  for (const uint32_t slot : {0u, 1u}) {
    EXPECT_EQ(cache.KScale(slot), 0);
    for (uint32_t d = 0; d < 3; ++d) EXPECT_EQ(cache.K(slot, d), 0);
    EXPECT_EQ(cache.VScale(slot), 5 / 127.0f);
  }
  EXPECT_EQ(cache.KScale(2), 3.4e38f / 127);
  EXPECT_EQ(cache.K(2, 0), 127);
  EXPECT_EQ(cache.K(2, 1), -64);
  EXPECT_EQ(cache.K(2, 2), 0);
  for (const uint32_t slot : {3u, 4u}) {
    EXPECT_TRUE(std::isnan(cache.KScale(slot)));
    EXPECT_TRUE(std::isnan(cache.VScale(slot)));
    for (uint32_t d = 0; d < 3; ++d) EXPECT_EQ(cache.K(slot, d), 0);
    for (uint32_t d = 0; d < 5; ++d) EXPECT_EQ(cache.V(slot, d), 0);
  }
}

TEST(WriteKvTest, RotationIsTheWalshHadamardMatrix) {
  for (const uint32_t dim : {1u, 3u, 8u, 24u, 64u, 80u, 256u, 512u}) {
    const auto x = RandomFloats(dim, dim);
    std::vector<float> rotated(dim);
    RotateRow(x.data(), dim, rotated.data());
    EXPECT_LT(testing::RelativeError(rotated, testing::Rotated({x.begin(), x.end()})), 1e-6) << dim;
  }
  EXPECT_EQ(RotationSize(64), 64u);
  EXPECT_EQ(RotationSize(80), 16u);
  EXPECT_EQ(RotationSize(512), 256u);
}

// A channel that stands out costs the others nothing but a little of the scale.
TEST(WriteKvTest, Int8KeysAreRotated) {
  const KvGeometry kv{2, 1, 64, 4, KvType::kInt8};
  auto row = RandomFloats(64 + 4, 5);
  row[7] = 30;
  std::vector<uint8_t> k(kv.k_head_bytes()), v(kv.v_head_bytes());
  const int64_t slot = 1;
  ReferenceKernels().write_kv({kv, row.data(), row.data() + 64, 68, &slot, 1, k.data(), v.data()});
  const float scale = Int8Cache::Scale(&k[64 * 2], 1);
  std::vector<double> meant(64);
  for (uint32_t d = 0; d < 64; ++d) meant[d] = double{scale} * static_cast<int8_t>(k[d * 2 + 1]);
  meant = testing::Rotated(meant);
  double squares = 0;
  for (uint32_t d = 0; d < 64; ++d) squares += (meant[d] - row[d]) * (meant[d] - row[d]);
  // Unrotated, an error of up to half of 30 / 127 would be even over each channel.
  const double unrotated = 30.0 / 127 / std::sqrt(12);
  EXPECT_LT(std::sqrt(squares / 64), unrotated / 2);
  EXPECT_GT(squares, 0);
}

TEST(BFloat16Test, RoundsToNearestEvenAndKeepsWhatIsSpecial) {
  EXPECT_EQ(FromBFloat16(0x3f80), 1.0f);
  EXPECT_EQ(ToBFloat16(1.0f), 0x3f80);
  EXPECT_EQ(ToBFloat16(1.0f + 0x1p-8f), 0x3f80);             // a tie, to even
  EXPECT_EQ(ToBFloat16(1.0f + 0x3p-8f), 0x3f82);             // a tie, to even
  EXPECT_EQ(ToBFloat16(1.0f + 0x1p-8f + 0x1p-20f), 0x3f81);  // past the tie
  EXPECT_EQ(ToBFloat16(-0.0f), 0x8000);
  EXPECT_EQ(ToBFloat16(3.4e38f), 0x7f80);  // beyond the largest: infinity
  EXPECT_EQ(ToBFloat16(std::numeric_limits<float>::infinity()), 0x7f80);
  EXPECT_TRUE(std::isnan(FromBFloat16(ToBFloat16(std::nanf("")))));
  uint32_t bits = 0x7f800001;  // a NaN whose upper half is an infinity's
  float nan;
  std::memcpy(&nan, &bits, sizeof(nan));
  EXPECT_TRUE(std::isnan(FromBFloat16(ToBFloat16(nan))));
}

}  // namespace
}  // namespace flotilla::cpu
