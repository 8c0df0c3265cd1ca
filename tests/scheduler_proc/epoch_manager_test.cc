#include "scheduler_proc/loop/epoch_manager.h"

#include <gtest/gtest.h>

#include <vector>

namespace flotilla {
namespace {

using Event = EpochManager::Event;
using State = EpochManager::State;

class FakePort final : public StepPort {
 public:
  void ActivateReader(uint32_t rank) override { log.push_back(StrCat("+", rank)); }
  void DeactivateReader(uint32_t rank) override { log.push_back(StrCat("-", rank)); }
  Status Publish(const StepPlan& plan) override {
    if (!publish_status.ok()) return publish_status;
    log.push_back(StrCat("reset ", plan.epoch, "/", plan.num_pages));
    return OkStatus();
  }
  void AbortCollective(uint32_t epoch) override { log.push_back(StrCat("abort ", epoch)); }

  std::vector<std::string> Take() { return std::exchange(log, {}); }
  std::vector<std::string> log;
  Status publish_status;
};

class EpochManagerTest : public testing::Test {
 protected:
  EpochManagerTest() {
    options_.tp_size = 2;
    options_.ready_timeout_ns = 100;
    manager_ = std::make_unique<EpochManager>(options_, control_.operator->(), &port_);
  }
  ProcessSlot& slot(uint32_t rank) { return control_->workers[rank]; }
  void Load(uint32_t rank, uint64_t pages) {
    slot(rank).incarnation.fetch_add(1);
    slot(rank).pid.store(100 + rank);
    control_->reports[rank].max_kv_pages.store(pages);
    ReplicaControl::SetState(&slot(rank), ProcessState::kLoaded);
  }
  void Ready(uint32_t rank) {
    slot(rank).ready_epoch.store(manager_->epoch());
    ReplicaControl::SetState(&slot(rank), ProcessState::kReady);
  }
  Event Poll() {
    auto event = manager_->Poll(now_ns_);
    EXPECT_TRUE(event.ok()) << event.status();
    return event.ok() ? *event : Event::kNone;
  }
  void Serve() {
    Load(0, 50);
    Load(1, 40);
    Poll();
    Ready(0);
    Ready(1);
    ASSERT_EQ(Poll(), Event::kBegan);
    port_.Take();
  }

  EpochManager::Options options_;
  ReplicaControl control_ = *ReplicaControl::Create(2);
  FakePort port_;
  std::unique_ptr<EpochManager> manager_;
  int64_t now_ns_ = 0;
};

using Log = std::vector<std::string>;

TEST_F(EpochManagerTest, StartsAsEpochOneOnceAllRanksAreLoaded) {
  EXPECT_EQ(Poll(), Event::kNone);
  Load(0, 50);
  EXPECT_EQ(Poll(), Event::kNone);
  EXPECT_EQ(slot(0).admitted.load(), 0u);
  EXPECT_TRUE(port_.log.empty());
  const uint32_t bell = control_->worker_bell.load();
  Load(1, 40);
  EXPECT_EQ(Poll(), Event::kNone);
  EXPECT_EQ(port_.Take(), (Log{"+0", "+1", "reset 1/40"}));  // the smallest rank decides
  EXPECT_EQ(slot(0).admitted.load(), 1u);
  EXPECT_NE(control_->worker_bell.load(), bell);
  Ready(0);
  EXPECT_EQ(Poll(), Event::kNone);
  Ready(1);
  EXPECT_EQ(Poll(), Event::kBegan);
  EXPECT_TRUE(manager_->serving());
  EXPECT_EQ(manager_->num_pages(), 40u);
  EXPECT_EQ(Poll(), Event::kNone);
}

TEST_F(EpochManagerTest, ADeadRankIsTheNextEpoch) {
  Serve();
  ReplicaControl::SetState(&slot(1), ProcessState::kDead);
  EXPECT_EQ(Poll(), Event::kLost);
  EXPECT_EQ(control_->epoch.load(), 2u);
  EXPECT_EQ(port_.Take(), (Log{"abort 2", "-1"}));
  EXPECT_EQ(Poll(), Event::kNone);  // once only
  EXPECT_TRUE(port_.Take().empty());
  Load(1, 60);
  EXPECT_EQ(Poll(), Event::kNone);
  EXPECT_EQ(port_.Take(), (Log{"+1", "reset 2/40"}));  // the survivor's cursor stays
  EXPECT_EQ(slot(1).admitted.load(), 2u);
  EXPECT_EQ(Poll(), Event::kNone);  // kReady of epoch 1 is not ready
  Ready(0);
  Ready(1);
  EXPECT_EQ(Poll(), Event::kBegan);
}

TEST_F(EpochManagerTest, ANewIncarnationNobodySawDieIsTheNextEpochToo) {
  Serve();
  Load(0, 50);
  EXPECT_EQ(Poll(), Event::kLost);
  EXPECT_EQ(port_.Take(), (Log{"abort 2", "-0", "+0", "reset 2/40"}));
}

TEST_F(EpochManagerTest, ADeathWhileStartingIsNotReportedAsLost) {
  Load(0, 50);
  Load(1, 40);
  Poll();
  port_.Take();
  ReplicaControl::SetState(&slot(0), ProcessState::kDead);
  EXPECT_EQ(Poll(), Event::kNone);
  EXPECT_EQ(manager_->state(), State::kWaitLoaded);
  EXPECT_EQ(port_.Take(), (Log{"abort 2", "-0"}));
  // Rank 1 has not even seen its admission yet: kLoaded with admitted set is a survivor.
  Load(0, 50);
  Poll();
  EXPECT_EQ(port_.Take(), (Log{"+0", "reset 2/40"}));
}

TEST_F(EpochManagerTest, ReadyTimeoutTriesTheNextEpoch) {
  Load(0, 50);
  Load(1, 40);
  Poll();
  Ready(0);
  port_.Take();
  EXPECT_EQ(manager_->NextDeadlineNs(), 100);
  now_ns_ = 99;
  Poll();
  EXPECT_EQ(manager_->epoch(), 1u);
  now_ns_ = 100;
  Poll();
  EXPECT_EQ(manager_->epoch(), 2u);
  EXPECT_EQ(port_.Take(), (Log{"abort 2", "reset 2/40"}));
}

TEST_F(EpochManagerTest, RestartAndStuckRing) {
  Serve();
  manager_->Restart("test");
  EXPECT_FALSE(manager_->serving());
  port_.publish_status = absl::DeadlineExceededError("full");
  EXPECT_EQ(Poll(), Event::kNone);
  EXPECT_EQ(manager_->epoch(), 3u);
  EXPECT_EQ(manager_->state(), State::kWaitLoaded);
  port_.publish_status = OkStatus();
  Poll();
  Ready(0);
  Ready(1);
  EXPECT_EQ(Poll(), Event::kBegan);
}

TEST_F(EpochManagerTest, NoMemoryIsFatal) {
  Load(0, 50);
  Load(1, 0);
  const auto event = manager_->Poll(0);
  EXPECT_EQ(event.status().code(), absl::StatusCode::kResourceExhausted);
}

TEST_F(EpochManagerTest, ARestartedRankWithLessMemoryIsFatal) {
  Serve();
  Load(1, 39);
  EXPECT_EQ(manager_->Poll(0).status().code(), absl::StatusCode::kResourceExhausted);
}

}  // namespace
}  // namespace flotilla
