// Against the xxhash package of Python (python-xxhash 3.x), whose xxh64 gave these figures.
#include "common/base/xxh64.h"

#include <gtest/gtest.h>

#include <string>

namespace flotilla {
namespace {

// The first bytes of a fixed sequence.
std::string Bytes(size_t count) {
  std::string bytes;
  uint64_t x = 12345;
  while (bytes.size() < count) {
    x = (x * 1103515245 + 12345) % (uint64_t{1} << 31);
    bytes.push_back(static_cast<char>(x >> 16));
  }
  return bytes;
}

TEST(Xxh64Test, IsWhatTheReferenceGives) {
  const struct {
    size_t bytes;
    uint64_t hash, seeded;
  } cases[] = {
      {0, 0xef46db3751d8e999, 0x0b303d920ec349df},
      {1, 0xa8b77899b16d622d, 0x28d9933870c658a4},
      {3, 0x6fe9243068a4af97, 0xdfe23263e55bf68d},
      {4, 0x64d032f505ca3d2c, 0x56c72b36b018a725},
      {7, 0xb2dabaca31b70eaa, 0x4ac7aa483ac77689},
      {8, 0x5d6680cf1e88edbf, 0xeb7c34d2506d4f37},
      {14, 0x3927a4656de4e6fb, 0x425fe25f583839e2},
      {31, 0xd7dd0622b1ddd03a, 0x3a7a1efcd71cfa31},
      {32, 0xcf01c3b2a77d9c5e, 0x9f68b15dea057eca},
      {33, 0x810c1d48fa3f91d4, 0x41976b3ceb11b1ee},
      {63, 0x73c2d162ca29b60e, 0xc5f1cd72ae985c79},
      {64, 0xf93a37dd952b1111, 0x985c1fce990f444d},
      {95, 0x1994a8016f387362, 0x69d2fc5308a427b4},
      {100, 0x69a34abfd179a55e, 0x7138abcf6a7c3a04},
      {1000, 0x2a86f8f37d6c0ad8, 0x15f2f6a499210937},
      {4096, 0x77d3f75be8fcf7c9, 0x166ed67dfdd94049},
      {65537, 0x0a66eb5c564308a9, 0x02e28389a49502f6},
  };
  for (const auto& c : cases) {
    EXPECT_EQ(Xxh64(Bytes(c.bytes)), c.hash) << c.bytes;
    EXPECT_EQ(Xxh64(Bytes(c.bytes), 0x9e3779b185ebca8d), c.seeded) << c.bytes;
  }
  EXPECT_EQ(Xxh64("abc"), 0x44bc2cf5ad770999u);
}

TEST(Xxh64Test, FindsEveryFlippedBit) {
  std::string bytes = Bytes(200);
  const uint64_t whole = Xxh64(bytes);
  for (size_t bit = 0; bit < bytes.size() * 8; ++bit) {
    bytes[bit / 8] = static_cast<char>(bytes[bit / 8] ^ (1 << bit % 8));
    EXPECT_NE(Xxh64(bytes), whole) << bit;
    bytes[bit / 8] = static_cast<char>(bytes[bit / 8] ^ (1 << bit % 8));
  }
}

}  // namespace
}  // namespace flotilla
