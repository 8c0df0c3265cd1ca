// Pack files: what was written is read, and nothing else is.
#include "worker_proc/cpu/pack_file.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <random>

#include "common/base/check.h"
#include "common/base/unique_fd.h"
#include "common/base/xxh64.h"
#include "tests/support/temp_folder.h"
#include "worker_proc/cpu/pack_format.h"

namespace flotilla::cpu {
namespace {

using Memory = PackFile::Memory;

constexpr char kKey[] = "the key";

std::string ReadAll(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}
void WriteAll(const std::string& path, std::string_view bytes) {
  std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes;
}

class PackFileTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::mt19937_64 rng(5);
    // Below, at and above the alignment and a checksum's block; one of nothing.
    for (const size_t bytes : {1u, 64u, 63u, 0u, 1000u, (1u << 20) + 1u, 3u << 20}) {
      std::string& data = data_.emplace_back(bytes, '\0');
      for (char& c : data) c = static_cast<char>(rng());
    }
  }

  PackContents Contents() const {
    PackContents contents{kKey, {}, {}};
    for (size_t i = 0; i < data_.size(); ++i) {
      contents.parts.push_back({i + 7, 2 * i, 3 * i, 4 * i, data_[i].size()});
      contents.data.push_back(reinterpret_cast<const std::byte*>(data_[i].data()));
    }
    return contents;
  }
  Status Write() { return WritePackFile(path_, Contents(), stop_); }
  StatusOr<PackFile> Open(Memory memory = Memory::kAuto, const std::string& key = kKey) {
    return PackFile::Open(path_, {key, &pool_, {}, memory});
  }
  absl::StatusCode CodeOf(std::string_view bytes) {
    WriteAll(path_, bytes);
    return Open().status().code();
  }
  void ExpectContents(const PackFile& file) const {
    const PackContents contents = Contents();
    ASSERT_EQ(file.size(), data_.size());
    for (size_t i = 0; i < data_.size(); ++i) {
      EXPECT_EQ(file.part(i), contents.parts[i]) << i;
      EXPECT_EQ(std::memcmp(file.data(i), data_[i].data(), data_[i].size()), 0) << i;
      EXPECT_EQ(reinterpret_cast<uintptr_t>(file.data(i)) % 64, 0u) << i;
    }
  }

  const testing::TempFolder temp_;
  const std::string& folder_ = temp_.path();
  std::string path_ = folder_ + "/model.pack";
  std::vector<std::string> data_;
  ThreadPool pool_{{2, 0}};
  std::atomic<bool> stop_{false};
};

TEST_F(PackFileTest, GivesBackWhatWasWritten) {
  ASSERT_TRUE(Write().ok());
  for (const Memory memory : {Memory::kAuto, Memory::kMap, Memory::kCopy}) {
    const auto file = Open(memory);
    ASSERT_TRUE(file.ok()) << file.status();
    ExpectContents(*file);
    if (memory == Memory::kAuto) continue;
    EXPECT_EQ(file->is_mapped(), memory == Memory::kMap);
  }
  EXPECT_FALSE(std::filesystem::exists(path_ + ".tmp"));
}

TEST_F(PackFileTest, WithoutPartsItIsEmpty) {
  data_.clear();
  ASSERT_TRUE(Write().ok());
  const auto file = Open();
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(file->size(), 0u);
}

TEST_F(PackFileTest, AnyChangedByteIsFound) {
  ASSERT_TRUE(Write().ok());
  const std::string good = ReadAll(path_);
  const auto header = static_cast<size_t>(*PackHeaderBytes(good)) + kPackPreambleBytes;
  const auto data = static_cast<size_t>(PackDataOffset(header));
  std::mt19937_64 rng(1);
  for (int i = 0; i < 120; ++i) {
    // Between header and data nothing is kept.
    const size_t at = i % 2 == 0 ? rng() % header : data + rng() % (good.size() - data);
    std::string bad = good;
    bad[at] = static_cast<char>(bad[at] ^ (1 << rng() % 8));
    EXPECT_EQ(CodeOf(bad), absl::StatusCode::kDataLoss) << "byte " << at;
  }
  EXPECT_EQ(CodeOf(good), absl::StatusCode::kOk);
}

TEST_F(PackFileTest, AnyOtherLengthIsFound) {
  ASSERT_TRUE(Write().ok());
  const std::string good = ReadAll(path_);
  std::mt19937_64 rng(2);
  std::vector<size_t> lengths = {0, 1, kPackPreambleBytes - 1, kPackPreambleBytes, good.size() - 1};
  for (int i = 0; i < 40; ++i) lengths.push_back(rng() % good.size());
  for (const size_t length : lengths) {
    EXPECT_EQ(CodeOf(good.substr(0, length)), absl::StatusCode::kDataLoss) << length;
  }
  EXPECT_EQ(CodeOf(good + "x"), absl::StatusCode::kDataLoss);
}

TEST_F(PackFileTest, AnotherKeyOrVersionIsNotUsed) {
  ASSERT_TRUE(Write().ok());
  EXPECT_EQ(Open(Memory::kAuto, "another").status().code(), absl::StatusCode::kFailedPrecondition);
  std::string bytes = ReadAll(path_);
  const auto header = static_cast<size_t>(*PackHeaderBytes(bytes));
  bytes[kPackPreambleBytes] = static_cast<char>(bytes[kPackPreambleBytes] + 1);  // the version
  const uint64_t checksum = Xxh64(std::string_view(bytes).substr(kPackPreambleBytes, header));
  std::memcpy(&bytes[16], &checksum, sizeof(checksum));
  EXPECT_EQ(CodeOf(bytes), absl::StatusCode::kFailedPrecondition);
}

TEST_F(PackFileTest, ForeignFilesAreRefused) {
  EXPECT_EQ(Open().status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(CodeOf("GGUF and something that is long enough for a preamble"),
            absl::StatusCode::kDataLoss);
  std::filesystem::remove(path_);
  std::filesystem::create_directory(path_);
  EXPECT_EQ(Open().status().code(), absl::StatusCode::kDataLoss);
}

// Its checksums are right, but anyone who can read the model could have made them so.
TEST_F(PackFileTest, WhatOthersMayHaveWrittenIsNotUsed) {
  ASSERT_TRUE(Write().ok());
  for (const mode_t mode : {0646, 0666}) {
    ASSERT_EQ(chmod(path_.c_str(), mode), 0);
    EXPECT_EQ(Open().status().code(), absl::StatusCode::kPermissionDenied);
  }
  ASSERT_EQ(chmod(path_.c_str(), 0664), 0);  // as a volume's fsGroup makes it
  EXPECT_TRUE(Open().ok());
  if (geteuid() != 0) GTEST_SKIP() << "only root can give a file away";
  ASSERT_EQ(chown(path_.c_str(), 65533, static_cast<gid_t>(-1)), 0);
  EXPECT_EQ(Open().status().code(), absl::StatusCode::kPermissionDenied);
}

// A header that says of itself that it is whole, and lies.
TEST_F(PackFileTest, SizesThatCantBeAreRefused) {
  PackHeader header{kKey, {{1, 2, 3, 4, uint64_t{1} << 60}}, {}};
  EXPECT_EQ(CodeOf(BuildPackHeader(header)), absl::StatusCode::kDataLoss);
  header.parts = {{1, 2, 3, 4, 5000}};  // but no checksum
  EXPECT_EQ(CodeOf(BuildPackHeader(header)), absl::StatusCode::kDataLoss);
  header.checksums = {0, 0};
  EXPECT_EQ(CodeOf(BuildPackHeader(header)), absl::StatusCode::kDataLoss);
  std::string bytes = BuildPackHeader(header);
  const uint64_t huge = UINT64_MAX;
  std::memcpy(&bytes[8], &huge, sizeof(huge));
  EXPECT_EQ(CodeOf(bytes), absl::StatusCode::kDataLoss);
}

TEST_F(PackFileTest, WhoHasTheOldFileKeepsIt) {
  ASSERT_TRUE(Write().ok());
  const auto old = Open(Memory::kMap);
  ASSERT_TRUE(old.ok());
  const std::vector<std::string> before = data_;
  for (std::string& data : data_) data.append("and more");
  ASSERT_TRUE(Write().ok());
  ExpectContents(*Open());
  data_ = before;
  ExpectContents(*old);
}

TEST_F(PackFileTest, OnlyOneWritesAtATime) {
  WriteAll(path_, "old");
  const UniqueFd other(open((path_ + ".tmp").c_str(), O_RDWR | O_CREAT, 0600));
  ASSERT_EQ(flock(other.get(), LOCK_EX), 0);
  EXPECT_EQ(Write().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(ReadAll(path_), "old");
  ASSERT_EQ(flock(other.get(), LOCK_UN), 0);  // it died; what it has written is not used
  WriteAll(path_ + ".tmp", std::string(9 << 20, 'x'));
  ASSERT_TRUE(Write().ok());
  ExpectContents(*Open());
}

TEST_F(PackFileTest, GivingUpLeavesNothing) {
  stop_ = true;
  EXPECT_EQ(Write().code(), absl::StatusCode::kCancelled);
  EXPECT_TRUE(std::filesystem::is_empty(folder_));
}

TEST_F(PackFileTest, AFailedWriteLeavesTheOldFile) {
  WriteAll(path_, "old");
  rlimit limit;
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &limit), 0);
  const auto handler = signal(SIGXFSZ, SIG_IGN);
  const rlimit small = {1 << 20, limit.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  const Status status = Write();
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &limit), 0);
  signal(SIGXFSZ, handler);
  EXPECT_FALSE(status.ok());
  EXPECT_EQ(ReadAll(path_), "old");
  EXPECT_FALSE(std::filesystem::exists(path_ + ".tmp"));
  path_ = folder_ + "/no/such/folder.pack";
  EXPECT_EQ(Write().code(), absl::StatusCode::kNotFound);
}

}  // namespace
}  // namespace flotilla::cpu
