#include "scheduler_proc/core/page_allocator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace flotilla {
namespace {

using ::testing::ElementsAre;

TEST(PageAllocatorTest, HandsOutFromZeroAndReusesTheLastFreed) {
  PageAllocator allocator;
  allocator.Reset(4);
  std::vector<PageId> pages;
  ASSERT_TRUE(allocator.Alloc(3, &pages));
  EXPECT_THAT(pages, ElementsAre(0, 1, 2));
  allocator.Free(std::span(pages).first(2));
  pages.clear();
  ASSERT_TRUE(allocator.Alloc(3, &pages));
  EXPECT_THAT(pages, ElementsAre(1, 0, 3));
  EXPECT_EQ(allocator.num_free(), 0u);
}

TEST(PageAllocatorTest, TakesAllOrNothing) {
  PageAllocator allocator;
  allocator.Reset(2);
  std::vector<PageId> pages;
  EXPECT_FALSE(allocator.Alloc(3, &pages));
  EXPECT_TRUE(pages.empty());
  EXPECT_EQ(allocator.num_free(), 2u);
  EXPECT_TRUE(allocator.Alloc(0, &pages));
  EXPECT_TRUE(pages.empty());
}

TEST(PageAllocatorTest, ResetForgetsWhatWasHandedOut) {
  PageAllocator allocator;
  allocator.Reset(2);
  std::vector<PageId> pages;
  ASSERT_TRUE(allocator.Alloc(2, &pages));
  allocator.Reset(3);
  EXPECT_EQ(allocator.num_free(), 3u);
  EXPECT_TRUE(allocator.is_free(0));
}

TEST(PageAllocatorDeathTest, FreeingTwiceEndsTheProcess) {
  PageAllocator allocator;
  allocator.Reset(2);
  std::vector<PageId> pages;
  ASSERT_TRUE(allocator.Alloc(1, &pages));
  allocator.Free(pages);
  EXPECT_DEATH(allocator.Free(pages), "CHECK failed");
}

}  // namespace
}  // namespace flotilla
