// What a core saves: small, and refused when it is not what a core can be. That a restored core
// goes on as the saved one does is shown by scheduler_property_test.cc.
#include "scheduler_proc/core/snapshot.h"

#include <gtest/gtest.h>

#include <random>

#include "tests/fakes/answer_plan.h"
#include "tests/scheduler_proc/core/sim_cluster.h"

namespace flotilla {
namespace {

using testing::SimCluster;

SchedulerConfig Config(const std::string& policy) {
  SchedulerConfig config = SimCluster::SmallConfig();
  config.num_pages = 40;
  config.max_running_requests = 4;
  config.max_plans_in_flight = 2;
  config.chunked_prefill_size = 24;
  config.schedule_policy = policy;
  config.eviction_policy = policy == "vtc" ? "lfu" : "lru";
  return config;
}

ReqSpec Request(ReqId id, uint32_t prompt_tokens, uint32_t max_new_tokens) {
  ReqSpec spec;
  spec.id = id;
  for (uint32_t i = 0; i < prompt_tokens; ++i) {
    spec.prompt_ids.push_back(static_cast<int32_t>(1 + (i < 8 ? i : i + id) % 90));
  }
  spec.max_new_tokens = max_new_tokens;
  spec.ignore_eos = true;
  return spec;
}

// With requests that wait, run, were retracted and have ended, and plans in flight.
std::string BusySnapshot(const SchedulerConfig& config) {
  SimCluster cluster(config);
  for (ReqId id = 1; id <= 14; ++id) {
    ReqSpec spec = Request(id, 9 + static_cast<uint32_t>(id) % 7, 6 + static_cast<uint32_t>(id));
    if (id % 4 == 0) spec.cache_salt = "blue";
    if (id % 5 == 0) spec.resumed_ids = {4, 5};
    if (id == 6) spec.logit_bias = {{3, 1.0f}};
    if (id == 3 || id == 14) {
      spec.pooling = id == 3 ? Pooling::kLast : Pooling::kMean;
      spec.max_new_tokens = 0;
    }
    if (id == 13) spec.deadline_ns = 1'000'000'000;
    EXPECT_TRUE(cluster.Add(spec).ok());
    cluster.Step();
  }
  while (cluster.Plan()) continue;
  for (const PlanRow& row : cluster.plan().rows) {
    cluster.Abort(cluster.worker().RequestOf(row.slot).spec.id);
    break;
  }
  EXPECT_EQ(cluster.scheduler().plans_in_flight(), 2u);
  EXPECT_GT(cluster.scheduler().stats().waiting, 2u);
  std::string bytes;
  cluster.scheduler().Save(&bytes);
  return bytes;
}

// It may be asked for anything.
void GoOn(Scheduler* core) {
  StepPlan plan;
  std::vector<ReqOutput> outputs;
  core->ExpireDeadlines(2'000'000'000, &outputs);
  core->PlanStep(2'000'000'000, &plan);
  ASSERT_TRUE(core->CheckLedger().ok());
  if (core->epoch() == UINT32_MAX) return;
  core->BeginEpoch(core->epoch() + 1, static_cast<uint32_t>(core->stats().total_pages));
  for (int i = 0; i < 3 && core->PlanStep(2'000'000'000, &plan); ++i) {
    core->OnResult(testing::AnswerPlan(plan, 1), 2'000'000'000, &outputs);
  }
  ASSERT_TRUE(core->CheckLedger().ok());
}

TEST(SnapshotTest, WhatNoCoreSavesIsRefusedOrHarmless) {
  std::mt19937_64 random(3);
  for (const char* policy : {"fcfs", "lpm", "dfs-weight", "random", "priority", "vtc"}) {
    const SchedulerConfig config = Config(policy);
    const std::string good = BusySnapshot(config);
    ASSERT_TRUE(Scheduler::Restore(config, good).ok());
    for (size_t length = 0; length < good.size(); length += 3) {
      const auto cut = Scheduler::Restore(config, std::string_view(good).substr(0, length));
      ASSERT_TRUE(absl::IsDataLoss(cut.status())) << length << ": " << cut.status();
    }
    EXPECT_FALSE(Scheduler::Restore(config, good + '\0').ok());
    size_t refused = 0;
    for (size_t i = 0; i < good.size(); ++i) {
      std::string bad = good;
      for (uint64_t changes = 1 + random() % 2; changes > 0; --changes) {
        char& byte = bad[changes == 1 ? i : random() % bad.size()];
        byte = static_cast<char>(random() % 3 == 0 ? random() : byte ^ (1 << (random() % 8)));
      }
      const auto core = Scheduler::Restore(config, bad);
      if (!core.ok()) {
        ASSERT_TRUE(absl::IsDataLoss(core.status())) << core.status();
        ++refused;
        continue;
      }
      std::string again;
      (*core)->Save(&again);
      ASSERT_TRUE(again == bad) << policy << ": one spelling; byte " << i;
      ASSERT_NO_FATAL_FAILURE(GoOn(core->get())) << policy << ", byte " << i;
    }
    EXPECT_GT(refused, good.size() / 4);
  }
}

TEST(SnapshotTest, AnotherConfigurationsStateIsRefused) {
  const SchedulerConfig config = Config("vtc");
  const std::string good = BusySnapshot(config);
  SchedulerConfig other = config;
  other.page_size = 8;
  EXPECT_TRUE(absl::IsDataLoss(Scheduler::Restore(other, good).status()));
  other = config;
  other.max_running_requests = 5;
  EXPECT_TRUE(absl::IsDataLoss(Scheduler::Restore(other, good).status()));
  other = config;
  other.schedule_policy = "fcfs";
  EXPECT_TRUE(absl::IsDataLoss(Scheduler::Restore(other, good).status()));
  other = config;
  other.max_running_requests = UINT32_MAX;
  EXPECT_TRUE(absl::IsDataLoss(Scheduler::Restore(other, good).status()));
}

TEST(SnapshotTest, TokensTakeAsManyBytesAsTheVocabularyNeeds) {
  for (const auto& [vocab_size, width] : {std::pair(1u, 1u),
                                          {256u, 1u},
                                          {257u, 2u},
                                          {65536u, 2u},
                                          {65537u, 3u},
                                          {1u << 24, 3u},
                                          {0x7fffffffu, 4u}}) {
    const auto last = static_cast<int32_t>(vocab_size - 1);
    const std::vector<int32_t> tokens = {last, 0, last / 2};
    std::string bytes;
    PutTokens(tokens, vocab_size, &bytes);
    EXPECT_EQ(bytes.size(), 4 + 3 * width);
    std::vector<int32_t> back;
    WireReader in(bytes);
    EXPECT_TRUE(GetTokens(&in, vocab_size, &back) && in.AtEnd());
    EXPECT_EQ(back, tokens);
    if (vocab_size < 3 || TokenBytes(vocab_size - 1) != width) continue;
    WireReader smaller(bytes);
    EXPECT_FALSE(GetTokens(&smaller, vocab_size - 1, &back)) << "not of that vocabulary";
  }
}

// A page of 16 tokens is 32 bytes of tokens, its number, and its share of a node.
TEST(SnapshotTest, ACacheTakesLittleMoreThanItsTokens) {
  SchedulerConfig config = SimCluster::SmallConfig();
  config.page_size = 16;
  config.num_pages = 45'000 / 16;
  config.vocab_size = 49152;
  config.chunked_prefill_size = 512;
  Scheduler core(config);
  core.BeginEpoch(1, config.num_pages);
  StepPlan plan;
  std::vector<ReqOutput> outputs;
  for (ReqId id = 1; core.stats().free_pages > 40; ++id) {
    ReqSpec spec;
    spec.id = id;
    for (int i = 0; i < 400; ++i) spec.prompt_ids.push_back(static_cast<int32_t>(i * 7 + id * 13));
    spec.max_new_tokens = 1;
    ASSERT_TRUE(core.Add(spec, 1).ok());
    while (core.PlanStep(1, &plan)) {
      core.OnResult(testing::AnswerPlan(plan, 1), 1, &outputs);
    }
  }
  EXPECT_GT(core.stats().evictable_pages, config.num_pages - 80u);
  std::string bytes;
  core.Save(&bytes);
  EXPECT_LT(bytes.size(), config.num_pages * (16 * 2 + 4 + 4));
}

TEST(SnapshotTest, TellsTheLiveRequestsAsTheyCame) {
  SimCluster cluster(Config("fcfs"));
  ReqSpec first = Request(9, 12, 20), second = Request(3, 12, 20);
  first.resumed_ids = {1, 2};
  first.cache_salt = "blue";
  ASSERT_TRUE(cluster.Add(first).ok());
  for (int i = 0; i < 5; ++i) cluster.Step();
  ASSERT_TRUE(cluster.Add(second).ok());
  const std::vector<Scheduler::Progress> live = cluster.scheduler().LiveRequests();
  ASSERT_EQ(live.size(), 2u);
  EXPECT_EQ(live[0].spec.id, 9u);
  EXPECT_EQ(live[0].spec.prompt_ids, first.prompt_ids);
  EXPECT_EQ(live[0].spec.cache_salt, "blue");
  EXPECT_EQ(live[0].num_output, cluster.tokens(9).size());
  EXPECT_GT(live[0].num_output, 2u);
  EXPECT_EQ(live[1].spec.id, 3u);
  EXPECT_EQ(live[1].num_output, 0u);
}

}  // namespace
}  // namespace flotilla
