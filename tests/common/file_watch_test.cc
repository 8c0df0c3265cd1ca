#include "common/base/file_watch.h"

#include <gtest/gtest.h>

#include <atomic>
#include <future>

namespace flotilla {
namespace {

using std::chrono::milliseconds;

TEST(FileWatchTest, AsksEachFileAgainAndAgainUntilItEnds) {
  std::atomic<int> first = 0, second = 0;
  std::promise<void> enough;
  {
    const FileWatch watch({{"--first", [&]() -> StatusOr<bool> { return ++first == 1; }},
                           {"--second",
                            [&]() -> StatusOr<bool> {
                              if (++second == 3) enough.set_value();
                              return absl::InvalidArgumentError("wrong");
                            }}},
                          milliseconds(1));
    enough.get_future().wait();
  }
  const int asked = second;
  EXPECT_GE(asked, 3);
  EXPECT_EQ(first, asked) << "an error of one file does not keep from the other";
}

TEST(FileWatchTest, EndsAtOnceHoweverLongItsPeriod) {
  const auto begin = std::chrono::steady_clock::now();
  bool asked = false;
  {
    const FileWatch watch({{"--file", [&]() -> StatusOr<bool> { return asked = true; }}},
                          std::chrono::hours(1));
  }
  EXPECT_FALSE(asked);
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::minutes(1));
}

}  // namespace
}  // namespace flotilla
