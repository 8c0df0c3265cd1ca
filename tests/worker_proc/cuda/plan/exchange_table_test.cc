#include "worker_proc/cuda/plan/exchange_table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace flotilla::cuda {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(ExchangeTableTest, SizesDoubleFromTheLeastAsFarAsThereIsRoom) {
  EXPECT_THAT(ExchangeTable::Sizes(100, 850), ElementsAre(100, 200, 400, 800));
  EXPECT_THAT(ExchangeTable::Sizes(100, 100), ElementsAre(100));
  EXPECT_THAT(ExchangeTable::Sizes(100, 99), IsEmpty());
}

TEST(ExchangeTableTest, WithoutTimesAllIsByMemory) {
  const ExchangeTable table;
  EXPECT_FALSE(table.library_wins());
  for (const uint64_t bytes : {uint64_t{0}, uint64_t{1} << 20, UINT64_MAX}) {
    EXPECT_FALSE(table.ByLibrary(bytes));
  }
}

TEST(ExchangeTableTest, TheLibraryHasWhatItDoesATenthFaster) {
  const ExchangeTime times[] = {
      {100, 1000, 950}, {200, 1000, 901}, {400, 1000, 899}, {800, 1000, 1000}, {1600, 1000, 10}};
  const ExchangeTable table(times);
  EXPECT_TRUE(table.library_wins());
  EXPECT_EQ(table.least_by_library(), 400u);
  for (const uint64_t bytes : {0, 99, 100, 250, 399, 800, 1599}) {
    EXPECT_FALSE(table.ByLibrary(bytes)) << bytes;
  }
  for (const uint64_t bytes : {400, 401, 799, 1600, 1'000'000}) {
    EXPECT_TRUE(table.ByLibrary(bytes)) << bytes;
  }
}

TEST(ExchangeTableTest, ALibraryThatIsNeverFasterWinsNothing) {
  const ExchangeTime times[] = {{100, 1000, 950}, {200, 1000, 2000}};
  const ExchangeTable table(times);
  EXPECT_FALSE(table.library_wins());
  EXPECT_EQ(table.least_by_library(), 0u);
  EXPECT_FALSE(table.ByLibrary(200));
}

}  // namespace
}  // namespace flotilla::cuda
