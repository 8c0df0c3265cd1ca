#include "deploy/launcher/runtime_dir.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>

namespace flotilla {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

class RuntimeDirTest : public testing::Test {
 protected:
  RuntimeDirTest() : parent_(testing::TempDir() + "/rtXXXXXX") {
    EXPECT_NE(mkdtemp(parent_.data()), nullptr);
  }
  ~RuntimeDirTest() override { fs::remove_all(parent_); }
  std::string parent_;
};

TEST_F(RuntimeDirTest, IsPrivateAndRemovedAtTheEnd) {
  std::string path;
  {
    auto dir = RuntimeDir::Create(parent_);
    ASSERT_TRUE(dir.ok()) << dir.status();
    path = dir->path();
    EXPECT_EQ(fs::status(path).permissions(), fs::perms::owner_all);
    std::ofstream(dir->File("socket")) << "x";
  }
  EXPECT_FALSE(fs::exists(path));
}

TEST_F(RuntimeDirTest, RemovesThoseOfDeadLaunchersOnly) {
  const std::string dead = parent_ + "/flotilla-run-dead";
  fs::create_directory(dead);
  fs::permissions(dead, fs::perms::owner_all);
  std::ofstream(dead + "/lock") << "";
  std::ofstream(dead + "/socket") << "";
  const std::string being_made = parent_ + "/flotilla-run-fresh";  // has no lock yet
  fs::create_directory(being_made);
  fs::permissions(being_made, fs::perms::owner_all);
  const std::string foreign = parent_ + "/flotilla-other";  // not a launcher's, whatever is in it
  fs::create_directory(foreign);
  fs::permissions(foreign, fs::perms::owner_all);
  std::ofstream(foreign + "/lock") << "";

  auto live = RuntimeDir::Create(parent_);
  ASSERT_TRUE(live.ok());
  auto second = RuntimeDir::Create(parent_);
  ASSERT_TRUE(second.ok());
  EXPECT_FALSE(fs::exists(dead));
  EXPECT_TRUE(fs::exists(live->path()));
  EXPECT_TRUE(fs::exists(being_made));
  EXPECT_TRUE(fs::exists(foreign));
}

TEST_F(RuntimeDirTest, RefusesAParentTooLongForSockets) {
  const auto dir = RuntimeDir::Create(parent_ + "/" + std::string(100, 'x'));
  ASSERT_FALSE(dir.ok());
  EXPECT_THAT(std::string(dir.status().message()), HasSubstr("XDG_RUNTIME_DIR"));
}

}  // namespace
}  // namespace flotilla
