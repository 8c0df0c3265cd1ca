#include "shm/collective.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <functional>
#include <numeric>
#include <random>
#include <thread>
#include <vector>

#include "common/base/clock.h"
#include "shm/collective_layout.h"
#include "tests/support/collective_cases.h"

namespace flotilla {
namespace {

constexpr size_t kBuffer = 256;  // halves of 128 bytes: most operations take several rounds

Segment MakeSegment(uint32_t ranks, size_t buffer_bytes = kBuffer) {
  auto segment = Segment::Create("test-collective", CollectiveSegmentBytes(ranks, buffer_bytes));
  EXPECT_TRUE(segment.ok()) << segment.status();
  EXPECT_TRUE(InitCollective(*segment, ranks, buffer_bytes).ok());
  return std::move(*segment);
}

std::unique_ptr<Collective> Attach(const Segment& segment, uint32_t rank,
                                   int64_t timeout_ns = 20 * kNsPerSecond, int64_t spin_ns = 0) {
  ShmCollectiveOptions options;
  options.rank = rank;
  options.timeout_ns = timeout_ns;
  options.wait.spin_ns = spin_ns;
  auto collective = AttachShmCollective(&segment, options);
  EXPECT_TRUE(collective.ok()) << collective.status();
  return std::move(*collective);
}

// Runs body(rank, collective) on a thread a rank, each joined to epoch 1.
void RunRanks(uint32_t ranks, int64_t spin_ns,
              const std::function<void(uint32_t, Collective*)>& body,
              size_t buffer_bytes = kBuffer) {
  const Segment segment = MakeSegment(ranks, buffer_bytes);
  std::vector<std::thread> threads;
  for (uint32_t r = 0; r < ranks; ++r) {
    threads.emplace_back([&, r] {
      auto collective = Attach(segment, r, 20 * kNsPerSecond, spin_ns);
      ASSERT_TRUE(collective->Reset(1).ok());
      body(r, collective.get());
    });
  }
  for (std::thread& thread : threads) thread.join();
}

testing::RunRanks Runner(int64_t spin_ns, size_t buffer_bytes = kBuffer) {
  return [=](uint32_t ranks, const testing::RankBody& body) {
    RunRanks(ranks, spin_ns, body, buffer_bytes);
  };
}

TEST(CollectiveTest, AllReduceAddsInRankOrder) {
  const size_t sizes[] = {0, 1, 31, 32, 33, 64, 500, 1, 2000};
  testing::AllReduceAddsInRankOrder(Runner(0), sizes);
}

// From 2 KiB on it is a reduce-scatter and a gather: chunks of whole cache lines, some of them
// empty.
TEST(CollectiveTest, LargeAllReduceAddsInRankOrder) {
  const size_t sizes[] = {511, 512, 513, 527, 528, 529, 600, 1, 1024, 2048, 2049, 5000};
  testing::AllReduceAddsInRankOrder(Runner(0, 16384), sizes);
}

TEST(CollectiveTest, RandomOperationsAsleep) {
  for (uint32_t ranks : {2u, 3u, 4u}) testing::RandomOperations(Runner(0), ranks, ranks, 400);
}

TEST(CollectiveTest, RandomOperationsSpinning) {
  testing::RandomOperations(Runner(50 * kNsPerUs), 2, 9, 2000);
}

TEST(CollectiveTest, NeedsAReset) {
  const Segment segment = MakeSegment(1);
  auto collective = Attach(segment, 0);
  EXPECT_EQ(collective->Barrier().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(collective->Reset(0).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(collective->Reset(7).ok());
  EXPECT_TRUE(collective->Barrier().ok());
  EXPECT_EQ(collective->Reset(6).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(collective->Reset(7).code(), absl::StatusCode::kFailedPrecondition)
      << "rounds of epoch 7 were already published";
  EXPECT_TRUE(collective->Reset(8).ok());
}

TEST(CollectiveTest, RespawnedRankMayNotJoinAnEpochInProgress) {
  const Segment segment = MakeSegment(1);
  ASSERT_TRUE(Attach(segment, 0)->Reset(3).ok());
  auto second = Attach(segment, 0);
  EXPECT_TRUE(second->Reset(3).ok()) << "its predecessor published nothing";
  EXPECT_TRUE(second->Barrier().ok());
  EXPECT_FALSE(Attach(segment, 0)->Reset(3).ok());
}

TEST(CollectiveTest, TimesOutAndCallsBack) {
  const Segment segment = MakeSegment(2);
  std::atomic<int> beats = 0;
  ShmCollectiveOptions options;
  options.timeout_ns = kNsPerSecond;
  options.on_wait = [](void* arg) { ++*static_cast<std::atomic<int>*>(arg); };
  options.on_wait_arg = &beats;
  auto collective = AttachShmCollective(&segment, options);
  const int64_t begin_ns = RealClock::Now();
  EXPECT_EQ((*collective)->Reset(1).code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_GE(RealClock::Now() - begin_ns, kNsPerSecond);
  EXPECT_GE(beats, 2);
  EXPECT_EQ((*collective)->Barrier().code(), absl::StatusCode::kFailedPrecondition);

  // Late is not too late: the other comes, and the reset is repeated.
  std::thread other([&] { EXPECT_TRUE(Attach(segment, 1)->Reset(1).ok()); });
  Status reset = (*collective)->Reset(1);
  while (absl::IsDeadlineExceeded(reset)) reset = (*collective)->Reset(1);
  EXPECT_TRUE(reset.ok()) << reset;
  other.join();
}

TEST(CollectiveTest, AbortEndsAWait) {
  const Segment segment = MakeSegment(3);
  std::atomic<int> joined = 0;
  std::atomic<bool> aborted = false;
  std::vector<std::thread> threads;
  for (uint32_t r = 0; r < 3; ++r) {
    threads.emplace_back([&, r] {
      auto collective = Attach(segment, r);
      ASSERT_TRUE(collective->Reset(1).ok());
      ++joined;
      if (r != 2) {
        EXPECT_EQ(collective->Barrier().code(), absl::StatusCode::kAborted);
        EXPECT_EQ(collective->Barrier().code(), absl::StatusCode::kFailedPrecondition);
      }
      // Rank 2 stays away until then: only the abort can have ended the waits.
      while (r == 2 && !aborted) std::this_thread::yield();
      ASSERT_TRUE(collective->Reset(2).ok());
      EXPECT_TRUE(collective->Barrier().ok());
      EXPECT_EQ(collective->Reset(1).code(), absl::StatusCode::kFailedPrecondition);
    });
  }
  while (joined < 3) std::this_thread::yield();
  AbortCollective(segment, 2);
  AbortCollective(segment, 1);  // an older one changes nothing
  aborted = true;
  for (std::thread& thread : threads) thread.join();
}

TEST(CollectiveTest, ResetToAnAbortedEpochIsAborted) {
  const Segment segment = MakeSegment(2);
  AbortCollective(segment, 5);
  EXPECT_EQ(Attach(segment, 0)->Reset(4).code(), absl::StatusCode::kAborted);
}

TEST(CollectiveTest, ASurvivorMeetsTheNewEpoch) {
  const Segment segment = MakeSegment(2);
  std::unique_ptr<Collective> survivor = Attach(segment, 0), first = Attach(segment, 1);
  std::thread other([&] { ASSERT_TRUE(first->Reset(1).ok()); });
  ASSERT_TRUE(survivor->Reset(1).ok());
  other.join();
  first.reset();
  auto second = Attach(segment, 1, 0);
  EXPECT_EQ(second->Reset(2).code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(survivor->Barrier().code(), absl::StatusCode::kAborted);
}

TEST(CollectiveTest, DifferentOperationsAreAnError) {
  const Segment segment = MakeSegment(2);
  std::thread other([&] {
    auto collective = Attach(segment, 1);
    ASSERT_TRUE(collective->Reset(1).ok());
    std::vector<float> data(8);
    EXPECT_EQ(collective->AllReduceSum(data).code(), absl::StatusCode::kFailedPrecondition);
  });
  auto collective = Attach(segment, 0);
  ASSERT_TRUE(collective->Reset(1).ok());
  std::vector<float> data(9);
  EXPECT_EQ(collective->AllReduceSum(data).code(), absl::StatusCode::kFailedPrecondition);
  other.join();
}

TEST(CollectiveTest, OutOfStepFlagsAreAnError) {
  const Segment segment = MakeSegment(2);
  auto* header = static_cast<CollectiveHeader*>(segment.data());
  std::thread other([&] { ASSERT_TRUE(Attach(segment, 1)->Reset(2).ok()); });
  auto collective = Attach(segment, 0);
  ASSERT_TRUE(collective->Reset(2).ok());
  other.join();
  header->lines[1].flag.store(uint64_t{2} << 32 | 9);
  EXPECT_EQ(collective->Barrier().code(), absl::StatusCode::kInternal);
}

TEST(CollectiveTest, RefusesBadArguments) {
  const Segment segment = MakeSegment(1);
  auto collective = Attach(segment, 0);
  ASSERT_TRUE(collective->Reset(1).ok());
  std::vector<std::byte> in(4), out(4);
  const size_t right[] = {4}, wrong[] = {5}, two[] = {4, 0};
  EXPECT_TRUE(collective->AllGather(in, right, out).ok());
  EXPECT_EQ(collective->AllGather(in, wrong, out).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(collective->AllGather(in, two, out).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(collective->AllGather(in, right, {}).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(collective->Broadcast(in, 1).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(collective->Gather(in, right, out, 1).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(collective->Barrier().ok()) << "nothing was published by those";
}

TEST(CollectiveTest, RefusesWrongSegments) {
  auto blank = Segment::Create("blank", CollectiveSegmentBytes(2, 4096));
  ShmCollectiveOptions options;
  EXPECT_FALSE(AttachShmCollective(&*blank, options).ok());
  EXPECT_FALSE(InitCollective(*blank, 0, 4096).ok());
  EXPECT_FALSE(InitCollective(*blank, kMaxRanks + 1, 128).ok());
  EXPECT_FALSE(InitCollective(*blank, 2, 64).ok());
  EXPECT_FALSE(InitCollective(*blank, 3, 4096).ok());
  EXPECT_FALSE(InitCollective(*blank, 2, SIZE_MAX).ok());
  ASSERT_TRUE(InitCollective(*blank, 2, 4096).ok());
  options.rank = 2;
  EXPECT_FALSE(AttachShmCollective(&*blank, options).ok());
  options.rank = 1;
  EXPECT_TRUE(AttachShmCollective(&*blank, options).ok());
  auto* header = static_cast<CollectiveHeader*>(blank->data());
  for (uint64_t bytes : {uint64_t{0}, uint64_t{127}, uint64_t{8192}, UINT64_MAX}) {
    header->buffer_bytes = bytes;
    EXPECT_FALSE(AttachShmCollective(&*blank, options).ok()) << bytes;
  }
  header->buffer_bytes = 4096;
  header->ranks = 0;
  EXPECT_FALSE(AttachShmCollective(&*blank, options).ok());
  AbortCollective(*blank, 3);
  EXPECT_EQ(header->abort_epoch.load(), 0u) << "a corrupt segment is left alone";
}

TEST(SingleRankCollectiveTest, CopiesOrDoesNothing) {
  auto collective = MakeSingleRankCollective();
  EXPECT_EQ(collective->size(), 1u);
  float data[] = {1, 2};
  EXPECT_TRUE(collective->Reset(1).ok() && collective->AllReduceSum(data).ok());
  EXPECT_EQ(data[1], 2);
  const std::vector<std::byte> in = {std::byte{1}, std::byte{2}};
  std::vector<std::byte> out(2);
  const size_t counts[] = {2};
  EXPECT_TRUE(collective->AllGather(in, counts, out).ok());
  EXPECT_EQ(in, out);
  EXPECT_FALSE(collective->AllGather(in, counts, std::span(out).first(1)).ok());
  EXPECT_FALSE(collective->Broadcast(out, 1).ok());
}

}  // namespace
}  // namespace flotilla
