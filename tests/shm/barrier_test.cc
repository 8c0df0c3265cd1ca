#include "shm/barrier.h"

#include <gtest/gtest.h>

#include <thread>
#include <vector>

#include "common/base/clock.h"

namespace flotilla {
namespace {

void RunBarrier(uint32_t parties, int64_t spin_ns, int rounds) {
  BarrierState state;
  std::vector<int> value(parties);  // plain: the barrier alone orders it
  std::vector<std::thread> threads;
  for (uint32_t p = 0; p < parties; ++p) {
    threads.emplace_back([&, p] {
      Barrier barrier(&state, parties, {spin_ns});
      for (int round = 1; round <= rounds; ++round) {
        value[p] = round;
        ASSERT_TRUE(barrier.Wait().ok());
        for (int other : value) ASSERT_EQ(other, round);
        ASSERT_TRUE(barrier.Wait().ok());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(BarrierTest, OrdersWritesAsleep) {
  RunBarrier(1, 0, 3);
  RunBarrier(2, 0, 1000);
  RunBarrier(5, 0, 300);
}

TEST(BarrierTest, OrdersWritesSpinning) { RunBarrier(2, 20 * kNsPerUs, 3000); }

TEST(BarrierTest, AMissingPartyBreaksItForGood) {
  BarrierState state;
  std::thread patient(
      [&] { EXPECT_EQ(Barrier(&state, 3, {}).Wait().code(), absl::StatusCode::kAborted); });
  while (state.arrived.load() == 0) std::this_thread::yield();
  Barrier barrier(&state, 3, {});
  EXPECT_EQ(barrier.Wait(RealClock::Now() + 20 * kNsPerMs).code(),
            absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(barrier.Wait().code(), absl::StatusCode::kAborted);
  patient.join();
}

}  // namespace
}  // namespace flotilla
