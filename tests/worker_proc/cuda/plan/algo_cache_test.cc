#include "worker_proc/cuda/plan/algo_cache.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>

namespace flotilla::cuda {
namespace {

using ::testing::HasSubstr;

constexpr char kDevice[] = "H200 sm_90";
constexpr char kLibrary[] = "cuBLASLt 13.0";

GemmAlgo Algo(uint64_t number) { return {number, number * 3, 0, 0, 0, 0, 0, ~number}; }

class AlgoCacheTest : public ::testing::Test {
 protected:
  AlgoCacheTest() : path_(::testing::TempDir() + StrCat("/algos-", getpid())) {}
  ~AlgoCacheTest() override { std::filesystem::remove(path_); }

  std::string Bytes() const {
    std::ifstream file(path_, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  void Write(const std::string& bytes) const {
    std::ofstream(path_, std::ios::binary | std::ios::trunc) << bytes;
  }
  // Two choices, saved.
  void SaveTwo() const {
    AlgoCache cache(kDevice, kLibrary);
    cache.Remember({1, 4096, 4096, 0}, Algo(2));
    cache.Remember({8, 4096, 4096, 0}, Algo(1));
    EXPECT_TRUE(cache.changed());
    ASSERT_TRUE(cache.Save(path_).ok());
    EXPECT_FALSE(cache.changed());
  }
  const std::string path_;
};

TEST_F(AlgoCacheTest, TheNextStartKnowsWhatThisOneChose) {
  SaveTwo();
  AlgoCache cache(kDevice, kLibrary);
  const Status loaded = cache.Load(path_);
  ASSERT_TRUE(loaded.ok()) << loaded;
  EXPECT_EQ(cache.size(), 2u);
  EXPECT_FALSE(cache.changed());
  ASSERT_NE(cache.Find({1, 4096, 4096, 0}), nullptr);
  EXPECT_EQ(*cache.Find({1, 4096, 4096, 0}), Algo(2));
  EXPECT_EQ(*cache.Find({8, 4096, 4096, 0}), Algo(1));
  EXPECT_EQ(cache.Find({8, 4096, 4096, 1}), nullptr) << "another type";
  EXPECT_EQ(cache.Find({16, 4096, 4096, 0}), nullptr) << "other rows";
  cache.Remember({8, 4096, 4096, 0}, Algo(3));
  EXPECT_EQ(*cache.Find({8, 4096, 4096, 0}), Algo(3));
  EXPECT_TRUE(cache.changed());
}

TEST_F(AlgoCacheTest, AnotherDeviceOrLibraryIsAnotherCache) {
  SaveTwo();
  for (auto [device, library] : {std::pair{"A100 sm_80", kLibrary}, {kDevice, "cuBLASLt 12.9"}}) {
    AlgoCache cache(device, library);
    EXPECT_TRUE(absl::IsFailedPrecondition(cache.Load(path_)));
    EXPECT_EQ(cache.size(), 0u);
  }
  EXPECT_TRUE(absl::IsNotFound(AlgoCache(kDevice, kLibrary).Load(path_ + "-none")));
}

TEST_F(AlgoCacheTest, NoDamageIsBelieved) {
  SaveTwo();
  const std::string good = Bytes();
  ASSERT_GT(good.size(), 150u);
  for (size_t i = 0; i < good.size(); ++i) {
    std::string bad = good;
    bad[i] = static_cast<char>(bad[i] ^ 0x10);
    Write(bad);
    AlgoCache cache(kDevice, kLibrary);
    EXPECT_FALSE(cache.Load(path_).ok()) << "byte " << i;
    EXPECT_EQ(cache.size(), 0u);
    Write(good.substr(0, i));
    EXPECT_FALSE(cache.Load(path_).ok()) << "cut off at " << i;
  }
  Write(good + "x");
  EXPECT_TRUE(absl::IsDataLoss(AlgoCache(kDevice, kLibrary).Load(path_)));
  Write(good);
  EXPECT_TRUE(AlgoCache(kDevice, kLibrary).Load(path_).ok());
}

TEST_F(AlgoCacheTest, WhatOthersMayWriteIsNotTrusted) {
  SaveTwo();
  std::filesystem::permissions(path_, std::filesystem::perms::others_write,
                               std::filesystem::perm_options::add);
  EXPECT_TRUE(absl::IsPermissionDenied(AlgoCache(kDevice, kLibrary).Load(path_)));
}

TEST_F(AlgoCacheTest, AFolderThatCantBeWrittenIsSaid) {
  const Status status = AlgoCache(kDevice, kLibrary).Save("/proc/algos");
  EXPECT_THAT(std::string(status.message()), HasSubstr("can't create /proc/algos"));
}

TEST(WeightCopiesTest, NoCopyIsInTheCacheWhenItComesAgain) {
  constexpr uint64_t kMiB = 1 << 20;
  for (const uint64_t weight : {1 * kMiB, 3 * kMiB, 50 * kMiB, 400 * kMiB}) {
    const uint32_t copies = WeightCopies(weight, 50 * kMiB);
    EXPECT_GE((copies - 1) * weight, 100 * kMiB);
    EXPECT_LT((copies - 1) * weight, 100 * kMiB + weight);
  }
  EXPECT_EQ(WeightCopies(8 << 10, 50 * kMiB), 256u) << "nobody waits for thousands";
}

}  // namespace
}  // namespace flotilla::cuda
