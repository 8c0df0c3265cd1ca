#include "scheduler_proc/exchange/large_results.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>

namespace flotilla {
namespace {

std::vector<v1::TokenLogprobs> Entries(size_t n) {
  std::vector<v1::TokenLogprobs> entries(n);
  for (size_t i = 0; i < n; ++i) entries[i].set_token(std::string(100, 'x'));
  return entries;
}

TEST(LargeResults, TakenOnceOrExpired) {
  FakeClock clock;
  LargeResults results(&clock, 1 << 20);
  const uint64_t a = results.Put(Entries(10)), b = results.Put(Entries(20));
  EXPECT_NE(a, b);
  EXPECT_EQ(results.Take(a)->size(), 10u);
  EXPECT_FALSE(results.Take(a).has_value());
  clock.AdvanceNs(60 * kNsPerSecond);
  EXPECT_FALSE(results.Take(b).has_value());
  EXPECT_EQ(results.bytes(), 0u);
}

TEST(LargeResults, TheOldestGoFirstWhenFull) {
  FakeClock clock;
  LargeResults results(&clock, 2500);
  const uint64_t a = results.Put(Entries(10));
  clock.AdvanceNs(1);
  const uint64_t b = results.Put(Entries(10));
  clock.AdvanceNs(1);
  const uint64_t c = results.Put(Entries(10));
  EXPECT_FALSE(results.Take(a).has_value());
  EXPECT_TRUE(results.Take(b).has_value());
  EXPECT_TRUE(results.Take(c).has_value());
  EXPECT_EQ(results.Put(Entries(100)), 0u);  // larger than all that may be kept
}

TEST(LargeResults, EachIsTakenOnceThoughManyWantIt) {
  FakeClock clock;
  LargeResults results(&clock, 1 << 20);
  constexpr int kRounds = 50, kTakers = 3;
  std::atomic<uint64_t> offered{0};
  std::atomic<int> round{0}, taken{0};
  std::vector<std::thread> takers;
  for (int t = 0; t < kTakers; ++t) {
    takers.emplace_back([&] {
      while (round.load() < kRounds) {
        const auto entries = results.Take(offered.load());
        if (entries.has_value()) {
          EXPECT_EQ(entries->size(), 3u);
          ++taken;
        } else {
          std::this_thread::yield();
        }
      }
    });
  }
  for (int i = 1; i <= kRounds; ++i) {
    offered.store(results.Put(Entries(3)));
    while (taken.load() < i) {
      EXPECT_LE(results.bytes(), 1u << 20);
      std::this_thread::yield();
    }
    round.store(i);
  }
  for (std::thread& taker : takers) taker.join();
  EXPECT_EQ(taken.load(), kRounds);
  EXPECT_EQ(results.bytes(), 0u);
}

TEST(LargeResults, PiecesAreBounded) {
  std::vector<v1::TokenLogprobs> entries = Entries(10'000);
  size_t begin = 0, total = 0;
  while (begin < entries.size()) {
    v1::GenerateResponse piece;
    TakePiece(&entries, &begin, &piece);
    EXPECT_LE(piece.ByteSizeLong(), kLargeResultBytes + 50'000);
    total += static_cast<size_t>(piece.prompt_logprobs_size());
  }
  EXPECT_EQ(total, 10'000u);
}

}  // namespace
}  // namespace flotilla
