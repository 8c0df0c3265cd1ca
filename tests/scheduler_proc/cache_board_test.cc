#include "scheduler_proc/exchange/cache_board.h"

#include <gtest/gtest.h>

#include <set>

namespace flotilla {
namespace {

PageLog Stored(uint64_t first, uint64_t count) {
  PageLog log;
  for (uint64_t i = 0; i < count; ++i) log.push_back({PageEvent::Kind::kStored, first + i});
  return log;
}

// What a router that applies the events holds.
class Router {
 public:
  explicit Router(CacheBoard* board) : board_(*board) {}
  // True: there is more.
  bool Take() {
    v1::Step step;
    const bool more = board_.Take(&cursor_, &step);
    size_t hashes = 0;
    for (const v1::CacheEvent& event : step.cache_events()) {
      EXPECT_EQ(event.page_size(), 16u);
      hashes += static_cast<size_t>(event.page_hashes_size());
      if (event.kind() == v1::CacheEvent::CLEARED) {
        pages.clear();
        ++clears;
      }
      for (const uint64_t hash : event.page_hashes()) {
        if (event.kind() == v1::CacheEvent::STORED) {
          EXPECT_TRUE(pages.insert(hash).second) << hash;
        } else {
          EXPECT_EQ(pages.erase(hash), 1u) << hash;
        }
      }
    }
    EXPECT_LE(hashes, CacheBoard::kMaxHashesPerStep);
    return more;
  }
  void TakeAll() {
    while (Take()) continue;
  }

  std::set<uint64_t> pages;
  int clears = 0;

 private:
  CacheBoard& board_;
  CacheBoard::Cursor cursor_;
};

TEST(CacheBoardTest, ARouterThatComesLateGetsASnapshotAndThenEachEvent) {
  CacheBoard board(16);
  PageLog log = Stored(1, 3);
  log.push_back({PageEvent::Kind::kRemoved, 2});
  board.Publish(&log);
  EXPECT_TRUE(log.empty());
  Router router(&board);
  EXPECT_FALSE(router.Take());
  EXPECT_EQ(router.pages, std::set<uint64_t>({1, 3}));
  log = Stored(7, 1);
  board.Publish(&log);
  EXPECT_FALSE(router.Take());
  EXPECT_EQ(router.pages, std::set<uint64_t>({1, 3, 7}));
  EXPECT_EQ(router.clears, 1) << "the snapshot's";
  log = {{PageEvent::Kind::kCleared, 0}};
  board.Publish(&log);
  log = Stored(9, 1);
  board.Publish(&log);
  EXPECT_FALSE(router.Take());
  EXPECT_EQ(router.pages, std::set<uint64_t>({9}));
  EXPECT_EQ(router.clears, 2);
}

TEST(CacheBoardTest, MuchIsCutIntoStepsAndEventsFollowTheirSnapshot) {
  CacheBoard board(16);
  PageLog log = Stored(0, 3 * CacheBoard::kMaxHashesPerStep);
  board.Publish(&log);
  Router router(&board);
  EXPECT_TRUE(router.Take());
  // Removed while the snapshot is on its way, whether it was sent already or not.
  for (uint64_t hash = 0; hash < 3 * CacheBoard::kMaxHashesPerStep; hash += 2)
    log.push_back({PageEvent::Kind::kRemoved, hash});
  board.Publish(&log);
  router.TakeAll();
  EXPECT_EQ(router.pages.size(), 3 * CacheBoard::kMaxHashesPerStep / 2);
  EXPECT_EQ(router.pages.count(0), 0u);
  EXPECT_EQ(router.pages.count(1), 1u);
}

TEST(CacheBoardTest, WhoMissesMoreThanTheRingKeepsStartsAgain) {
  CacheBoard board(16);
  Router quick(&board), slow(&board);
  quick.TakeAll();
  slow.TakeAll();
  uint64_t next = 0;
  for (int round = 0; round < 5; ++round) {
    PageLog log = Stored(next, CacheBoard::kRingEvents / 2);
    for (uint64_t i = 0; i < 1000; ++i) log.push_back({PageEvent::Kind::kRemoved, next + i});
    next += CacheBoard::kRingEvents / 2;
    board.Publish(&log);
    quick.TakeAll();
  }
  slow.TakeAll();
  EXPECT_EQ(quick.clears, 1);
  EXPECT_EQ(slow.clears, 2);
  EXPECT_EQ(quick.pages.size(), 5 * (CacheBoard::kRingEvents / 2 - 1000));
  EXPECT_EQ(slow.pages, quick.pages);
}

}  // namespace
}  // namespace flotilla
