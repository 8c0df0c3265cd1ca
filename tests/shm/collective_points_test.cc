// SIGKILL and SIGSTOP of a rank at every point between two shared writes of Reset and of each
// operation: the others end with a Status, never with a wrong result and never later than their
// deadline; a successor joins the next epoch and everything is right again.
//
// The test process plays scheduler and launcher: it sets the epoch word, aborts, respawns.
#include <gtest/gtest.h>
#include <signal.h>

#include <atomic>
#include <cstring>
#include <memory>
#include <new>
#include <numeric>
#include <thread>
#include <vector>

#include "common/base/clock.h"
#include "shm/barrier.h"
#include "shm/collective.h"
#include "tests/shm/peer_process.h"

namespace flotilla {
namespace {

using State = PeerProcess::State;

constexpr uint32_t kRanks = 3;
constexpr uint32_t kVictim = 1;
constexpr uint32_t kOver = UINT32_MAX;  // the epoch word's last value: exit
constexpr uint32_t kMaxEpochs = 8;
constexpr uint32_t kMaxPoints = 1000;
constexpr int64_t kLongNs = 20 * kNsPerSecond;
constexpr size_t kBuffer = 256;

// What the processes share beside the collective itself.
struct Stage {
  std::atomic<uint32_t> epoch;
  std::atomic<uint32_t> bell;  // ranks: +1 with each change below
  std::atomic<uint32_t> done[kMaxEpochs];
  std::atomic<uint32_t> failed[kMaxEpochs];
};

enum ExitCode { kFine = 0, kWrongResult = 3, kWrongStatus = 4, kResetFailed = 5, kNoEpoch = 6 };

float Value(uint32_t rank, size_t i, uint32_t epoch) {
  return std::ldexp(1.0f + static_cast<float>((i * 5 + epoch) % 31) / 31,
                    static_cast<int>((rank * 9 + i) % 20));
}

// Every operation once, of one piece and of several. Ends the process at a wrong result.
Status RunOperations(Collective* collective, uint32_t epoch) {
  const uint32_t me = collective->rank();
  for (size_t n : {8u, 50u}) {
    std::vector<float> data(n);
    for (size_t i = 0; i < n; ++i) data[i] = Value(me, i, epoch);
    RETURN_IF_ERROR(collective->AllReduceSum(data));
    for (size_t i = 0; i < n; ++i) {
      const float sum = Value(0, i, epoch) + Value(1, i, epoch) + Value(2, i, epoch);
      if (data[i] != sum) _exit(kWrongResult);
    }
  }
  const size_t counts[kRanks] = {100, 200, 0};
  std::vector<std::byte> in(counts[me]), out(300);
  const auto byte = [&](uint32_t rank, size_t i) {
    return static_cast<std::byte>(rank * 50 + i + epoch * 7);
  };
  const auto check = [&] {
    for (uint32_t r = 0, at = 0; r < kRanks; ++r)
      for (size_t i = 0; i < counts[r]; ++i)
        if (out[at++] != byte(r, i)) _exit(kWrongResult);
  };
  for (size_t i = 0; i < in.size(); ++i) in[i] = byte(me, i);
  RETURN_IF_ERROR(collective->AllGather(in, counts, out));
  check();
  std::fill(out.begin(), out.end(), std::byte{0});
  RETURN_IF_ERROR(collective->Gather(in, counts, out, 0));
  if (me == 0) check();
  std::vector<std::byte> sent(150);
  for (size_t i = 0; i < sent.size(); ++i) sent[i] = byte(me, i);
  RETURN_IF_ERROR(collective->Broadcast(sent, kVictim));
  for (size_t i = 0; i < sent.size(); ++i)
    if (sent[i] != byte(kVictim, i)) _exit(kWrongResult);
  return collective->Barrier();
}

struct RankPlan {
  uint32_t rank = 0;
  PointPlan point = {};
  uint32_t point_epoch = 1;      // where the points are counted …
  int64_t timeout_ns = kLongNs;  // … and this timeout holds
  bool stray_barrier = false;    // epoch 1 ends with a barrier that the victim does not join
};

void Note(std::atomic<uint32_t>* counter, Stage* stage) {
  counter->fetch_add(1);
  stage->bell.fetch_add(1);
  FutexWakeAll(&stage->bell);
}

// A rank's life: each epoch it is told of, until kOver.
int RunRank(const Segment* segment, Stage* stage, const RankPlan& plan) {
  const int64_t give_up_ns = RealClock::Now() + 3 * kLongNs;
  for (uint32_t last = 0;;) {
    const uint32_t epoch = stage->epoch.load();
    if (epoch == kOver) return kFine;
    if (epoch == last) {
      if (!FutexWait(&stage->epoch, last, give_up_ns)) return kNoEpoch;
      continue;
    }
    last = epoch;
    ShmCollectiveOptions options;
    options.rank = plan.rank;
    options.timeout_ns = epoch == plan.point_epoch ? plan.timeout_ns : kLongNs;
    auto collective = AttachShmCollective(segment, options);
    if (!collective.ok()) return kResetFailed;
    if (epoch == plan.point_epoch) ArmPoint(plan.point);
    Status status = (*collective)->Reset(epoch);
    if (status.ok()) status = RunOperations(collective->get(), epoch);
    if (status.ok() && epoch == 1 && plan.stray_barrier) status = (*collective)->Barrier();
    ArmPoint({});
    if (!status.ok() && !absl::IsAborted(status) && !absl::IsDeadlineExceeded(status)) {
      std::fprintf(stderr, "rank %u: %s\n", plan.rank, status.ToString().c_str());
      return kWrongStatus;
    }
    Note(status.ok() ? &stage->done[epoch] : &stage->failed[epoch], stage);
  }
}

class Replica {
 public:
  Replica()
      : segment_(*Segment::Create("points-col", CollectiveSegmentBytes(kRanks, kBuffer))),
        stage_segment_(*Segment::Create("points-stage", 4096)),
        stage_(new (stage_segment_.data()) Stage{}) {
    EXPECT_TRUE(InitCollective(segment_, kRanks, kBuffer).ok());
    stage_->epoch = 1;
  }

  void End(uint32_t rank) { ranks_[rank].reset(); }
  void Start(const RankPlan& plan) {
    End(plan.rank);  // one process a rank: the launcher reaps before it respawns
    ranks_[plan.rank] =
        std::make_unique<PeerProcess>([this, plan] { return RunRank(&segment_, stage_, plan); });
  }
  PeerProcess& victim() { return *ranks_[kVictim]; }
  Stage* stage() { return stage_; }

  void Announce(uint32_t epoch) {
    stage_->epoch.store(epoch);
    FutexWakeAll(&stage_->epoch);
  }
  void Abort(uint32_t epoch) { AbortCollective(segment_, epoch); }

  // Until `ready`, or false: a hang.
  template <typename Ready>
  bool WaitUntil(Ready&& ready) {
    const int64_t give_up_ns = RealClock::Now() + kLongNs;
    for (;;) {
      const uint32_t bell = stage_->bell.load();
      if (ready()) return true;
      const int64_t now_ns = RealClock::Now();
      if (now_ns > give_up_ns) return false;
      FutexWait(&stage_->bell, bell, now_ns + kNsPerMs);
    }
  }

  // Everyone has finished `epoch` with right results and exits.
  void ExpectAllDone(uint32_t epoch) {
    EXPECT_TRUE(WaitUntil([&] { return stage_->done[epoch] + stage_->failed[epoch] == kRanks; }));
    EXPECT_EQ(stage_->done[epoch], kRanks);
    Announce(kOver);
    for (auto& rank : ranks_) {
      EXPECT_TRUE(rank->WaitForEnd(20));
      EXPECT_EQ(rank->exit_code(), kFine);
    }
  }

 private:
  Segment segment_, stage_segment_;
  Stage* stage_;
  std::unique_ptr<PeerProcess> ranks_[kRanks];
};

enum class Met { kPoint, kEnd, kUnclear };

// Epoch 1 with a victim; what then, per signal. kEnd: it finished without meeting the point.
Met Victim(Replica* replica, uint32_t epoch) {
  Stage* stage = replica->stage();
  bool all_over = false;
  EXPECT_TRUE(replica->WaitUntil([&] {
    all_over = stage->done[epoch] + stage->failed[epoch] == kRanks;
    return all_over || replica->victim().Poll() != State::kRunning;
  }));
  if (replica->victim().Poll() != State::kRunning) return Met::kPoint;
  return stage->done[epoch] == kRanks ? Met::kEnd : Met::kUnclear;
}

Met Killed(uint32_t point) {
  Replica replica;
  for (uint32_t r = 0; r < kRanks; ++r)
    replica.Start({.rank = r, .point = {r == kVictim ? point : 0, SIGKILL}});
  const Met met = Victim(&replica, 1);
  if (met == Met::kPoint) {
    EXPECT_EQ(replica.victim().Poll(), State::kKilled);
    // As the scheduler does: new epoch, abort; and the launcher respawns.
    replica.Announce(2);
    replica.Abort(2);
    replica.Start({.rank = kVictim});
  }
  replica.ExpectAllDone(met == Met::kPoint ? 2 : 1);
  return met;
}

// Nobody aborts: the survivors' own deadline ends their waits.
Met Stopped(uint32_t point) {
  Replica replica;
  for (uint32_t r = 0; r < kRanks; ++r)
    replica.Start({.rank = r,
                   .point = {r == kVictim ? point : 0, SIGSTOP},
                   .timeout_ns = (r == kVictim ? 200 : 40) * kNsPerMs});
  const Met met = Victim(&replica, 1);
  if (met == Met::kPoint) {
    EXPECT_EQ(replica.victim().Poll(), State::kStopped);
    EXPECT_TRUE(replica.WaitUntil([&] {
      return replica.stage()->done[1] + replica.stage()->failed[1] >= kRanks - 1;
    })) << "a survivor hangs";
    // It wakes up in the middle of epoch 1 and finds the others in epoch 2.
    replica.Announce(2);
    replica.victim().Continue();
  } else if (met == Met::kUnclear) {
    replica.Announce(2);  // a slow machine: a deadline passed although nobody was stopped
    replica.Abort(2);
  }
  replica.ExpectAllDone(met == Met::kEnd ? 1 : 2);
  return met;
}

// The victim has died before; its successor is killed while it joins epoch 2 and in it, where the
// survivors still wait in epoch 1: nobody has aborted that.
Met SuccessorKilled(uint32_t point) {
  Replica replica;
  for (uint32_t r = 0; r < kRanks; ++r) replica.Start({.rank = r, .stray_barrier = r != kVictim});
  EXPECT_TRUE(replica.WaitUntil([&] { return replica.stage()->done[1] == 1; }));
  replica.End(kVictim);
  replica.Announce(2);
  replica.Start({.rank = kVictim, .point = {point, SIGKILL}, .point_epoch = 2});
  const Met met = Victim(&replica, 2);
  if (met == Met::kPoint) {
    EXPECT_EQ(replica.victim().Poll(), State::kKilled);
    replica.Announce(3);
    replica.Abort(3);
    replica.Start({.rank = kVictim});
  }
  replica.ExpectAllDone(met == Met::kPoint ? 3 : 2);
  EXPECT_EQ(replica.stage()->failed[1], kRanks - 1) << "the stray barrier cannot succeed";
  return met;
}

void Enumerate(Met (*meets)(uint32_t), uint32_t least) {
  uint32_t unclear = 0, point = 1;
  while (point < kMaxPoints && unclear < 200) {
    SCOPED_TRACE(testing::Message() << "point " << point);
    const Met met = meets(point);
    if (testing::Test::HasFailure()) return;
    if (met == Met::kEnd) break;
    met == Met::kUnclear ? ++unclear : ++point;
  }
  EXPECT_LT(point, kMaxPoints);
  EXPECT_LT(unclear, 200u);
  EXPECT_GT(point, least) << "the library's points were not compiled in";
  std::printf("%u points, %u repeated\n", point - 1, unclear);
}

// Four points a round at least; twelve rounds (the larger all-reduce has four) and a reset.
constexpr uint32_t kLeastPoints = 12 * 4;
TEST(CollectivePointsTest, RankKilled) { Enumerate(Killed, kLeastPoints); }
TEST(CollectivePointsTest, RankStopped) { Enumerate(Stopped, kLeastPoints); }
TEST(CollectivePointsTest, SuccessorKilledWhileOthersAreBehind) {
  Enumerate(SuccessorKilled, kLeastPoints);
}

// The barrier: the others end by their deadline, and it is over for good.
TEST(BarrierPointsTest, PartyKilledOrStopped) {
  for (int signal : {SIGKILL, SIGSTOP}) {
    for (uint32_t point = 1;; ++point) {
      SCOPED_TRACE(testing::Message() << "signal " << signal << " point " << point);
      ASSERT_LT(point, kMaxPoints);
      Segment memory = *Segment::Create("points-barrier", 4096);
      auto* state = new (memory.data()) BarrierState{};
      PeerProcess peer([&] {
        ArmPoint({point, signal});
        Barrier barrier(state, 2, {});
        for (int i = 0; i < 3; ++i)
          if (!barrier.Wait(RealClock::Now() + kLongNs).ok()) return 1;
        return 0;
      });
      Barrier barrier(state, 2, {});
      Status status;
      for (int i = 0; i < 3 && status.ok(); ++i)
        status = barrier.Wait(RealClock::Now() + 20 * kNsPerMs);
      if (peer.WaitWhileRunning() == State::kExited) {
        // A busy machine may have let the deadline pass.
        if (status.ok()) {
          EXPECT_EQ(peer.exit_code(), 0);
          EXPECT_GT(point, 6u);
          break;
        }
        --point;
        continue;
      }
      EXPECT_TRUE(status.ok() || absl::IsDeadlineExceeded(status)) << status;
      if (!status.ok()) {
        EXPECT_TRUE(absl::IsAborted(barrier.Wait(0)));
      }
    }
  }
}

}  // namespace
}  // namespace flotilla
