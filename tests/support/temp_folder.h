// A folder of a test's own, gone with it. Threads: any.
#pragma once

#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <string>

#include "common/base/check.h"

namespace flotilla::testing {

class TempFolder {
 public:
  TempFolder() : path_(::testing::TempDir() + "flotilla_XXXXXX") {
    CHECK(mkdtemp(path_.data()) != nullptr);
  }
  ~TempFolder() { std::filesystem::remove_all(path_); }
  TempFolder(const TempFolder&) = delete;
  TempFolder& operator=(const TempFolder&) = delete;

  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

}  // namespace flotilla::testing
