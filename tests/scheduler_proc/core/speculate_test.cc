// Drafts: what is found, how much of it is verified, and what becomes of requests meanwhile. That
// nothing of it changes an output is shown by scheduler_property_test.cc.
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>

#include "scheduler_proc/core/draft.h"
#include "tests/fakes/script_grammar.h"
#include "tests/scheduler_proc/core/sim_cluster.h"

namespace flotilla {
namespace {

using testing::SimCluster;
using testing::SimModel;
using Ids = std::vector<int32_t>;

uint32_t FindDraft(const Ids& ids) { return flotilla::FindDraft(ids, kMaxDraftDistance); }

TEST(FindDraftTest, WhatFollowedTheLongestMatch) {
  EXPECT_EQ(FindDraft(Ids{}), 0u);
  EXPECT_EQ(FindDraft(Ids{1, 2, 3}), 0u);
  EXPECT_EQ(FindDraft(Ids{1, 2, 3, 4, 9, 2, 3}), 0u) << "two tokens are not enough";
  EXPECT_EQ(FindDraft(Ids{1, 2, 3, 4, 9, 1, 2, 3}), 3u);
  EXPECT_EQ(FindDraft(Ids{7, 1, 2, 3, 4, 5, 1, 2, 3, 6, 7, 1, 2, 3}), 4u) << "the longest";
  EXPECT_EQ(FindDraft(Ids{8, 1, 2, 3, 4, 5, 1, 2, 3, 6, 7, 1, 2, 3}), 9u)
      << "of equal ones, the last";
  EXPECT_EQ(FindDraft(Ids{5, 5, 5, 5}), 3u) << "a match may lie over the end";
}

TEST(FindDraftTest, IsWhatAPlainSearchFinds) {
  std::mt19937 random(3);
  for (int round = 0; round < 3000; ++round) {
    const uint32_t size = random() % (round % 10 == 0 ? 300 : 60);
    Ids ids(size);
    for (int32_t& id : ids) id = static_cast<int32_t>(random() % (2 + round % 5));
    uint32_t best = 0, best_length = kMinDraftMatch - 1;
    for (uint32_t end = size; end-- > 1;) {  // where a draft would begin
      uint32_t length = 0;
      while (length < std::min(kMaxDraftMatch, end) &&
             ids[end - 1 - length] == ids[size - 1 - length])
        ++length;
      if (length > best_length) best = end, best_length = length;
    }
    ASSERT_EQ(FindDraft(ids), best) << "round " << round;
  }
}

TEST(FindDraftTest, LooksOnlySoFarBack) {
  Ids ids(kMaxDraftDistance + 10);
  std::iota(ids.begin(), ids.end(), 0);
  const auto end_with = [&](size_t first) {
    Ids repeated = ids;
    repeated.insert(repeated.end(), ids.begin() + static_cast<ptrdiff_t>(first),
                    ids.begin() + static_cast<ptrdiff_t>(first) + 4);
    return FindDraft(repeated);
  };
  EXPECT_EQ(end_with(100), 104u);
  EXPECT_EQ(end_with(1), 0u);
  const Ids repeated = {1, 2, 3, 4, 9, 1, 2, 3};
  EXPECT_EQ(flotilla::FindDraft(repeated, 6), 3u);
  EXPECT_EQ(flotilla::FindDraft(repeated, 5), 0u);
  EXPECT_EQ(flotilla::FindDraft(repeated, 0), 0u);
}

TEST(DraftRateTest, FollowsWhatWasRight) {
  DraftRate rate;
  const double first = rate.value();
  for (int i = 0; i < 40; ++i) rate.OnVerified(4, 4);
  EXPECT_EQ(rate.value(), 1);
  rate.OnVerified(4, 3);
  EXPECT_LT(rate.value(), 1);
  for (int i = 0; i < 60; ++i) rate.OnVerified(4, 0);
  EXPECT_LT(rate.value(), 0.01);
  for (int i = 0; i < 6; ++i) rate.OnVerified(1, 1);
  EXPECT_GT(rate.value(), 0.5) << "it is soon known that it has become right";
  EXPECT_GT(first, 0.5);
  EXPECT_TRUE(rate.valid());
}

TEST(DraftRateTest, LengthIsWhatPays) {
  DraftRate sure;
  for (int i = 0; i < 40; ++i) sure.OnVerified(4, 4);
  EXPECT_EQ(DraftLength(sure, 8, 0.3), 8u);
  EXPECT_EQ(DraftLength(sure, 8, 1.0), 0u) << "a token more takes as long as a step of its own";
  EXPECT_EQ(DraftLength(sure, 0, 0.0), 0u);
  const DraftRate fresh;  // 0.6, 0.36, 0.216
  EXPECT_EQ(DraftLength(fresh, 8, 0.3), 2u);
  EXPECT_EQ(DraftLength(fresh, 8, 0.6), 0u);
  EXPECT_EQ(DraftGain(sure, 8), 8);
  EXPECT_NEAR(DraftGain(fresh, 2), 0.96, 1e-9);
  EXPECT_EQ(DraftGain(fresh, 0), 0);
}

SchedulerConfig Config(uint32_t drafts) {
  SchedulerConfig config = SimCluster::SmallConfig();
  config.speculative_num_draft_tokens = drafts;
  config.max_plans_in_flight = 2;
  return config;
}

ReqSpec Spec(ReqId id, uint32_t max_new_tokens) {
  ReqSpec spec;
  spec.id = id;
  spec.prompt_ids = {3, 1, 4, 1, 5};
  spec.max_new_tokens = max_new_tokens;
  spec.ignore_eos = true;
  return spec;
}

constexpr SimModel kRepeats{.repeats = 1000};

uint64_t StepsOf(SimCluster* cluster) {
  cluster->Drain();
  return cluster->scheduler().stats().steps;
}

TEST(SpeculateTest, ARequestThatRepeatsItselfTakesFewerSteps) {
  SimCluster plain(Config(0), true, kRepeats), drafting(Config(8), true, kRepeats);
  for (SimCluster* cluster : {&plain, &drafting}) ASSERT_TRUE(cluster->Add(Spec(1, 200)).ok());
  EXPECT_GE(StepsOf(&plain), 200u);
  EXPECT_LT(StepsOf(&drafting), 60u);
  const SchedulerStats& stats = drafting.scheduler().stats();
  EXPECT_GT(stats.accepted_draft_tokens, 150u);
  EXPECT_LE(stats.draft_tokens - stats.accepted_draft_tokens, 16u);
  EXPECT_EQ(plain.scheduler().stats().draft_tokens, 0u);
  EXPECT_EQ(drafting.last(1).completion_tokens, 200u);
}

TEST(SpeculateTest, WhatDoesNotRepeatIsNotSlowedDown) {
  SimCluster cluster(Config(8), true, SimModel{.repeats = 0});
  ASSERT_TRUE(cluster.Add(Spec(1, 200)).ok());
  EXPECT_LE(StepsOf(&cluster), 202u);
  EXPECT_GT(cluster.worker().last_tokens_used(), 190u) << "steps are planned ahead";
}

TEST(SpeculateTest, NothingIsPlannedBesideADraft) {
  SimCluster cluster(Config(8), true, kRepeats);
  ASSERT_TRUE(cluster.Add(Spec(1, 400)).ok());
  while (cluster.worker().drafts_verified() == 0) ASSERT_TRUE(cluster.Step());
  ASSERT_EQ(cluster.scheduler().plans_in_flight(), 1u);
  ASSERT_TRUE(cluster.Add(Spec(2, 5)).ok());
  EXPECT_EQ(cluster.scheduler().PlanDueNs(), INT64_MAX);
  EXPECT_FALSE(cluster.Plan());
  cluster.FinishPlan();
  ASSERT_TRUE(cluster.Plan());
  EXPECT_EQ(cluster.plan().rows.size(), 2u) << "the new one goes beside the next draft";
  cluster.Drain();
}

TEST(SpeculateTest, ManyRequestsDraftNothing) {
  SchedulerConfig config = Config(8);
  config.max_running_requests = 64;
  config.num_pages = 4096;
  SimCluster cluster(config, true, kRepeats);
  for (ReqId id = 1; id <= 40; ++id) ASSERT_TRUE(cluster.Add(Spec(id, 60)).ok());
  cluster.Drain();
  EXPECT_EQ(cluster.worker().drafts_verified(), 0u);
}

TEST(SpeculateTest, ShortChunksDraftNothing) {
  SchedulerConfig short_chunks = Config(8);
  short_chunks.chunked_prefill_size = 1;
  SimCluster cluster(short_chunks, true, kRepeats);
  ASSERT_TRUE(cluster.Add(Spec(1, 100)).ok());
  cluster.Drain();
  EXPECT_EQ(cluster.worker().drafts_verified(), 0u);
  EXPECT_GT(cluster.worker().last_tokens_used(), 90u) << "steps are planned ahead";
}

TEST(SpeculateTest, PenaltiesDraftAsMuchAsNone) {
  SimCluster plain(Config(8), true, kRepeats), penalised(Config(8), true, kRepeats);
  ReqSpec spec = Spec(1, 200);
  ASSERT_TRUE(plain.Add(spec).ok());
  spec.sampling.repetition_penalty = 1.1f;
  ASSERT_TRUE(penalised.Add(spec).ok());
  EXPECT_EQ(StepsOf(&plain), StepsOf(&penalised));
  EXPECT_GT(penalised.scheduler().stats().accepted_draft_tokens, 150u);
}

// What one request gains must be worth it for all: the others' prompts are where nothing repeats.
TEST(SpeculateTest, AFewWhoDraftDoNotHoldUpMany) {
  for (const uint32_t others : {4u, 20u}) {
    SchedulerConfig config = Config(1);
    config.chunked_prefill_size = 4096;  // all prompts in one step
    config.max_running_requests = 32;
    config.num_pages = 4096;
    SimCluster cluster(config, true, SimModel{.repeats = 1000, .repeats_until = 130});
    for (ReqId id = 1; id <= 1 + others; ++id) {
      ReqSpec spec = Spec(id, 120);
      if (id > 1) {
        spec.prompt_ids.resize(130);
        std::mt19937 random(static_cast<uint32_t>(id));
        for (int32_t& token : spec.prompt_ids) token = static_cast<int32_t>(random() % 90);
      }
      ASSERT_TRUE(cluster.Add(spec).ok());
    }
    for (int i = 0; i < 90; ++i) ASSERT_TRUE(cluster.Step());
    EXPECT_EQ(cluster.worker().drafts_verified() > 10, others == 4);
    EXPECT_EQ(cluster.worker().last_tokens_used() > 1000, others == 20);
    cluster.Drain();
  }
}

TEST(SpeculateTest, NeverRightIsHardlyEverSent) {
  SimCluster cluster(Config(8), true, SimModel{.repeats = 1000, .misleads_from = 150});
  ASSERT_TRUE(cluster.Add(Spec(1, 400)).ok());
  while (cluster.tokens(1).size() < 145) ASSERT_TRUE(cluster.Step());
  const uint64_t before = cluster.worker().drafts_verified();
  const uint64_t ahead = cluster.worker().last_tokens_used();
  EXPECT_GT(before, 10u);
  cluster.Drain();
  EXPECT_LT(cluster.worker().drafts_verified() - before, 20u);
  EXPECT_GT(cluster.worker().last_tokens_used() - ahead, 200u) << "steps are planned ahead";
}

// Masks go with its drafts, also where no more may run.
TEST(SpeculateTest, AGrammarIsFollowedThroughDrafts) {
  std::vector<int32_t> script;
  for (int i = 0; i < 150; ++i) script.push_back(10 + 2 * (i % 6));
  const auto grammar = std::make_shared<testing::ScriptGrammar>(script, SimModel().eos);
  for (const uint32_t running : {1u, 5u}) {
    SchedulerConfig config = Config(8);
    config.max_running_requests = running;
    SimCluster cluster(config, true, SimModel());
    ReqSpec spec = Spec(1, 200);
    spec.grammar = grammar;
    spec.ignore_eos = false;
    ASSERT_TRUE(cluster.Add(spec).ok());
    cluster.Drain();
    EXPECT_EQ(cluster.last(1).completion_tokens, 151u);
    EXPECT_EQ(cluster.last(1).finish, Finish::kStop);
    EXPECT_GT(cluster.worker().masked_drafts_verified(), 10u);
  }
}

TEST(SpeculateTest, EndsWithinADraftAtItsStopToken) {
  SimCluster cluster(Config(16), true, kRepeats);
  ReqSpec spec = Spec(1, 300);
  spec.min_new_tokens = 100;
  // Of the period's tokens one, which comes up again and again; before token 101 it is banned.
  spec.stop_token_ids = {static_cast<int32_t>(testing::Mix(1 + 3) % SimModel().vocab_size)};
  ASSERT_TRUE(cluster.Add(spec).ok());
  cluster.Drain();
  EXPECT_EQ(cluster.last(1).finish, Finish::kStop);
  EXPECT_LE(cluster.last(1).completion_tokens, 108u);
  EXPECT_GT(cluster.scheduler().stats().accepted_draft_tokens, 20u);
}

TEST(SpeculateTest, GoesOnAfterANewEpochAndWhenPagesAreFew) {
  SchedulerConfig config = Config(16);
  config.num_pages = 60;
  SimCluster cluster(config, true, kRepeats);
  for (ReqId id = 1; id <= 3; ++id) ASSERT_TRUE(cluster.Add(Spec(id, 100)).ok());
  for (int i = 0; i < 40; ++i) ASSERT_TRUE(cluster.Step());
  EXPECT_GT(cluster.worker().drafts_verified(), 0u);
  cluster.NewEpoch();
  cluster.Drain();
  for (ReqId id = 1; id <= 3; ++id) EXPECT_EQ(cluster.last(id).completion_tokens, 100u);
}

}  // namespace
}  // namespace flotilla
