// A folder that stands for /, for what reads /proc and /sys. Threads: one.
#pragma once

#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <string>

namespace flotilla::testing {

class FakeRootTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string path = ::testing::TempDir() + "root_XXXXXX";
    ASSERT_NE(mkdtemp(path.data()), nullptr);
    root_ = path + "/";
  }
  void TearDown() override { std::filesystem::remove_all(root_); }

  // name: "proc/meminfo".
  void Write(const std::string& name, const std::string& text) const {
    const std::filesystem::path path = root_ + name;
    std::filesystem::create_directories(path.parent_path());
    std::ofstream(path) << text;
  }

  std::string root_;
};

}  // namespace flotilla::testing
