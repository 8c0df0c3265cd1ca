// The worker's loop with a device that samples itself, as processes whose GPU is emulated and which
// reach each other's memory: plans that come while a step is begun, and what else may come then.
#include <gtest/gtest.h>
#include <unistd.h>

#include <deque>

#include "tests/fakes/gguf_builder.h"
#include "tests/worker_proc/plan_driver.h"
#include "tests/worker_proc/test_replica.h"

namespace flotilla {
namespace {

using testing::DriverRequest;
using testing::PlanDriver;
using testing::TestReplica;

constexpr auto kInvalid = static_cast<uint32_t>(absl::StatusCode::kInvalidArgument);

// Of so many ranks.
class WorkerAheadTest : public ::testing::TestWithParam<uint32_t> {
 protected:
  WorkerAheadTest() : path_(StrCat(::testing::TempDir(), "worker_ahead_", getpid(), ".gguf")) {
    testing::WriteTinyLlama(path_, {});
    auto created = TestReplica::Create(
        {GetParam(),
         FLOTILLA_EMULATED_WORKER,
         path_,
         {"--device", "cuda", "--kv-cache-memory", "4MiB", "--context-length", "256",
          "--max-running-requests", "4", "--chunked-prefill-size", "32", "--graph-mode", "none"}});
    CHECK_OK(created.status());
    replica_ = std::move(*created);
    CHECK_OK(replica_->BeginEpoch(1));
  }
  ~WorkerAheadTest() override { unlink(path_.c_str()); }

  // Slot 0 opened with a prompt of one token, and then another token of it.
  static StepPlan First(uint64_t step_id, uint32_t epoch) {
    StepPlan plan;
    plan.step_id = step_id;
    plan.epoch = epoch;
    plan.opens = {{0, 0, {}}};
    plan.rows = {{0, 0, 1, 1, kRowSample, -1}};
    plan.input_ids = {5};
    plan.new_pages = {0};
    return plan;
  }
  static StepPlan Next(uint64_t step_id, uint32_t epoch, uint32_t start_pos) {
    StepPlan plan;
    plan.step_id = step_id;
    plan.epoch = epoch;
    plan.rows = {{0, start_pos, 1, 0, kRowSample, -1}};
    plan.input_ids = {kLastToken};
    return plan;
  }
  // Steps 20, 21, 22 and 23, and the tokens that they sample.
  void PublishFour(uint32_t epoch) {
    Publish(First(20, epoch));
    for (uint32_t i = 1; i < 4; ++i) Publish(Next(20 + i, epoch, i));
  }
  std::vector<int32_t> ReadFour(uint32_t epoch) {
    std::vector<int32_t> tokens;
    while (tokens.size() < 4) {
      const StepResult result = Read();
      if (result.epoch < epoch) continue;  // the scheduler passes over them
      EXPECT_EQ(result.step_id, 20 + tokens.size());
      EXPECT_EQ(result.epoch, epoch);
      EXPECT_EQ(result.rows.size(), 1u) << result.message;
      tokens.push_back(result.rows.at(0).token);
    }
    return tokens;
  }
  void Publish(const StepPlan& plan) { ASSERT_TRUE(replica_->Publish(plan).ok()); }
  StepResult Read() {
    StatusOr<StepResult> result = replica_->ReadResult();
    CHECK_OK(result.status());
    return std::move(*result);
  }
  void ExpectNext(uint64_t step_id, uint32_t code) {
    const StepResult result = Read();
    EXPECT_EQ(result.step_id, step_id);
    EXPECT_EQ(result.code, code) << result.message;
    EXPECT_EQ(result.rows.size(), code == 0 ? 1u : 0u);
  }

  const std::string path_;
  std::unique_ptr<TestReplica> replica_;
};

class OneWorkerAheadTest : public WorkerAheadTest {};
class TwoWorkersAheadTest : public WorkerAheadTest {};
INSTANTIATE_TEST_SUITE_P(Ranks, WorkerAheadTest, ::testing::Values(1, 2));
INSTANTIATE_TEST_SUITE_P(Ranks, OneWorkerAheadTest, ::testing::Values(1));
INSTANTIATE_TEST_SUITE_P(Ranks, TwoWorkersAheadTest, ::testing::Values(2));

TEST_P(WorkerAheadTest, PlansInTheRingAnswerAsThoseThatWait) {
  std::vector<DriverRequest> requests;
  for (const uint32_t length : {3u, 40u, 9u, 17u, 2u}) {
    DriverRequest& request = requests.emplace_back();
    for (uint32_t i = 0; i < length; ++i) {
      request.prompt.push_back(static_cast<int32_t>((length * 7 + i * 13) % 200));
    }
    request.max_new_tokens = 2 + length % 5;
    request.sampling.temperature = 0.8f;
    request.sampling.seed = length;
    request.sampling.num_logprobs = 2;
    if (length == 9) request.sampling.presence_penalty = 0.5f;
  }
  std::vector<DriverRequest> expected = requests;
  const testing::DriverOptions options = {
      .chunk_size = 20, .at_once = 3, .num_pages = 40, .last_tokens = true};
  const auto execute = [this](const StepPlan& plan) {
    Publish(plan);
    return Read();
  };
  PlanDriver(options, execute).Run(&expected);
  std::deque<StepResult*> awaited;
  PlanDriver(options, execute)
      .RunAhead(
          &requests,
          [&](StepPlan* plan, StepResult* result) {
            Publish(*plan);
            awaited.push_back(result);
            return true;
          },
          [&] {
            *awaited.front() = Read();
            awaited.pop_front();
          });
  for (size_t i = 0; i < requests.size(); ++i) {
    EXPECT_EQ(requests[i].output, expected[i].output) << i;
    ASSERT_EQ(requests[i].logprobs.size(), expected[i].logprobs.size());
    for (size_t t = 0; t < requests[i].logprobs.size(); ++t) {
      EXPECT_EQ(requests[i].logprobs[t].logprob, expected[i].logprobs[t].logprob) << i;
    }
  }
}

TEST_P(WorkerAheadTest, WhatIsRefusedIsAnsweredInItsTurn) {
  Publish(First(10, 1));
  StepPlan gap = Next(11, 1, 7);
  Publish(gap);
  Publish(Next(12, 1, 1));
  ASSERT_TRUE(replica_->PublishFrame("junk").ok());
  Publish(Next(13, 1, 2));
  Publish(Next(14, 9, 3));  // of another epoch: no answer
  Publish(Next(15, 1, 3));
  ExpectNext(10, 0);
  ExpectNext(11, kInvalid);
  ExpectNext(12, 0);
  ExpectNext(0, kInvalid);
  ExpectNext(13, 0);
  ExpectNext(15, 0);
}

// Their results are the old epoch's.
TEST_P(OneWorkerAheadTest, AnEpochBeginsBehindTheStepsThatAreBegun) {
  std::vector<std::vector<int32_t>> tokens;
  for (uint32_t epoch = 1; epoch <= 3; ++epoch) {
    PublishFour(epoch);
    ASSERT_TRUE(replica_->BeginEpoch(epoch + 1).ok());
    tokens.push_back(ReadFour(epoch));
    EXPECT_EQ(tokens.back(), tokens[0]);
  }
}

// Whichever rank it is, and whenever: the other's steps are void, soon, and the next epoch has the
// tokens that this one would have had.
TEST_P(TwoWorkersAheadTest, ARankIsKilledWhileStepsAreBegun) {
  PublishFour(1);
  const std::vector<int32_t> tokens = ReadFour(1);
  for (uint32_t epoch = 2; epoch < 14; ++epoch) {
    PublishFour(epoch - 1);
    for (uint32_t i = 0; i < epoch % 4; ++i) EXPECT_EQ(Read().code, 0u);
    const uint32_t lost = epoch / 4 % 2;
    replica_->Kill(lost);
    ASSERT_TRUE(replica_->Spawn(lost).ok());
    const int64_t begin = RealClock::Now();
    ASSERT_TRUE(replica_->BeginEpoch(epoch).ok()) << epoch;
    EXPECT_LT(RealClock::Now() - begin, 20 * kNsPerSecond)
        << "it waited for an exchange to give up";
    PublishFour(epoch);
    EXPECT_EQ(ReadFour(epoch), tokens) << epoch;
  }
}

TEST_P(WorkerAheadTest, AShutdownComesBehindTheStepsThatAreBegun) {
  Publish(First(30, 1));
  Publish(Next(31, 1, 1));
  StepPlan shutdown;
  shutdown.command = StepCommand::kShutdown;
  shutdown.epoch = 1;
  Publish(shutdown);
  ExpectNext(30, 0);
  ExpectNext(31, 0);
  for (uint32_t rank = 0; rank < GetParam(); ++rank) EXPECT_EQ(replica_->WaitExit(rank), 0);
}

}  // namespace
}  // namespace flotilla
