#include "shm/cache_lines.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

namespace flotilla {
namespace {

TEST(CacheLinesTest, TakesEveryByteAndWritesToEveryLine) {
  alignas(kCacheLineBytes) std::byte from[512];
  for (size_t bytes = 0; bytes <= 300; ++bytes) {
    std::vector<std::byte> out(bytes + 1, std::byte{0xee});
    for (size_t i = 0; i < sizeof(from); ++i)
      from[i] = static_cast<std::byte>(1 + (i + bytes) % 255);
    const std::vector<std::byte> expected(from, from + bytes);
    TakeBytes(from, bytes, out.data());
    ASSERT_EQ(out.back(), std::byte{0xee}) << bytes;
    out.pop_back();
    ASSERT_EQ(out, expected) << bytes;
    for (size_t i = 0; i < sizeof(from); i += kCacheLineBytes)
      ASSERT_EQ(from[i] == std::byte{0}, i < bytes) << bytes << " " << i;
  }
}

// Of very different sizes: another order of addition gives other bits.
float Value(size_t part, size_t i) {
  return std::ldexp(1.0f + 0.37f * static_cast<float>((i * 7 + part * 3) % 97),
                    static_cast<int>((part * 11 + i) % 24));
}

TEST(CacheLinesTest, SumsInOrderIntoAPartAndElsewhere) {
  for (size_t num_parts = 1; num_parts <= 5; ++num_parts) {
    for (size_t count : {0u, 1u, 15u, 16u, 17u, 511u, 512u, 513u, 1300u}) {
      for (size_t own = 0; own < num_parts; ++own) {
        SCOPED_TRACE(testing::Message() << num_parts << " " << count << " " << own);
        std::vector<std::vector<float>> data(num_parts, std::vector<float>(count));
        std::vector<float> expected(count), elsewhere(count);
        std::vector<const float*> parts;
        for (size_t p = 0; p < num_parts; ++p) {
          for (size_t i = 0; i < count; ++i) data[p][i] = Value(p, i);
          for (size_t i = 0; i < count; ++i) expected[i] += data[p][i];
          parts.push_back(data[p].data());
        }
        float* const outs[] = {data[own].data(), elsewhere.data()};
        SumInOrder(parts, outs, count);
        ASSERT_EQ(data[own], expected);
        ASSERT_EQ(elsewhere, expected);
      }
    }
  }
}

// What two ranks do: each sum goes where its summands were.
TEST(CacheLinesTest, EveryPartMayBeAnOut) {
  for (size_t num_parts : {2u, 3u}) {
    std::vector<std::vector<float>> data(num_parts, std::vector<float>(700));
    std::vector<float> expected(700);
    std::vector<const float*> parts;
    std::vector<float*> outs;
    for (size_t p = 0; p < num_parts; ++p) {
      for (size_t i = 0; i < 700; ++i) expected[i] += data[p][i] = Value(p, i);
      parts.push_back(data[p].data());
      outs.push_back(data[p].data());
    }
    SumInOrder(parts, outs, 700);
    for (const std::vector<float>& out : data) EXPECT_EQ(out, expected);
  }
}

}  // namespace
}  // namespace flotilla
