// A fixture that opens bytes as a GGUF file in a folder of the test's own.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <string_view>

#include "common/checkpoint/checkpoint.h"
#include "tests/support/temp_folder.h"

namespace flotilla::testing {

class GgufFileTest : public ::testing::Test {
 protected:
  std::string path() const { return temp_.path() + "/model.gguf"; }
  StatusOr<std::unique_ptr<Checkpoint>> Open(std::string_view bytes) const {
    WriteBytes(path(), bytes);
    return OpenCheckpoint(path());
  }
  std::string ErrorOf(std::string_view bytes) const {
    const auto checkpoint = Open(bytes);
    return checkpoint.ok() ? "opened" : std::string(checkpoint.status().message());
  }

 private:
  const TempFolder temp_;
};

}  // namespace flotilla::testing
