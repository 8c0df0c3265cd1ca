#include "router/simulation/sim_replica.h"

#include <gtest/gtest.h>

namespace flotilla {
namespace {

constexpr ReplicaCost kCost = {.step_s = 1,
                               .prompt_token_s = 0.01,
                               .decode_token_s = 0.1,
                               .chunk_tokens = 100,
                               .max_running = 2,
                               .kv_tokens = 1000,
                               .page_size = 10};

SimRequest Request(uint64_t conversation, uint32_t prompt, uint32_t output) {
  SimRequest request;
  request.turn.conversation = conversation;
  request.turn.prompt_tokens = prompt;
  request.turn.output_tokens = output;
  return request;
}

// Steps until nothing is left to do.
struct Steps {
  explicit Steps(SimReplica* replica) {
    while (const double seconds = replica->BeginStep()) {
      durations.push_back(seconds);
      replica->EndStep(&result);
    }
  }
  std::vector<double> durations;
  SimReplica::StepResult result;
};

TEST(SimReplicaTest, AStepCostsWhatItComputes) {
  SimReplica replica(kCost, 1);
  EXPECT_EQ(replica.BeginStep(), 0) << "nothing to do";
  replica.Submit(Request(1, 150, 3));
  EXPECT_EQ(replica.queued_tokens(), 150u);
  const Steps run(&replica);
  // Two chunks, of which the last brings the first token; two decodes.
  ASSERT_EQ(run.durations.size(), 4u);
  EXPECT_DOUBLE_EQ(run.durations[0], 2);
  EXPECT_DOUBLE_EQ(run.durations[1], 1.5);
  EXPECT_DOUBLE_EQ(run.durations[2], 1.1);
  EXPECT_DOUBLE_EQ(run.durations[3], 1.1);
  EXPECT_EQ(run.result.first_tokens.size(), 1u);
  ASSERT_EQ(run.result.finished.size(), 1u);
  EXPECT_EQ(run.result.finished[0].generated, 3u);
  EXPECT_EQ(replica.work_tokens(), 152u);
  EXPECT_EQ(replica.queued_tokens(), 0u);
  EXPECT_EQ(replica.running_tokens(), 0u);
}

TEST(SimReplicaTest, AStragglerTakesLonger) {
  SimReplica replica(kCost, 3);
  replica.Submit(Request(1, 100, 1));
  EXPECT_DOUBLE_EQ(replica.BeginStep(), 6);
}

TEST(SimReplicaTest, OnlySoManyRunAtOnceAndTheOthersWait) {
  SimReplica replica(kCost, 1);
  for (uint64_t i = 1; i <= 3; ++i) replica.Submit(Request(i, 10, 1));
  EXPECT_DOUBLE_EQ(replica.BeginStep(), 1.2);
  EXPECT_EQ(replica.queued_tokens(), 30u) << "the step has not ended";
  SimReplica::StepResult result;
  replica.EndStep(&result);
  EXPECT_EQ(result.finished.size(), 2u);
  EXPECT_EQ(replica.queued_tokens(), 10u);
}

TEST(SimReplicaTest, TheNextTurnReadsWhatTheLastOneLeft) {
  SimReplica replica(kCost, 1);
  replica.Submit(Request(1, 95, 4));
  const Steps first(&replica);
  const SimRequest next = Request(1, 150, 1);
  EXPECT_EQ(replica.Cached(next.turn), 90u) << "whole pages of 99 tokens";
  EXPECT_EQ(replica.Cached(Request(2, 150, 1).turn), 0u);
  replica.Submit(next);
  const Steps second(&replica);
  EXPECT_EQ(second.durations, std::vector<double>({1.6})) << "60 tokens are computed";
  EXPECT_EQ(second.result.finished[0].cached, 90u);
}

TEST(SimReplicaTest, AGroupSharesItsSystemPromptOnly) {
  SimReplica replica(kCost, 1);
  SimRequest request = Request(1, 80, 1), same_group = Request(2, 90, 1);
  request.turn.group = same_group.turn.group = 7;
  request.turn.prefix_tokens = same_group.turn.prefix_tokens = 50;
  replica.Submit(request);
  const Steps run(&replica);
  EXPECT_EQ(replica.Cached(same_group.turn), 50u);
  same_group.turn.group = 8;
  EXPECT_EQ(replica.Cached(same_group.turn), 0u);
}

TEST(SimReplicaTest, TheLeastRecentlyUsedMakesRoom) {
  SimReplica replica(kCost, 1);
  for (uint64_t i = 1; i <= 4; ++i) {
    replica.Submit(Request(i, 300, 1));
    const Steps run(&replica);
  }
  EXPECT_EQ(replica.Cached(Request(1, 400, 1).turn), 0u);
  EXPECT_EQ(replica.Cached(Request(2, 400, 1).turn), 300u);
  EXPECT_EQ(replica.Cached(Request(4, 400, 1).turn), 300u);
}

TEST(SimReplicaTest, ADeadOneGivesItsRequestsBackWithWhatTheirClientsHave) {
  SimReplica replica(kCost, 1);
  replica.Submit(Request(1, 50, 10));
  replica.Submit(Request(2, 50, 10));
  replica.Submit(Request(3, 50, 10));
  SimReplica::StepResult result;
  for (int i = 0; i < 3; ++i) {
    EXPECT_GT(replica.BeginStep(), 0);
    replica.EndStep(&result);
  }
  std::vector<SimRequest> lost;
  replica.Die(&lost);
  ASSERT_EQ(lost.size(), 3u);
  EXPECT_EQ(replica.queued_tokens() + replica.running_tokens(), 0u);
  EXPECT_EQ(replica.BeginStep(), 0);
  lost[0].Move();
  EXPECT_EQ(lost[0].turn.prompt_tokens, 53u);
  EXPECT_EQ(lost[0].turn.output_tokens, 7u);
  SimReplica other(kCost, 1);
  other.Submit(lost[0]);
  const Steps run(&other);
  EXPECT_TRUE(run.result.first_tokens.empty()) << "its client has one already";
  EXPECT_EQ(run.result.finished.size(), 1u);
}

}  // namespace
}  // namespace flotilla
