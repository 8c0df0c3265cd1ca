#include "worker_proc/cuda/plan/algo_cache.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <thread>

#include "shm/segment.h"

namespace flotilla::cuda {
namespace {

using ::testing::HasSubstr;

constexpr char kDevice[] = "H200 sm_90";
constexpr char kLibrary[] = "cuBLASLt 13.0";

GemmAlgo Algo(uint64_t number) { return {number, number * 3, 0, 0, 0, 0, 0, ~number}; }

// A timer that knows what each algorithm takes, and counts.
struct FakeTimer {
  std::map<uint64_t, int64_t> ns;  // by Algo's number
  int runs = 0;
  AlgoCache::Timer timer() {
    return [this](const GemmKey&, const GemmAlgo& algo) -> StatusOr<int64_t> {
      ++runs;
      const auto at = ns.find(algo[0]);
      if (at == ns.end()) return absl::ResourceExhaustedError("too little workspace");
      // Every fifth run is disturbed.
      return at->second + (runs % 5 == 0 ? 1'000'000 : 0);
    };
  }
};

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
    FakeTimer fake{{{1, 500}, {2, 300}}};
    const GemmAlgo candidates[] = {Algo(1), Algo(2)};
    ASSERT_TRUE(cache.Choose({1, 4096, 4096, 0}, candidates, fake.timer()).ok());
    ASSERT_TRUE(cache.Choose({8, 4096, 4096, 0}, {candidates, 1}, fake.timer()).ok());
    EXPECT_TRUE(cache.changed());
    ASSERT_TRUE(cache.Save(path_).ok());
  }
  const std::string path_;
};

TEST_F(AlgoCacheTest, TheFastestIsChosenOnce) {
  AlgoCache cache(kDevice, kLibrary);
  FakeTimer fake{{{1, 500}, {2, 300}, {4, 300}}};
  const GemmAlgo candidates[] = {Algo(1), Algo(3), Algo(2), Algo(4)};  // 3 can't run
  const GemmKey key{16, 1536, 576, 1};
  EXPECT_EQ(*cache.Choose(key, candidates, fake.timer()), Algo(2)) << "the first of equals";
  const int runs = fake.runs;
  EXPECT_EQ(*cache.Choose(key, candidates, fake.timer()), Algo(2));
  EXPECT_EQ(fake.runs, runs) << "it was timed again";
  EXPECT_EQ(cache.Find({16, 1536, 576, 0}), nullptr) << "another type";

  const GemmAlgo none[] = {Algo(7)};
  EXPECT_THAT(std::string(cache.Choose({1, 2, 3, 0}, none, fake.timer()).status().message()),
              HasSubstr("none of 1 algorithms multiplies [1, 3] by [2, 3]"));
  const auto broken = [](const GemmKey&, const GemmAlgo&) -> StatusOr<int64_t> {
    return absl::InternalError("the device is lost");
  };
  EXPECT_TRUE(absl::IsInternal(cache.Choose({1, 2, 3, 0}, none, broken).status()));
}

TEST_F(AlgoCacheTest, TheNextStartTimesNothing) {
  SaveTwo();
  AlgoCache cache(kDevice, kLibrary);
  const Status loaded = cache.Load(path_);
  ASSERT_TRUE(loaded.ok()) << loaded;
  EXPECT_EQ(cache.size(), 2u);
  EXPECT_FALSE(cache.changed());
  FakeTimer fake;
  const GemmAlgo candidates[] = {Algo(1), Algo(2)};
  EXPECT_EQ(*cache.Choose({1, 4096, 4096, 0}, candidates, fake.timer()), Algo(2));
  EXPECT_EQ(*cache.Choose({8, 4096, 4096, 0}, candidates, fake.timer()), Algo(1));
  EXPECT_EQ(fake.runs, 0);
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

TEST_F(AlgoCacheTest, AFolderThatCantBeWrittenIsSaid) {
  const Status status = AlgoCache(kDevice, kLibrary).Save("/proc/algos");
  EXPECT_THAT(std::string(status.message()), HasSubstr("can't create /proc/algos"));
}

TEST_F(AlgoCacheTest, RankZerosChoiceIsEveryones) {
  const auto segment = Segment::Create("test-algos", CollectiveSegmentBytes(2, 4096));
  ASSERT_TRUE(segment.ok() && InitCollective(*segment, 2, 4096).ok());
  std::vector<std::thread> ranks;
  for (uint32_t rank = 0; rank < 2; ++rank) {
    ranks.emplace_back([&, rank] {
      ShmCollectiveOptions options;
      options.rank = rank;
      const auto collective = AttachShmCollective(&*segment, options);
      ASSERT_TRUE((*collective)->Reset(1).ok());
      AlgoCache cache(kDevice, kLibrary);
      FakeTimer fake{{{1, rank == 0 ? 100 : 900}, {2, 500}}};  // each device has its own mood
      const GemmAlgo candidates[] = {Algo(1), Algo(2)};
      ASSERT_TRUE(cache.Choose({1, 2, 3, 0}, candidates, fake.timer()).ok());
      const Status shared = cache.Share(collective->get());
      ASSERT_TRUE(shared.ok()) << shared;
      EXPECT_EQ(*cache.Find({1, 2, 3, 0}), Algo(1));
    });
  }
  for (std::thread& thread : ranks) thread.join();
}

TEST(WeightCopiesTest, NoCopyIsInTheCacheWhenItComesAgain) {
  constexpr uint64_t kMiB = 1 << 20;
  for (const uint64_t weight : {1 * kMiB, 3 * kMiB, 50 * kMiB, 400 * kMiB}) {
    const uint32_t copies = WeightCopies(weight, 50 * kMiB);
    EXPECT_GE((copies - 1) * weight, 100 * kMiB);
    EXPECT_LT((copies - 1) * weight, 100 * kMiB + weight);
  }
}

}  // namespace
}  // namespace flotilla::cuda
