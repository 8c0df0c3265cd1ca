// scheduler_bench: what the scheduler's core costs a step, under each policy, beside its limits.
// docs/performance.md says how to read it.
//
// Steps during which the kernel gave the core to another process are left out (and counted); of
// several rounds the best is judged, since others share the machine.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <memory>
#include <numeric>
#include <random>

#include "common/base/check.h"
#include "common/base/flags.h"
#include "scheduler_proc/core/radix_cache.h"
#include "scheduler_proc/core/schedule_policy.h"
#include "tests/bench/bench_report.h"
#include "tests/bench/scheduler_workload.h"
#include "tests/fakes/answer_plan.h"

namespace flotilla {
namespace {

struct Options {
  uint32_t steps = 3000, warm_up = 40000, rounds = 3;
  std::string policy = "all", json;
  bool check = false;
};

double Us(int64_t ns) { return static_cast<double>(ns) * 1e-3; }

void RunPolicy(const Options& options, const std::string& policy, Report* report) {
  report->Section(policy + ": 256 running, 2,000 waiting, prompts of 4,096 tokens");
  SchedulerWorkloadOptions workload_options;
  workload_options.policy = policy;
  SchedulerWorkload workload(workload_options);
  workload.Run(options.warm_up, nullptr);
  StepCosts sum;
  std::vector<double> p50, p99, result_p50;
  int64_t worst = 0;
  for (uint32_t round = 0; round < options.rounds; ++round) {
    StepCosts costs;
    workload.Run(options.steps, &costs);
    p50.push_back(Us(Percentile(costs.plan_ns, 0.5)));
    p99.push_back(Us(Percentile(costs.plan_ns, 0.99)));
    result_p50.push_back(Us(Percentile(costs.result_ns, 0.5)));
    worst = std::max(worst, Percentile(costs.plan_ns, 1));
    sum.steps += costs.steps;
    sum.interrupted += costs.interrupted;
    sum.admitted += costs.admitted;
    sum.added += costs.added;
    sum.plan_allocations += costs.plan_allocations;
    sum.result_allocations += costs.result_allocations;
    sum.add_allocations += costs.add_allocations;
  }
  const auto least = [](const std::vector<double>& v) {
    return *std::min_element(v.begin(), v.end());
  };
  const auto most = [](const std::vector<double>& v) {
    return *std::max_element(v.begin(), v.end());
  };
  report->Add(
      {"plan a step, p50", least(p50), "us", AtMost(50), StrCat("worst round ", most(p50), " us")});
  report->Add({"plan a step, p99", least(p99), "us", AtMost(200),
               StrCat("worst round ", most(p99), " us, worst step ", Us(worst), " us")});
  report->Add({"process its result, p50", least(result_p50), "us", std::nullopt, ""});
  report->Add({"heap allocations while planning", static_cast<double>(sum.plan_allocations), "",
               AtMost(0), StrCat("in ", sum.steps, " steps")});
  report->Add({"heap allocations while processing results",
               static_cast<double>(sum.result_allocations), "", AtMost(0), ""});
  report->Note(StrCat(sum.admitted, " admissions, ", sum.added, " arrivals (", sum.add_allocations,
                      " allocations), ", sum.interrupted, " of ", sum.steps,
                      " steps interrupted; so far ", workload.stats().retractions, " retractions, ",
                      workload.stats().preemptions, " preemptions"));
}

double Mean(const std::vector<int64_t>& samples_ns) {
  return Us(std::accumulate(samples_ns.begin(), samples_ns.end(), int64_t{0})) /
         static_cast<double>(samples_ns.size());
}

// The mean, not p50: a request ends every 64th step of 16, and in each of 1,024.
// All sizes in each round, so that a machine that is slow for a while is slow for all.
void RunGrowth(const Options& options, Report* report) {
  report->Section("fcfs: growth with the number of running requests");
  struct Size {
    uint32_t running = 0;
    std::unique_ptr<SchedulerWorkload> workload;
    double best = 1e9;
  };
  std::vector<Size> sizes;
  for (const uint32_t running : {16u, 64u, 256u, 1024u}) {
    SchedulerWorkloadOptions workload_options;
    workload_options.num_running = running;
    workload_options.prompt_tokens = 512;
    workload_options.shared_tokens = 256;
    workload_options.mean_output = 1024;
    sizes.push_back({running, std::make_unique<SchedulerWorkload>(workload_options)});
    sizes.back().workload->Run(300, nullptr);
  }
  for (uint32_t round = 0; round < options.rounds; ++round) {
    for (Size& size : sizes) {
      StepCosts costs;
      size.workload->Run(options.steps, &costs);
      size.best = std::min(size.best, Mean(costs.plan_ns));
    }
  }
  for (const Size& size : sizes) {
    std::optional<Target> target;
    if (size.running == 1024) target = AtMost(sizes.front().best * 1024 / 16);
    report->Add({StrCat("plan a step of ", size.running, ", mean"), size.best, "us", target,
                 StrCat(size.best / size.running * 1e3, " ns a request")});
  }
}

std::vector<int32_t> RandomTokens(std::mt19937_64* random, size_t count) {
  std::vector<int32_t> tokens(count);
  for (int32_t& token : tokens) token = static_cast<int32_t>((*random)() % 150000);
  return tokens;
}

// The p50 of matching each prompt once in a round, in the best of the rounds.
double MatchUs(const Options& options, RadixCache* cache, NodeId root,
               const std::vector<std::vector<int32_t>>& prompts, uint32_t pages_wanted) {
  std::vector<PageId> pages;
  double best = 1e9;
  for (uint32_t round = 0; round <= options.rounds; ++round) {  // the first splits nodes
    std::vector<int64_t> samples;
    for (const std::vector<int32_t>& prompt : prompts) {
      pages.clear();
      const auto start = std::chrono::steady_clock::now();
      cache->Lock(cache->MatchPrefix(root, prompt, &pages));
      const auto end = std::chrono::steady_clock::now();
      CHECK(pages.size() == pages_wanted);
      cache->Unlock(cache->FindPrefix(root, prompt).node);
      samples.push_back((end - start).count());
    }
    best = std::min(best, Us(Percentile(samples, 0.5)));
  }
  return best;
}

void RunMatch(const Options& options, uint32_t page_size, Report* report) {
  report->Section(StrCat("match and lock 4,096 tokens in pages of ", page_size));
  constexpr uint32_t kTokens = 4096, kShared = 2048, kPrompts = 500, kNodes = 64, kChains = 64;
  std::mt19937_64 random(1);
  RadixCache cache;
  const uint32_t pages_each = kTokens / page_size;
  cache.Reset((kPrompts + kChains) * pages_each, page_size);
  const NodeId root = cache.AcquireRoot("");
  PageId next_page = 0;
  std::vector<PageId> pages(pages_each), duplicates;
  const auto insert = [&](std::span<const int32_t> tokens) {
    for (PageId& page : pages) page = next_page++;
    duplicates.clear();
    cache.Insert(root, tokens, std::span(pages).first(tokens.size() / page_size), &duplicates);
  };
  std::vector<std::vector<int32_t>> prefixes, prompts, chains;
  for (int i = 0; i < 16; ++i) prefixes.push_back(RandomTokens(&random, kShared));
  for (uint32_t i = 0; i < kPrompts; ++i) {
    std::vector<int32_t>& prompt = prompts.emplace_back(prefixes[i % prefixes.size()]);
    const auto own = RandomTokens(&random, kTokens - kShared);
    prompt.insert(prompt.end(), own.begin(), own.end());
    insert(prompt);
  }
  for (uint32_t i = 0; i < kChains; ++i) {
    chains.push_back(RandomTokens(&random, kTokens));
    for (uint32_t node = 1; node <= kNodes; ++node) {
      insert(std::span(chains.back()).first(kTokens / kNodes * node));
    }
  }
  std::shuffle(prompts.begin(), prompts.end(), random);
  const bool judged = page_size == SchedulerConfig().page_size;
  const auto limit = [judged](double us) {
    return judged ? std::optional<Target>(AtMost(us)) : std::nullopt;
  };
  report->Add({"a prompt of which half is shared with others",
               MatchUs(options, &cache, root, prompts, pages_each), "us", limit(5), ""});
  report->Add({"a conversation, a path of 64 nodes",
               MatchUs(options, &cache, root, chains, pages_each), "us", limit(10), ""});
}

// Prompts of 1,000 tokens until the cache is full, in nodes of whole prompts.
void FillCache(Scheduler* core, uint32_t num_tokens) {
  std::mt19937_64 random(1);
  StepPlan plan;
  std::vector<ReqOutput> outputs;
  for (ReqId id = 1; id <= num_tokens / 1000; ++id) {
    ReqSpec spec;
    spec.id = id;
    spec.prompt_ids = RandomTokens(&random, 1000);
    spec.max_new_tokens = 1;
    CHECK_OK(core->Add(std::move(spec), 1));
    while (core->PlanStep(1, &plan)) {
      core->OnResult(testing::AnswerPlan(plan, 1), 1, &outputs);
    }
  }
}

void RunSave(const Options& options, Report* report) {
  report->Section("save and restore the core, its cache full of prompts of 1,000 tokens");
  for (const uint32_t num_tokens : {45'000u, 1'000'000u}) {
    SchedulerConfig config;
    config.num_pages = num_tokens / config.page_size;
    config.chunked_prefill_size = 4096;
    config.context_length = 4096;
    config.vocab_size = 150000;
    Scheduler core(config);
    core.BeginEpoch(1, config.num_pages);
    FillCache(&core, num_tokens);
    std::vector<int64_t> save_ns, restore_ns;
    std::string bytes;
    for (uint32_t round = 0; round < 10 * options.rounds; ++round) {
      bytes.clear();
      const auto start = std::chrono::steady_clock::now();
      core.Save(&bytes);
      const auto saved = std::chrono::steady_clock::now();
      CHECK_OK(Scheduler::Restore(config, bytes).status());
      save_ns.push_back((saved - start).count());
      restore_ns.push_back((std::chrono::steady_clock::now() - saved).count());
    }
    const std::string tokens = StrCat(num_tokens, " cached tokens");
    report->Add({tokens + ", save, best", Us(Percentile(save_ns, 0)), "us", std::nullopt,
                 StrCat("p50 ", Us(Percentile(save_ns, 0.5)), " us, ", bytes.size(), " bytes")});
    report->Add(
        {tokens + ", restore, best", Us(Percentile(restore_ns, 0)), "us", std::nullopt, ""});
  }
}

}  // namespace
}  // namespace flotilla

int main(int argc, char** argv) {
  using namespace flotilla;
  Options options;
  CLI::App app("Measures the scheduler's core", "scheduler_bench");
  app.add_option("--policy", options.policy, "Only this one, or none")->capture_default_str();
  app.add_option("--steps", options.steps, "Measured steps a round")
      ->check(CLI::Range(100u, 1u << 30))
      ->capture_default_str();
  app.add_option("--warm-up", options.warm_up, "Steps before them")->capture_default_str();
  app.add_option("--rounds", options.rounds, "The best is judged")
      ->check(CLI::Range(1u, 1000u))
      ->capture_default_str();
  app.add_option("--json", options.json, "Also writes the figures to this file");
  app.add_flag("--check", options.check, "Exit with 1 if a limit is missed");
  ParseOrExit(&app, argc, argv);

  std::printf("%s\n", DescribeMachine().c_str());
  Report report;
  for (const std::string_view policy : SchedulePolicyNames()) {
    if (options.policy == "all" || options.policy == policy) {
      RunPolicy(options, std::string(policy), &report);
    }
  }
  RunGrowth(options, &report);
  for (const uint32_t page_size : {16u, 1u}) RunMatch(options, page_size, &report);
  RunSave(options, &report);
  report.PrintSummary();
  if (!options.json.empty()) {
    const Status written = report.WriteJson(options.json);
    if (!written.ok()) {
      std::fprintf(stderr, "scheduler_bench: error: %s\n", std::string(written.message()).c_str());
      return 1;
    }
  }
  return options.check && !report.AllMet() ? 1 : 0;
}
