// Random workloads against the simulated cluster: whatever arrives, ends early, is retracted or
// restarted, and whichever step fails, each request's output is the one foretold, no page is lost
// or wrongly shared, budgets hold, and under fcfs nobody starves. In some runs the scheduler has a
// twin that was restored from what it saved, now and then a new one. FLOTILLA_TEST_SEED repeats a
// run, FLOTILLA_TEST_STEPS lengthens it.
#include <gtest/gtest.h>

#include <cstdlib>
#include <iostream>
#include <random>

#include "tests/fakes/sim_grammar.h"
#include "tests/scheduler_proc/core/sim_cluster.h"

namespace flotilla {
namespace {

using testing::SimCluster;
using testing::SimGrammar;
using testing::SimModel;

uint64_t FromEnv(const char* name, uint64_t fallback) {
  const char* text = std::getenv(name);
  return text != nullptr ? std::strtoull(text, nullptr, 10) : fallback;
}

class Workload {
 public:
  Workload(uint64_t seed, uint32_t page_size, const std::string& policy, uint32_t modes)
      : random_(seed) {
    config_ = SimCluster::SmallConfig();
    config_.page_size = page_size;
    config_.schedule_policy = policy;
    config_.enable_mixed_chunk = modes & 1;
    config_.enable_prefix_cache = modes & 2;
    config_.max_plans_in_flight = modes & 4 ? 2 : 1;
    config_.max_running_requests = Pick({1, 2, 5, 12, 32});
    config_.chunked_prefill_size = Pick({3, 16, 50, 200});
    config_.max_prefill_tokens = Pick({1, 100, 1000});
    config_.max_queued_requests = Pick({4, 40});
    config_.context_length = 160;
    config_.max_step_ns = Pick({0, 1, 100'000'000});
    config_.speculative_num_draft_tokens = Pick({0, 1, 5, kMaxDraftTokens});
    model_.repeats = Pick({0, 700, 950, 1000});
    if (Chance(300)) config_.eviction_policy = "lfu";
    config_.priority_scheduling_preemption_threshold = Pick({0, 10, 60});
    config_.schedule_max_overtakes = Pick({0, 3, 8192});
    config_.new_token_ratio_decay_steps = Pick({1, 50, 600});
    config_.init_new_token_ratio = Pick({0, 30, 100}) / 100.0;
    config_.clip_max_new_tokens = Pick({1, 20, 4096});
    // From hardly more than one request to more than enough.
    const uint32_t tokens = config_.context_length * Pick({1, 2, 5, 20}) + Below(40);
    config_.num_pages = (tokens + page_size - 1) / page_size;
    has_twin_ = Chance(400);
    grammars_ = Pick({0, 300, 1000});
    for (auto& document : documents_) document = RandomTokens(20 + Below(90));
  }

  // Runs about `steps` steps; how many plans there were.
  uint64_t Run(uint64_t steps) {
    SimCluster cluster(config_, /*check_ledger=*/true, model_);
    const uint32_t arrivals = Pick({5, 30, 120});  // a hundred steps
    uint64_t done = 0;
    for (; done < steps && !::testing::Test::HasFatalFailure(); ++done) {
      for (uint32_t roll = Below(100); roll < arrivals; roll += 20) AddOne(&cluster);
      Disturb(&cluster);
      const bool planned = cluster.Plan();
      Disturb(&cluster);
      const uint32_t in_flight = cluster.scheduler().plans_in_flight();
      if (in_flight == 0 || (planned && in_flight == 1 && Chance(700))) continue;
      cluster.FinishPlan();
    }
    if (::testing::Test::HasFatalFailure()) return done;
    cluster.Drain();
    if (config_.schedule_policy == "fcfs") {
      EXPECT_LE(cluster.longest_wait(), 64u);
    }
    stats_ = cluster.scheduler().stats();
    last_tokens_used_ = cluster.worker().last_tokens_used();
    masks_used_ = cluster.worker().masks_used();
    masked_drafts_ = cluster.worker().masked_drafts_verified();
    longest_wait_ = cluster.longest_wait();
    pages_judged_ = cluster.promises().pages_judged();
    times_judged_ = cluster.promises().times_judged();
    return stats_.steps;
  }

  const SchedulerConfig& config() const { return config_; }
  const SchedulerStats& stats() const { return stats_; }
  uint64_t last_tokens_used() const { return last_tokens_used_; }
  uint64_t masks_used() const { return masks_used_; }
  uint64_t masked_drafts() const { return masked_drafts_; }
  uint32_t longest_wait() const { return longest_wait_; }
  uint64_t failures() const { return failures_; }
  uint64_t pages_judged() const { return pages_judged_; }
  uint64_t times_judged() const { return times_judged_; }

 private:
  uint32_t Below(uint32_t bound) { return static_cast<uint32_t>(random_() % bound); }
  bool Chance(uint32_t in_thousand) { return Below(1000) < in_thousand; }
  uint32_t Pick(std::initializer_list<uint32_t> values) {
    return values.begin()[Below(static_cast<uint32_t>(values.size()))];
  }
  std::vector<int32_t> RandomTokens(uint32_t count) {
    std::vector<int32_t> tokens(count);
    for (int32_t& token : tokens) token = static_cast<int32_t>(Below(model_.vocab_size));
    return tokens;
  }

  void AddOne(SimCluster* cluster) {
    ReqSpec spec;
    spec.id = next_id_++;
    const auto& document = documents_[Below(std::size(documents_))];
    spec.prompt_ids.assign(document.begin(),
                           document.begin() + Below(static_cast<uint32_t>(document.size()) + 1));
    const std::vector<int32_t> own = RandomTokens(Chance(300) ? 0 : Below(30));
    spec.prompt_ids.insert(spec.prompt_ids.end(), own.begin(), own.end());
    if (spec.prompt_ids.empty()) spec.prompt_ids = {1};
    if (Chance(100)) spec.resumed_ids = RandomTokens(1 + Below(5));
    if (Chance(grammars_)) AddGrammar(&spec);
    spec.max_new_tokens = static_cast<uint32_t>(spec.resumed_ids.size()) + 1 + Below(60);
    if (Chance(200)) spec.min_new_tokens = Below(spec.max_new_tokens + 1);
    spec.ignore_eos = Chance(200);
    if (Chance(300)) spec.stop_token_ids = RandomTokens(3);
    if (Chance(200)) spec.sampling.num_prompt_logprobs = 0;
    if (Chance(300)) spec.sampling.num_logprobs = 2;
    if (Chance(300)) spec.sampling.frequency_penalty = 0.5f;
    if (Chance(100)) spec.logit_bias.assign(1 + Below(3), {static_cast<int32_t>(Below(9)), 1});
    for (size_t i = 1; i < spec.logit_bias.size(); ++i) spec.logit_bias[i].token += 10 * i;
    if (Chance(700)) spec.priority = static_cast<int32_t>(Below(201)) - 100;
    if (Chance(300)) spec.cache_salt = Chance(500) ? "blue" : "green";
    if (Chance(100)) spec.deadline_ns = cluster->now() + 1000 * Below(200);
    if (spec.deadline_ns <= cluster->now()) spec.deadline_ns = cluster->now() + 1;
    if (Chance(100)) MakeEmbedding(&spec);
    const Status status = cluster->Add(spec);
    // Too long for the context, or the queue is full.
    if (!status.ok()) {
      ASSERT_TRUE(absl::IsResourceExhausted(status) || absl::IsInvalidArgument(status)) << status;
    }
  }

  void MakeEmbedding(ReqSpec* spec) {
    spec->pooling = Chance(500) ? Pooling::kMean : Pooling::kLast;
    spec->max_new_tokens = spec->min_new_tokens = 0;
    spec->resumed_ids.clear();
    spec->sampling = {};
    spec->grammar = nullptr;
  }

  // Resumed tokens are then such as the grammar allows.
  void AddGrammar(ReqSpec* spec) {
    spec->grammar = std::make_shared<SimGrammar>(
        SimGrammar::Shape{.seed = spec->id,
                          .vocab_size = model_.vocab_size,
                          .eos = model_.eos,
                          .most = 1 + Below(80),
                          .sixteenths = Pick({4, 15}),
                          .fails_at = Chance(50) ? Below(30) : UINT32_MAX});
    const auto matcher = *spec->grammar->NewMatcher();
    std::vector<uint32_t> mask(MaskWords(model_.vocab_size));
    for (size_t i = 0; i < spec->resumed_ids.size(); ++i) {
      if (matcher->FillMask(mask).ok()) {
        spec->resumed_ids[i] = model_.NextAllowed(random_(), 0, {.until = 1}, mask);
      }
      if (!matcher->Accept(spec->resumed_ids[i]).ok() || matcher->IsTerminated()) return;
    }
  }

  // What may happen at any moment, with a plan in flight or without.
  void Disturb(SimCluster* cluster) {
    if (Chance(100)) cluster->Expire();
    if (Chance(4)) cluster->NewEpoch();
    if (has_twin_ && Chance(50)) cluster->MakeTwin();
    if (cluster->scheduler().plans_in_flight() > 0 && Chance(4)) {
      constexpr auto kKinds = static_cast<uint32_t>(SimCluster::Failure::kNum);
      failures_ += cluster->FailPlan(static_cast<SimCluster::Failure>(Below(kKinds)));
    }
    if (cluster->live().empty() || !Chance(60)) return;
    auto it = cluster->live().begin();
    std::advance(it, Below(static_cast<uint32_t>(cluster->live().size())));
    const ReqId id = *it;
    const auto produced = static_cast<uint32_t>(cluster->tokens(id).size());
    if (produced > 0 && Chance(500)) {
      cluster->Truncate(id, 1 + Below(produced));
    } else {
      cluster->Abort(id);
    }
  }

  std::mt19937_64 random_;
  SimModel model_;
  SchedulerConfig config_;
  std::vector<int32_t> documents_[4];
  bool has_twin_ = false;
  uint32_t grammars_ = 0;  // of a thousand requests
  ReqId next_id_ = 1;
  SchedulerStats stats_;
  uint64_t last_tokens_used_ = 0, masks_used_ = 0, masked_drafts_ = 0;
  uint64_t pages_judged_ = 0, times_judged_ = 0;
  uint64_t failures_ = 0;  // of steps
  uint32_t longest_wait_ = 0;
};

TEST(SchedulerPropertyTest, RandomWorkloads) {
  const uint64_t base = FromEnv("FLOTILLA_TEST_SEED", std::random_device{}());
  const uint64_t wanted = FromEnv("FLOTILLA_TEST_STEPS", 1000000);
  std::cout << "FLOTILLA_TEST_SEED=" << base << std::endl;
  uint64_t steps = 0, retractions = 0, hits = 0, generated = 0, runs = 0, preemptions = 0;
  uint64_t overlapped = 0, masked = 0, pages_judged = 0, times_judged = 0, failures = 0;
  uint64_t drafted = 0, accepted = 0, masked_drafts = 0;
  uint32_t longest_wait = 0;
  while (steps < wanted) {
    for (const uint32_t page_size : {1u, 4u, 16u, 64u}) {
      for (const char* policy : {"fcfs", "lpm", "dfs-weight", "lof", "random", "priority", "vtc"}) {
        for (uint32_t modes = 0; modes < 8; ++modes) {
          const uint64_t seed = testing::Mix(base + ++runs);
          Workload workload(seed, page_size, policy, modes);
          SCOPED_TRACE(::testing::Message()
                       << "run " << runs << ", page_size " << page_size << ", " << policy
                       << ", mixed " << (modes & 1) << ", cache " << (modes & 2) << ", overlap "
                       << (modes & 4) << ", num_pages " << workload.config().num_pages << ", slots "
                       << workload.config().max_running_requests << ", chunk "
                       << workload.config().chunked_prefill_size);
          steps += workload.Run(400);
          if (HasFailure()) return;
          retractions += workload.stats().retractions;
          preemptions += workload.stats().preemptions;
          hits += workload.stats().prefix_hits;
          generated += workload.stats().generated_tokens;
          overlapped += workload.last_tokens_used();
          masked += workload.masks_used();
          masked_drafts += workload.masked_drafts();
          pages_judged += workload.pages_judged();
          times_judged += workload.times_judged();
          failures += workload.failures();
          drafted += workload.stats().draft_tokens;
          accepted += workload.stats().accepted_draft_tokens;
          if (workload.config().schedule_policy == "fcfs") {
            longest_wait = std::max(longest_wait, workload.longest_wait());
          }
        }
      }
    }
  }
  std::cout << steps << " steps in " << runs << " runs, " << generated << " tokens generated, "
            << hits << " read from the cache, " << overlapped << " fed in the workers, " << masked
            << " sampled with a mask, " << accepted << " of " << drafted << " drafted ones right, "
            << masked_drafts << " drafts with masks, " << retractions << " retractions ("
            << preemptions << " preemptions), " << failures << " failed steps, " << pages_judged
            << " admissions and " << times_judged
            << " mixed steps within their budgets; under fcfs the oldest waited at most "
            << longest_wait << " steps\n";
  // The workloads reach what they are for.
  EXPECT_GT(retractions, 100u);
  EXPECT_GT(preemptions, 100u);
  EXPECT_GT(hits, 10000u);
  EXPECT_GT(overlapped, 10000u);
  EXPECT_GT(masked, 10000u);
  EXPECT_GT(pages_judged, 1000u);
  EXPECT_GT(times_judged, 1000u);
  EXPECT_GT(failures, 1000u);
  EXPECT_GT(accepted, 10000u);
  EXPECT_GT(drafted - accepted, 2000u);
  EXPECT_GT(masked_drafts, 300u);
}

// The same calls give the same plans.
TEST(SchedulerPropertyTest, IsDeterministic) {
  uint64_t hashes[2] = {0, 0};
  for (uint64_t& hash : hashes) {
    SchedulerConfig config = SimCluster::SmallConfig();
    config.num_pages = 60;
    config.schedule_policy = "lpm";
    SimCluster cluster(config);
    std::mt19937_64 random(7);
    for (ReqId id = 1; id < 200; ++id) {
      ReqSpec spec;
      spec.id = id;
      spec.prompt_ids.assign(1 + random() % 60, static_cast<int32_t>(random() % 3));
      spec.max_new_tokens = 1 + random() % 30;
      spec.cache_salt = id % 5 == 0 ? "tenant" : "";
      ASSERT_TRUE(cluster.Add(spec).ok());
      for (int i = 0; i < 3 && cluster.Step(); ++i) {
        for (const uint32_t page : cluster.plan().new_pages) hash = testing::Mix(hash + page);
        for (const int32_t token : cluster.plan().input_ids) {
          hash = testing::Mix(hash + static_cast<uint32_t>(token));
        }
      }
    }
    cluster.Drain();
  }
  EXPECT_EQ(hashes[0], hashes[1]);
}

}  // namespace
}  // namespace flotilla
