// What the policies promise, over random workloads: the order in which requests get their slots,
// and how long one may be passed over. (scheduler_property_test.cc runs each policy through
// everything else.) FLOTILLA_TEST_SEED repeats a run.
#include <gtest/gtest.h>

#include <cstdlib>
#include <iostream>
#include <map>
#include <random>
#include <set>

#include "tests/scheduler_proc/core/sim_cluster.h"

namespace flotilla {
namespace {

using testing::SimCluster;

uint64_t Seed() {
  const char* text = std::getenv("FLOTILLA_TEST_SEED");
  const uint64_t seed =
      text != nullptr ? std::strtoull(text, nullptr, 10) : uint64_t{std::random_device{}()};
  std::cout << "FLOTILLA_TEST_SEED=" << seed << std::endl;
  return seed;
}

SchedulerConfig Config(const std::string& policy) {
  SchedulerConfig config = SimCluster::SmallConfig();
  config.schedule_policy = policy;
  config.num_pages = 1024;
  config.max_running_requests = 4;
  config.max_queued_requests = 40;
  return config;
}

// The same, where requests are retracted all the time: pages for about two of them, and none kept
// for what they may produce.
SchedulerConfig TightConfig(const std::string& policy, uint32_t num_pages) {
  SchedulerConfig config = Config(policy);
  config.num_pages = num_pages;
  config.init_new_token_ratio = 0;
  config.new_token_ratio_decay_steps = 1;
  return config;
}

// A cluster that notes which requests get a slot for the first time, in order.
class Watched {
 public:
  Watched(const SchedulerConfig& config, uint64_t seed) : random_(seed), cluster_(config) {}

  uint32_t Below(uint32_t bound) { return static_cast<uint32_t>(random_() % bound); }
  SimCluster& cluster() { return cluster_; }
  const std::vector<ReqId>& admitted() const { return admitted_; }
  size_t num_waiting() const { return waiting_.size(); }
  const std::set<ReqId>& waiting() const { return waiting_; }
  // How many requests had been admitted when this one came.
  size_t admitted_before(ReqId id) const { return admitted_before_.at(id); }
  // Tokens to compute when it was admitted.
  uint32_t input(ReqId id) const { return input_.at(id); }

  ReqId Add(ReqSpec spec, uint32_t prompt_tokens) {
    spec.id = next_id_++;
    spec.ignore_eos = true;
    while (spec.prompt_ids.size() < prompt_tokens) {
      spec.prompt_ids.push_back(static_cast<int32_t>(Below(97)));
    }
    EXPECT_TRUE(cluster_.Add(spec).ok());
    admitted_before_[spec.id] = admitted_.size();
    waiting_.insert(spec.id);
    return spec.id;
  }
  // The requests that this step admitted.
  std::vector<ReqId> Step() {
    std::vector<ReqId> fresh;
    if (!cluster_.Plan()) return fresh;
    for (const PlanOpen& open : cluster_.plan().opens) {
      const ReqId id = cluster_.worker().RequestOf(open.slot).spec.id;
      if (waiting_.erase(id) > 0) fresh.push_back(id);
    }
    for (const PlanRow& row : cluster_.plan().rows) {
      const Expected& request = cluster_.worker().RequestOf(row.slot);
      input_.emplace(request.spec.id, request.spec.prompt_ids.size() - row.start_pos);
    }
    admitted_.insert(admitted_.end(), fresh.begin(), fresh.end());
    cluster_.FinishPlan();
    return fresh;
  }

 private:
  using Expected = testing::Expected;
  std::mt19937_64 random_;
  SimCluster cluster_;
  std::map<ReqId, size_t> admitted_before_;
  std::map<ReqId, uint32_t> input_;
  std::set<ReqId> waiting_;
  std::vector<ReqId> admitted_;
  ReqId next_id_ = 1;
};

// Bounded wait of fcfs, and of priority within a level: who came first goes first.
TEST(PolicyPropertyTest, NobodyOvertakesUnderFcfsNorWithinAPriority) {
  const uint64_t seed = Seed();
  for (const char* policy : {"fcfs", "priority"}) {
    SchedulerConfig config = TightConfig(policy, 40);
    config.enable_prefix_cache = false;  // nobody is held back for a prefix
    config.max_running_requests = 8;
    config.clip_max_new_tokens = 1;
    Watched run(config, seed);
    std::map<int32_t, ReqId> last;  // of the priority
    for (int step = 0; step < 3000; ++step) {
      if (run.num_waiting() < 30 && run.Below(3) == 0) {
        ReqSpec spec;
        spec.priority = static_cast<int32_t>(run.Below(3)) * 20;
        spec.max_new_tokens = 1 + run.Below(40);
        run.Add(spec, 1 + run.Below(100));
      }
      for (const ReqId id : run.Step()) {
        const int32_t level =
            config.schedule_policy == "fcfs" ? 0 : run.cluster().expected(id).spec.priority;
        ASSERT_GT(id, last[level]) << policy;
        last[level] = id;
      }
      ASSERT_FALSE(HasFatalFailure());
    }
    EXPECT_GT(run.cluster().scheduler().stats().retractions, 20u) << policy;
    run.cluster().Drain();
  }
}

// A favourite always waits, yet each of the others is admitted after at most
// schedule_max_overtakes + max_queued_requests admissions.
void CheckAgeing(const SchedulerConfig& pool, bool retracts) {
  const uint64_t seed = Seed();
  constexpr uint32_t kOvertakes = 50;
  for (const std::string policy : {"lpm", "dfs-weight", "lof", "random"}) {
    SchedulerConfig config = pool;
    config.schedule_policy = policy;
    config.schedule_max_overtakes = kOvertakes;
    Watched run(config, seed);
    ReqSpec favourite;
    for (uint32_t i = 0; i < 60; ++i) favourite.prompt_ids.push_back(static_cast<int32_t>(i));
    favourite.max_new_tokens = 20;
    ReqSpec other;
    other.max_new_tokens = 3;
    size_t longest = 0;
    uint32_t others = 0;
    for (int step = 0; step < 4000; ++step) {
      if (run.Below(30) == 0 && run.num_waiting() < 38) ++others, run.Add(other, 20);
      while (run.num_waiting() < 20) run.Add(favourite, 64);
      for (const ReqId id : run.Step()) {
        longest = std::max(longest, run.admitted().size() - run.admitted_before(id));
      }
      for (const ReqId id : run.waiting()) {
        ASSERT_LE(run.admitted().size() - run.admitted_before(id),
                  kOvertakes + config.max_queued_requests)
            << policy << " starves request " << id;
      }
      ASSERT_FALSE(::testing::Test::HasFatalFailure());
    }
    const uint64_t retractions = run.cluster().scheduler().stats().retractions;
    std::cout << policy << ": " << run.admitted().size() << " admissions, " << others
              << " not favoured, " << retractions << " retractions; one waited for at most "
              << longest << "\n";
    EXPECT_EQ(retractions > 20, retracts);
    // Nearly all but random's would starve without it.
    EXPECT_GE(longest, policy == "random" ? 20 : kOvertakes);
    run.cluster().Drain();
  }
}

TEST(PolicyPropertyTest, AgeingBoundsTheWait) { CheckAgeing(Config("lpm"), /*retracts=*/false); }

TEST(PolicyPropertyTest, AgeingBoundsTheWaitWhereRequestsAreRetracted) {
  CheckAgeing(TightConfig("lpm", 30), /*retracts=*/true);
}

// The paper's theorem. W(t) is the service that a tenant has had by t; while f and g both wait all
// the time, W_f - W_g over any interval stays within the bound, so its highest and lowest value do.
class ServiceGap {
 public:
  ServiceGap(Watched* run, const SchedulerConfig& config) : run_(*run), config_(config) {}

  double Service(const std::string& tenant) const {
    double service = 0;
    for (const ReqId id : run_.admitted()) {
      const ReqSpec& spec = run_.cluster().expected(id).spec;
      if (spec.cache_salt != tenant) continue;
      service += config_.vtc_input_weight * run_.input(id) +
                 config_.vtc_output_weight * run_.cluster().tokens(id).size();
    }
    return service;
  }
  // Of `f` over `g` in the intervals that end now and began while both waited.
  void Note(const std::string& f, const std::string& g, bool both_wait) {
    const double difference = Service(f) - Service(g);
    if (!both_wait) {
      waits_ = false;
      return;
    }
    if (!waits_) least_ = most_ = difference, waits_ = true;
    least_ = std::min(least_, difference);
    most_ = std::max(most_, difference);
    largest_ = std::max(largest_, most_ - least_);
  }
  double largest() const { return largest_; }

 private:
  Watched& run_;
  const SchedulerConfig& config_;
  bool waits_ = false;
  double least_ = 0, most_ = 0, largest_ = 0;
};

constexpr uint32_t kMaxPrompt = 40, kMaxNewTokens = 20;

double Bound(const SchedulerConfig& config) {
  const double input = config.vtc_input_weight * kMaxPrompt;
  const double output = config.vtc_output_weight * (config.max_running_requests * kMaxNewTokens);
  return 2 * std::max(input, output);
}

TEST(PolicyPropertyTest, VtcBoundsTheGapBetweenTenantsThatWait) {
  const uint64_t seed = Seed();
  for (uint32_t round = 0; round < 8; ++round) {
    const bool tight = round >= 4;
    SchedulerConfig config = tight ? TightConfig("vtc", 18) : Config("vtc");
    config.vtc_output_weight = round % 2 == 0 ? 2 : 0.5;
    Watched run(config, seed + round);
    ServiceGap gap(&run, config);
    const auto add = [&](const std::string& tenant, uint32_t prompt, uint32_t output) {
      ReqSpec spec;
      spec.cache_salt = tenant;
      spec.max_new_tokens = output;
      run.Add(spec, prompt);
    };
    for (int step = 0; step < 1500; ++step) {
      uint32_t waiting[2] = {0, 0};
      for (const ReqId id : run.waiting()) {
        const std::string& tenant = run.cluster().expected(id).spec.cache_salt;
        if (tenant != "third") ++waiting[tenant == "short"];
      }
      for (; waiting[0] < 12; ++waiting[0]) add("long", kMaxPrompt, kMaxNewTokens);
      for (; waiting[1] < 12; ++waiting[1]) add("short", 1 + run.Below(8), 1 + run.Below(4));
      if (step / 300 % 2 == 1 && run.num_waiting() < 36) add("third", 20, 1 + run.Below(20));
      run.Step();
      if (step % 5 == 0) gap.Note("long", "short", true);
      ASSERT_FALSE(HasFatalFailure());
    }
    const uint64_t retractions = run.cluster().scheduler().stats().retractions;
    std::cout << "the gap reached " << gap.largest() << " of " << Bound(config) << ", "
              << retractions << " retractions\n";
    EXPECT_EQ(retractions > 20, tight);
    EXPECT_LE(gap.largest(), Bound(config));
    EXPECT_GT(gap.largest(), 0);
    EXPECT_GT(gap.Service("short"), 500) << "both are served";
    run.cluster().Drain();
  }
}

// One tenant keeps 30 requests waiting, the other has now and then one: while it waits, the flood
// gets no more than the bound above it.
void CheckFlood(const SchedulerConfig& config, bool retracts) {
  Watched run(config, Seed());
  ServiceGap gap(&run, config);
  uint32_t num_light = 0;
  ReqId light = 0;
  size_t longest = 0;
  for (int step = 0; step < 2000; ++step) {
    ReqSpec spec;
    spec.max_new_tokens = 1 + run.Below(kMaxNewTokens);
    spec.cache_salt = "flood";
    while (run.num_waiting() < 30) run.Add(spec, 1 + run.Below(kMaxPrompt));
    if (!run.waiting().contains(light) && run.Below(15) == 0) {
      spec.cache_salt = "light";
      light = run.Add(spec, 5);
      ++num_light;
    }
    run.Step();
    const bool waits = run.waiting().contains(light);
    if (waits) longest = std::max(longest, run.admitted().size() - run.admitted_before(light));
    gap.Note("flood", "light", waits);
    ASSERT_FALSE(::testing::Test::HasFatalFailure());
  }
  const uint64_t retractions = run.cluster().scheduler().stats().retractions;
  std::cout << num_light << " light requests; the gap reached " << gap.largest() << " of "
            << Bound(config) << ", and at most " << longest << " admissions went before one; "
            << retractions << " retractions\n";
  EXPECT_EQ(retractions > 20, retracts);
  EXPECT_LE(gap.largest(), Bound(config));
  EXPECT_GT(num_light, 50u);
  EXPECT_LT(longest, 10u) << "of 30 that waited before it";
  run.cluster().Drain();
}

TEST(PolicyPropertyTest, VtcServesALightTenantBesideAFlood) {
  CheckFlood(Config("vtc"), /*retracts=*/false);
}

TEST(PolicyPropertyTest, VtcServesALightTenantBesideAFloodThatIsRetracted) {
  CheckFlood(TightConfig("vtc", 18), /*retracts=*/true);
}

}  // namespace
}  // namespace flotilla
