// The pack cache under whole models: a second start packs nothing and computes the same bits, and
// no state of the file can change them.
#include "worker_proc/cpu/pack_cache.h"

#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <set>

#include "tests/support/temp_folder.h"
#include "tests/worker_proc/model_setups.h"
#include "tests/worker_proc/rank_threads.h"

namespace flotilla {
namespace {

using testing::RankThreads;
using testing::RankThreadsOptions;
namespace fs = std::filesystem;

class PackCacheTest : public ::testing::Test {
 protected:
  void SetUp() override { WriteModel(1); }

  void WriteModel(uint64_t seed) {
    testing::TinyLlamaOptions options;
    options.seed = seed;
    testing::WriteTinyLlama(model_, options);
  }

  struct Start {
    uint64_t probe = 0;
    std::vector<BackendMemory> memory;  // of each rank
  };
  // Waits until `writes` ranks have written their file.
  Start StartRanks(RankThreadsOptions options, size_t writes) {
    auto checkpoint = OpenCheckpoint(model_);
    CHECK_OK(checkpoint.status());
    options.pack_cache.dir = dir_.empty() ? cache_ : dir_;
    options.pack_cache.model_path = model_;
    options.pack_cache.model_identity = cpu::ModelIdentity(model_, **checkpoint);
    const std::set<uint64_t> before = Inodes();
    RankThreads ranks(checkpoint->get(), options);
    Start start{ranks.probe_hash(), {}};
    for (uint32_t r = 0; r < options.tp; ++r) start.memory.push_back(ranks.backend(r).memory());
    const int64_t deadline_ns = RealClock::Now() + 60 * kNsPerSecond;
    const auto written = [&] {
      const std::set<uint64_t> now = Inodes();
      return static_cast<size_t>(std::count_if(
          now.begin(), now.end(), [&](uint64_t inode) { return !before.contains(inode); }));
    };
    while (written() < writes) {
      CHECK(RealClock::Now() < deadline_ns);
      std::this_thread::yield();
    }
    return start;
  }
  // Finished ones.
  std::vector<std::string> Files() const {
    std::vector<std::string> files;
    std::error_code error;
    for (const auto& entry : fs::directory_iterator(dir_ == "auto" ? folder_ : cache_, error)) {
      if (entry.path().extension() == ".pack") files.push_back(entry.path());
    }
    return files;
  }
  std::set<uint64_t> Inodes() const {
    std::set<uint64_t> inodes;
    for (const std::string& file : Files()) {
      struct stat info;
      if (stat(file.c_str(), &info) == 0) inodes.insert(info.st_ino);
    }
    return inodes;
  }

  const testing::TempFolder temp_;
  const std::string& folder_ = temp_.path();
  const std::string model_ = folder_ + "/model.gguf", cache_ = folder_ + "/cache";
  std::string dir_;  // --pack-cache-dir; empty: cache_
};

TEST_F(PackCacheTest, TheSecondStartPacksNothing) {
  size_t files = 0;
  for (const auto dtype : {testing::kInt8, testing::kFloat}) {
    for (uint32_t tp = 1; tp <= 3; ++tp) {
      RankThreadsOptions options;
      options.tp = tp;
      options.threads = 2;
      options.dtype = dtype;
      files += tp;
      const Start first = StartRanks(options, tp);
      const Start second = StartRanks(options, 0);
      EXPECT_EQ(first.probe, second.probe);
      for (uint32_t r = 0; r < tp; ++r) {
        EXPECT_EQ(first.memory[r].packed, first.memory[r].step_weights);
        EXPECT_GT(first.memory[r].packed, 0u);
        EXPECT_EQ(second.memory[r].packed, 0u);
        EXPECT_EQ(second.memory[r].step_weights, first.memory[r].step_weights);
      }
      EXPECT_EQ(Files().size(), files);
    }
  }
}

TEST_F(PackCacheTest, ADamagedFileIsPackedAnew) {
  const Start first = StartRanks({}, 1);
  const std::string file = Files()[0];
  const auto size = static_cast<int64_t>(fs::file_size(file));
  // In the header, in the data; cut off a little, and wholly.
  for (const int64_t at : {int64_t{40}, size - 100, int64_t{-1}, -size}) {
    if (at < 0) {
      fs::resize_file(file, static_cast<uintmax_t>(size + at));
    } else {
      std::fstream stream(file, std::ios::in | std::ios::out | std::ios::binary);
      stream.seekg(at);
      const auto byte = static_cast<char>(stream.get() ^ 4);
      stream.seekp(at);
      stream.put(byte);
    }
    const Start again = StartRanks({}, 1);
    EXPECT_EQ(again.probe, first.probe) << at;
    EXPECT_EQ(again.memory[0].packed, first.memory[0].packed) << at;
    EXPECT_EQ(StartRanks({}, 0).memory[0].packed, 0u) << at;
  }
}

TEST_F(PackCacheTest, AnotherModelOfTheSameNameReplacesTheFile) {
  const Start first = StartRanks({}, 1);
  WriteModel(2);
  const Start other = StartRanks({}, 1);
  EXPECT_NE(other.probe, first.probe);
  EXPECT_EQ(other.memory[0].packed, other.memory[0].step_weights);
  EXPECT_EQ(StartRanks({}, 0).probe, other.probe);
  EXPECT_EQ(Files().size(), 1u);
}

TEST_F(PackCacheTest, AutoWritesBesideTheModelAndOnlyWhatIsLarge) {
  dir_ = "auto";
  EXPECT_GT(StartRanks({}, 0).memory[0].packed, 0u);
  RankThreadsOptions options;
  options.pack_cache.min_bytes = 1000;
  StartRanks(options, 1);
  EXPECT_EQ(Files(), std::vector<std::string>{folder_ + "/model.gguf.float32.0of1.pack"});
  EXPECT_EQ(StartRanks({}, 0).memory[0].packed, 0u);
}

TEST_F(PackCacheTest, OffNeitherReadsNorWrites) {
  StartRanks({}, 1);
  dir_ = "off";
  EXPECT_GT(StartRanks({}, 0).memory[0].packed, 0u);
}

TEST_F(PackCacheTest, AFolderThatCantBeWrittenCostsOnlyTheCache) {
  dir_ = model_ + "/below a file";
  const Start first = StartRanks({}, 0);
  EXPECT_EQ(first.memory[0].packed, first.memory[0].step_weights);
  EXPECT_EQ(StartRanks({}, 0).probe, first.probe);
}

TEST_F(PackCacheTest, TheIdentityIsOfFilesAndTensors) {
  const auto identity = [&] {
    auto checkpoint = OpenCheckpoint(model_);
    CHECK_OK(checkpoint.status());
    return cpu::ModelIdentity(model_, **checkpoint);
  };
  const std::string before = identity();
  EXPECT_EQ(identity(), before);
  const auto time = fs::last_write_time(model_);
  fs::last_write_time(model_, time + std::chrono::nanoseconds(1000));
  EXPECT_NE(identity(), before);
  fs::last_write_time(model_, time);
  EXPECT_EQ(identity(), before);
  // Other weights in the same place with the same time and size.
  std::string bytes(fs::file_size(model_), '\0');
  std::ifstream(model_, std::ios::binary).read(bytes.data(), static_cast<long>(bytes.size()));
  bytes.back() = static_cast<char>(bytes.back() ^ 1);
  std::ofstream(model_, std::ios::binary | std::ios::in) << bytes;
  fs::last_write_time(model_, time);
  EXPECT_NE(identity(), before);
}

}  // namespace
}  // namespace flotilla
