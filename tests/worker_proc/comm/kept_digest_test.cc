#include "worker_proc/comm/kept_digest.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "tests/support/temp_folder.h"

namespace flotilla {
namespace {

// Of files that are whatever the test says.
class CountedCheckpoint final : public Checkpoint {
 public:
  const ModelConfig& config() const override { return config_; }
  const TensorView* Find(std::string_view) const override { return nullptr; }
  const std::vector<TensorView>& tensors() const override { return tensors_; }
  const std::string& Digest(const std::function<void()>&) const override {
    ++hashed;
    return digest;
  }
  std::string Stamp() const override { return stamp; }

  std::string digest = "0123abcd";
  std::string stamp = "1:2:3 4:5:6 ";
  mutable int hashed = 0;

 private:
  ModelConfig config_;
  std::vector<TensorView> tensors_;
};

class KeptDigestTest : public ::testing::Test {
 protected:
  std::string Path() const { return folder_ + "/digest"; }

  const testing::TempFolder temp_;
  const std::string& folder_ = temp_.path();
};

TEST_F(KeptDigestTest, TheSameFilesAreHashedOnce) {
  for (int process = 0; process < 3; ++process) {
    CountedCheckpoint checkpoint;
    EXPECT_EQ(KeptDigest(checkpoint, Path(), {}), "0123abcd");
    EXPECT_EQ(checkpoint.hashed, process == 0 ? 1 : 0);
  }
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder_), {}), 1) << "nothing else";
}

TEST_F(KeptDigestTest, OtherFilesAreHashedAnew) {
  CountedCheckpoint before;
  KeptDigest(before, Path(), {});
  CountedCheckpoint after;
  after.stamp = "1:2:3 4:5:7 ";
  after.digest = "4567";
  EXPECT_EQ(KeptDigest(after, Path(), {}), "4567");
  EXPECT_EQ(KeptDigest(after, Path(), {}), "4567");
  EXPECT_EQ(after.hashed, 1);
}

TEST_F(KeptDigestTest, WithoutAStampOrAPlaceNothingIsKept) {
  CountedCheckpoint checkpoint;
  EXPECT_EQ(KeptDigest(checkpoint, "", {}), "0123abcd");
  EXPECT_EQ(KeptDigest(checkpoint, folder_ + "/none/digest", {}), "0123abcd");
  checkpoint.stamp.clear();
  EXPECT_EQ(KeptDigest(checkpoint, Path(), {}), "0123abcd");
  EXPECT_EQ(checkpoint.hashed, 3);
  EXPECT_FALSE(std::filesystem::exists(Path()));
}

}  // namespace
}  // namespace flotilla
