// Ranks that reach each other's memory and have a communicator beside it.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <numeric>

#include "tests/worker_proc/cuda/gather_setup.h"

namespace flotilla::cuda {
namespace {

using testing::EqualShares;
using testing::Exchange;
using testing::kBoth;
using testing::kLeast;
using testing::kMaxCols;
using testing::kMaxRows;
using testing::LoneExchange;
using testing::MeasuredAs;
using testing::Operation;
using testing::Ranks;

uint64_t WholeBytes(const Operation& op) {
  const uint64_t cols = std::accumulate(op.cols.begin(), op.cols.end(), uint64_t{0});
  return op.rows * cols * ElementBytes(op.type);
}

// Some sizes by the one, some by the other, in any order.
TEST(CudaGatherTwoWaysTest, EachSizeGoesByWhatIsFasterForIt) {
  for (const uint32_t ranks : {2u, 5u}) {
    Ranks all(ranks, CudaGather::kTimeoutNs, kBoth, nullptr, uint64_t{kMaxRows} * kMaxCols,
              MeasuredAs([](uint64_t bytes) { return bytes != 2 * kLeast; }));
    for (uint32_t epoch = 1; epoch <= 2; ++epoch) {
      all.Connect(epoch);
      all.OnAll([&](uint32_t r, Ranks::Rank& rank) {
        ASSERT_STREQ(rank.gather->by(), "device memory");
        const uint64_t before = rank.gather->exchanges_by_library();
        uint64_t by_library = 0;
        for (uint32_t n = 0; n < 90; ++n) {
          const Operation op = n % 4 == 0 ? Operation(n, ranks) : EqualShares(n, ranks);
          const uint64_t bytes = WholeBytes(op);
          const bool equal = std::count(op.cols.begin(), op.cols.end(), op.cols[0]) == ranks;
          by_library += equal && bytes >= kLeast && (bytes < 2 * kLeast || bytes >= 4 * kLeast);
          Exchange(op, n, r, rank);
          if (::testing::Test::HasFatalFailure()) return;
        }
        EXPECT_EQ(rank.gather->exchanges_by_library() - before, by_library);
        EXPECT_GT(by_library, 10u);
        EXPECT_LT(by_library, 70u);
      });
    }
  }
}

TEST(CudaGatherTwoWaysTest, WhatIsCapturedGoesByMemoryAndWhatIsNormedByOneKernelToo) {
  Ranks all(2, CudaGather::kTimeoutNs, kBoth, nullptr, uint64_t{kMaxRows} * kMaxCols,
            MeasuredAs([](uint64_t) { return true; }));
  all.Connect(1);
  all.OnAll([&](uint32_t r, Ranks::Rank& rank) {
    const std::array<uint32_t, 2> cols = {64, 64};
    CudaTensor tensor{rank.local.data(), Element::kFloat32};
    EXPECT_FALSE(rank.gather->AddNorm(cols, {&tensor, 8, 64}, {})) << "by the library";
    const uint64_t before = rank.gather->exchanges_by_library();
    rank.gather->set_captured(true);
    for (uint32_t n = 0; n < 20; ++n) Exchange(EqualShares(n, 2), n, r, rank);
    EXPECT_EQ(rank.gather->exchanges_by_library(), before);
    rank.gather->set_captured(false);
    for (uint32_t n = 0; n < 20; ++n) Exchange(EqualShares(n, 2), n, r, rank);
    EXPECT_GT(rank.gather->exchanges_by_library(), before);
  });
}

// Where the slowest rank is slower, and from then on: whoever is new does not ask again.
TEST(CudaGatherTwoWaysTest, ALibraryThatNeverWinsIsLetGo) {
  std::atomic<uint32_t> asked = 0;
  Ranks all(3, CudaGather::kTimeoutNs, kBoth, nullptr, uint64_t{kMaxRows} * kMaxCols,
            MeasuredAs([](uint64_t) { return false; }, &asked));
  for (uint32_t epoch = 1; epoch <= 3; ++epoch) {
    if (epoch > 1) all.Replace(epoch - 1);
    const uint32_t before = asked;
    all.Connect(epoch);
    EXPECT_EQ(asked > before, epoch == 1) << epoch;
    all.OnAll([&](uint32_t r, Ranks::Rank& rank) {
      const uint64_t measured = rank.gather->exchanges_by_library();
      for (uint32_t n = 0; n < 20; ++n) Exchange(n, r, rank);
      EXPECT_EQ(rank.gather->exchanges_by_library(), measured);
    });
  }
}

// It joins, and only its first exchange says that it can't.
TEST(CudaGatherTwoWaysTest, ALibraryThatFailsAtItsFirstExchangeIsDoneWithout) {
  for (const bool share_memory : {true, false}) {
    Ranks all(2, 2'000'000'000,
              {.share_memory = share_memory, .have_communicator = true, .fails_on_rank = 1},
              nullptr, uint64_t{kMaxRows} * kMaxCols, MeasuredAs([](uint64_t) { return true; }));
    all.Connect(1);
    all.OnAll([&](uint32_t r, Ranks::Rank& rank) {
      ASSERT_STREQ(rank.gather->by(), share_memory ? "device memory" : "host memory");
      for (uint32_t n = 0; n < 20; ++n) Exchange(n, r, rank);
      EXPECT_EQ(rank.gather->exchanges_by_library(), 0u);
    });
  }
}

// A rank that does not come is noticed by one that still has exchanges to queue.
TEST(CudaGatherTwoWaysTest, NobodyQueuesEndlesslyBehindARankThatIsLost) {
  std::atomic<uint32_t> epoch = 1;
  ExchangeOptions exchange = MeasuredAs([](uint64_t) { return true; });
  exchange.least_by_library = 64;
  Ranks all(2, CudaGather::kTimeoutNs, kBoth, &epoch, uint64_t{kMaxRows} * kMaxCols, exchange);
  all.Connect(1);
  std::thread ends;
  all.OnAll([&](uint32_t r, Ranks::Rank& rank) {
    if (r == 1) return;
    LoneExchange lone(&rank);
    rank.beaten_ns = 0;
    ends = std::thread([&] {
      while (rank.beaten_ns == 0) std::this_thread::yield();
      epoch = 2;
    });
    for (int i = 0; i < 200; ++i) ASSERT_TRUE(lone.Run().ok());
    EXPECT_EQ(epoch, 2u) << "it has waited for room, and looked meanwhile";
    rank.gather->Wait();
    EXPECT_EQ(rank.gather->TakeError().code(), absl::StatusCode::kAborted);
  });
  ends.join();
}

// How long it waits for room counts from then on, not from what it waited for last.
TEST(CudaGatherTwoWaysTest, AfterALongRestARankThatIsSlowIsWaitedFor) {
  constexpr int64_t kTimeoutNs = 2 * kNsPerSecond;
  Ranks all(2, kTimeoutNs, kBoth, nullptr, uint64_t{kMaxRows} * kMaxCols,
            MeasuredAs([](uint64_t bytes) { return bytes >= 4 * kLeast; }));
  all.Connect(1);
  const int64_t rested_ns = all.clock.NowNs() + kTimeoutNs + kTimeoutNs / 10;
  while (all.clock.NowNs() < rested_ns) std::this_thread::yield();
  std::atomic<bool> waits = false;
  all.OnAll([&](uint32_t r, Ranks::Rank& rank) {
    CudaTensor tensor{rank.local.data(), Element::kFloat32};
    const std::array<uint32_t, 2> cols = {8, 8};
    const uint64_t measured = rank.gather->exchanges_by_library();
    while (r == 1 && !waits) std::this_thread::yield();
    std::thread looks;
    if (r == 0) {
      rank.beaten_ns = 0;
      looks = std::thread([&] {
        while (rank.beaten_ns == 0) std::this_thread::yield();
        waits = true;
      });
    }
    for (int i = 0; i < 200; ++i) {
      ASSERT_TRUE(rank.gather
                      ->Run(*rank.collective, cols, {&tensor, 1, 8}, CudaGather::kAllRanks,
                            {&tensor, 1, 16})
                      .ok());
    }
    rank.gather->Wait();
    EXPECT_TRUE(rank.gather->TakeError().ok()) << rank.gather->TakeError();
    EXPECT_EQ(rank.gather->exchanges_by_library(), measured);
    if (looks.joinable()) looks.join();
  });
}

TEST(CudaGatherTwoWaysTest, WhereARankMayNotReachMemoryAllGoesByTheLibrary) {
  for (const uint32_t first : {0u, 1u}) {  // of those that may not
    Ranks all(2, CudaGather::kTimeoutNs, kBoth);
    for (uint32_t r = first; r < 2; ++r) all.Replace(r, {.reach_memory = false});
    all.Connect(1);
    all.OnAll([&](uint32_t r, Ranks::Rank& rank) {
      ASSERT_STREQ(rank.gather->by(), "emulated links");
      EXPECT_FALSE(rank.gather->may_be_captured());
      for (uint32_t n = 0; n < 20; ++n) Exchange(n, r, rank);
      EXPECT_EQ(rank.gather->exchanges_by_library(), 20u);
    });
  }
}

// Real times, of the emulation: some table comes of it, and all ranks have the same.
TEST(CudaGatherTwoWaysTest, AMeasurementEndsWithOneTableForAll) {
  ExchangeOptions exchange;
  exchange.least_by_library = 1 << 16;
  Ranks all(2, CudaGather::kTimeoutNs, kBoth, nullptr, 1 << 16, exchange);
  all.Connect(1);
  std::array<uint64_t, 2> by_library = {};
  all.OnAll([&](uint32_t r, Ranks::Rank& rank) {
    const uint64_t measured = rank.gather->exchanges_by_library();
    EXPECT_GT(measured, 0u);
    for (uint32_t n = 0; n < 6; ++n) {
      Operation op(n, 2);
      op.rows = 16 << n % 3;
      op.cols = {1024, 1024};
      op.type = Element::kFloat32;
      Exchange(op, n, r, rank);
    }
    by_library[r] = rank.gather->exchanges_by_library() - measured;
  });
  EXPECT_EQ(by_library[0], by_library[1]);
}

}  // namespace
}  // namespace flotilla::cuda
