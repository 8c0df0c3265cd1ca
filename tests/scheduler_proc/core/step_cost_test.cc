#include "scheduler_proc/core/step_cost.h"

#include <gtest/gtest.h>

#include <random>

namespace flotilla {
namespace {

// A machine: 5 ms for the weights; a decode costs 0.3 ms and 0.5 ms for 1,024 positions read, a
// prompt's token 0.1 ms and 0.3 ms.
int64_t True(const StepWork& work) {
  return 5'000'000 + static_cast<int64_t>(work.decode_tokens) * 300'000 +
         static_cast<int64_t>(work.chunk_tokens) * 100'000 +
         static_cast<int64_t>(work.decode_reads) * 500'000 / 1024 +
         static_cast<int64_t>(work.chunk_reads) * 300'000 / 1024;
}

StepWork RandomStep(std::mt19937* random) {
  StepWork work;
  for (uint32_t decodes = (*random)() % 32; decodes > 0; --decodes) {
    work.AddDecode((*random)() % 2000);
  }
  if ((*random)() % 3 == 0) work.AddChunk((*random)() % 4000, 1 + (*random)() % 512);
  return work;
}

TEST(StepCostTest, CountsWhatAStepReads) {
  StepWork work;
  work.AddChunk(10, 3);  // 11 + 12 + 13
  work.AddChunk(0, 1);
  work.AddDecode(9);
  EXPECT_EQ(work.chunk_tokens, 4u);
  EXPECT_EQ(work.chunk_reads, 37u);
  EXPECT_EQ(work.decode_tokens, 1u);
  EXPECT_EQ(work.decode_reads, 10u);
}

TEST(StepCostTest, LearnsAMachineFromItsSteps) {
  std::mt19937 random(1);
  StepCost cost;
  EXPECT_FALSE(cost.known());
  EXPECT_EQ(cost.Predict(RandomStep(&random)), 0);
  for (int i = 0; i < 300; ++i) {
    const StepWork work = RandomStep(&random);
    const double noise = 0.95 + static_cast<double>(random() % 1000) / 1e4;
    cost.Observe(work, static_cast<int64_t>(static_cast<double>(True(work)) * noise));
  }
  ASSERT_TRUE(cost.known());
  for (int i = 0; i < 100; ++i) {
    const StepWork work = RandomStep(&random);
    EXPECT_NEAR(static_cast<double>(cost.Predict(work)), static_cast<double>(True(work)),
                0.1 * static_cast<double>(True(work)));
  }
}

// Hours of the same decodes teach nothing about prompts, and must not unteach either.
TEST(StepCostTest, RemembersPromptsOverLongDecoding) {
  std::mt19937 random(2);
  StepCost cost;
  for (int i = 0; i < 100; ++i) {
    const StepWork work = RandomStep(&random);
    cost.Observe(work, True(work));
  }
  StepWork decodes;
  for (int i = 0; i < 16; ++i) decodes.AddDecode(500);
  for (int i = 0; i < 100'000; ++i) {
    const double noise = 0.9 + static_cast<double>(random() % 2000) / 1e4;
    cost.Observe(decodes, static_cast<int64_t>(static_cast<double>(True(decodes)) * noise));
  }
  StepWork prompt;
  prompt.AddChunk(1000, 256);
  EXPECT_NEAR(static_cast<double>(cost.Predict(prompt)), static_cast<double>(True(prompt)),
              0.3 * static_cast<double>(True(prompt)));
}

TEST(StepCostTest, FollowsAMachineThatChanges) {
  std::mt19937 random(3);
  StepCost cost;
  for (int i = 0; i < 2000; ++i) {
    const StepWork work = RandomStep(&random);
    cost.Observe(work, (i < 1000 ? 1 : 2) * True(work));
  }
  StepWork prompt;
  prompt.AddChunk(100, 400);
  EXPECT_NEAR(static_cast<double>(cost.Predict(prompt)), 2.0 * static_cast<double>(True(prompt)),
              0.1 * static_cast<double>(True(prompt)));
}

// Something else takes the cores now and then, while prompts go in small chunks.
TEST(StepCostTest, AFewSlowStepsDoNotMakePromptsDear) {
  std::mt19937 random(5);
  StepCost cost;
  for (int i = 0; i < 100; ++i) {
    const StepWork work = RandomStep(&random);
    cost.Observe(work, True(work));
  }
  for (int i = 0; i < 400; ++i) {
    StepWork work;
    for (int decode = 0; decode < 16; ++decode) work.AddDecode(300);
    work.AddChunk(500, 16);
    cost.Observe(work, (i % 20 == 0 ? 6 : 1) * True(work));
  }
  StepWork prompt;
  prompt.AddChunk(500, 256);
  EXPECT_LT(static_cast<double>(cost.Predict(prompt)), 1.5 * static_cast<double>(True(prompt)));
  EXPECT_GT(static_cast<double>(cost.Predict(prompt)), 0.7 * static_cast<double>(True(prompt)));
}

TEST(StepCostTest, GivesAsManyTokensAsTheTimeAllows) {
  std::mt19937 random(4);
  StepCost cost;
  EXPECT_EQ(cost.TokensWithin(0, 512, 1), 512u) << "unknown: no limit";
  for (int i = 0; i < 300; ++i) {
    const StepWork work = RandomStep(&random);
    cost.Observe(work, True(work));
  }
  for (const uint32_t start : {0u, 500u, 6000u}) {
    const uint32_t tokens = cost.TokensWithin(start, 512, 10'000'000);
    EXPECT_GT(tokens, 0u);
    EXPECT_LT(tokens, 512u);
    EXPECT_LE(cost.ChunkNs(start, tokens), 10'000'000);
    EXPECT_GT(cost.ChunkNs(start, tokens + 1), 10'000'000);
  }
  EXPECT_LT(cost.TokensWithin(6000, 512, 10'000'000), cost.TokensWithin(0, 512, 10'000'000) / 10)
      << "far into a prompt a token reads more";
  EXPECT_EQ(cost.TokensWithin(0, 512, 0), 0u);
}

}  // namespace
}  // namespace flotilla
