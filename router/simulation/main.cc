// `flotilla simulate fleet`: what each routing policy would do to a fleet of replicas.
#include <cstdio>
#include <string>

#include "boost/json.hpp"
#include "common/base/flags.h"
#include "router/policy/policy.h"
#include "router/simulation/fleet_simulator.h"

namespace flotilla {
namespace {

constexpr char kLesson[] = R"(
Try:
  flotilla simulate fleet                                       conversations, all policies
  flotilla simulate fleet --turns 1 --groups 0 --long-share 0.09      lengths that differ much
  flotilla simulate fleet --policy prefix_aware --failures 4 --straggler-share 0.1
docs/scaling.md has results and what they mean.
)";

struct Flags {
  FleetSimOptions fleet;
  std::string policy = "all";
  bool json = false;
};

void AddWorkloadFlags(CLI::App* app, WorkloadOptions* workload) {
  app->add_option("--requests", workload->num_requests, "Turns of all conversations")
      ->check(CLI::Range(1, 100'000'000));
  app->add_option("--rate", workload->rate, "Turns a second, about")->check(CLI::Range(1e-3, 1e6));
  app->add_option("--turns", workload->turns, "Of a conversation, the mean")
      ->check(CLI::Range(1.0, 1000.0));
  app->add_option("--think-seconds", workload->think_s, "From an answer to the next turn, the mean")
      ->check(CLI::Range(1e-3, 1e6));
  app->add_option("--groups", workload->groups,
                  "Of conversations that begin with the same system prompt; 0: none do")
      ->check(CLI::Range(0, 1'000'000));
  app->add_option("--system-tokens", workload->system_tokens, "Of a group's system prompt")
      ->check(CLI::Range(1, 16'000));
  app->add_option("--user-tokens", workload->user_tokens, "New in each turn, the mean")
      ->check(CLI::Range(1.0, 16'000.0));
  app->add_option("--output-tokens", workload->output_tokens, "Of each answer, the mean")
      ->check(CLI::Range(1.0, 16'000.0));
  app->add_option("--long-share", workload->long_share,
                  "This share of the turns has ten times the user's tokens, the others less")
      ->check(CLI::Range(0.0, 0.09));
  app->add_option("--seed", workload->seed, "The same seed, the same requests");
}

void AddFleetFlags(CLI::App* app, FleetSimOptions* fleet) {
  app->add_option("--replicas", fleet->replicas, "Of the fleet")->check(CLI::Range(1, 100'000));
  app->add_option("--routers", fleet->routers, "That do not know of each other's requests")
      ->check(CLI::Range(1, 64));
  app->add_option("--failures", fleet->failures, "Deaths of replicas, evenly over the time")
      ->check(CLI::Range(0, 100'000));
  app->add_option("--down-seconds", fleet->down_s,
                  "Until a dead replica is back, with nothing cached")
      ->check(CLI::Range(1e-3, 1e6));
  app->add_option("--straggler-share", fleet->straggler_share, "Of the replicas, that are slow")
      ->check(CLI::Range(0.0, 1.0));
  app->add_option("--straggler-slowdown", fleet->straggler_slowdown, "How many times as slow")
      ->check(CLI::Range(1.0, 1000.0));
  ReplicaCost& cost = fleet->cost;
  app->add_option("--step-seconds", cost.step_s, "Of each step")->check(CLI::Range(1e-6, 10.0));
  app->add_option("--prompt-token-seconds", cost.prompt_token_s, "More for each prompt token")
      ->check(CLI::Range(0.0, 1.0));
  app->add_option("--decode-token-seconds", cost.decode_token_s, "More for each output token")
      ->check(CLI::Range(0.0, 1.0));
  app->add_option("--chunked-prefill-size", cost.chunk_tokens, "Prompt tokens of a step, at most")
      ->check(CLI::Range(1, 65'536));
  app->add_option("--max-running-requests", cost.max_running, "In a replica, at once")
      ->check(CLI::Range(1, 4096));
  app->add_option("--kv-cache-tokens", cost.kv_tokens, "Of a replica")
      ->check(CLI::Range(1'000, 1'000'000'000));
}

boost::json::object Figures(const FleetReport& report) {
  const double requests = static_cast<double>(report.finished);
  return {{"ttft_p50_seconds", QuantileOf(report.ttft_s, 0.5)},
          {"ttft_p99_seconds", QuantileOf(report.ttft_s, 0.99)},
          {"e2e_p50_seconds", QuantileOf(report.e2e_s, 0.5)},
          {"e2e_p99_seconds", QuantileOf(report.e2e_s, 0.99)},
          {"hit_rate", report.HitRate()},
          {"work_balance", report.work_balance},
          {"request_balance", report.request_balance},
          {"finished", report.finished},
          {"moved", report.moved},
          {"requests_per_second", report.duration_s == 0 ? 0 : requests / report.duration_s}};
}

// A row of a table that docs/scaling.md can take as it is.
void PrintRow(const std::string& policy, const FleetReport& report) {
  std::printf("| %s | %.3f | %.3f | %.1f | %.0f %% | %.2f | %.2f | %llu |\n", policy.c_str(),
              QuantileOf(report.ttft_s, 0.5), QuantileOf(report.ttft_s, 0.99),
              QuantileOf(report.e2e_s, 0.99), report.HitRate() * 100, report.work_balance,
              report.request_balance, static_cast<unsigned long long>(report.moved));
  std::fflush(stdout);
}

int Main(int argc, char** argv) {
  Flags flags;
  CLI::App app("The router's policies over a simulated fleet", "flotilla simulate fleet");
  app.footer(kLesson);
  app.option_defaults()->always_capture_default();
  std::vector<std::string> names = PolicyNames();
  std::vector<std::string> choices = names;
  choices.emplace_back("all");
  app.add_option("--policy", flags.policy, "Which one")->check(CLI::IsMember(choices));
  AddFleetFlags(&app, &flags.fleet);
  AddWorkloadFlags(&app, &flags.fleet.workload);
  app.add_flag("--json", flags.json, "Figures as JSON, one object a line");
  ParseOrExit(&app, argc, argv);
  if (flags.policy != "all") names = {flags.policy};
  if (!flags.json)
    std::printf(
        "| policy | TTFT p50 s | p99 s | end to end p99 s | hit rate | most work | most "
        "requests | moved |\n|---|---|---|---|---|---|---|---|\n");
  for (const std::string& name : names) {
    const StatusOr<FleetReport> report = SimulateFleet(flags.fleet, name);
    if (!report.ok()) {
      std::fprintf(stderr, "flotilla: error: %s\n", std::string(report.status().message()).c_str());
      return 2;
    }
    if (flags.json) {
      boost::json::object figures = Figures(*report);
      figures["policy"] = name;
      std::printf("%s\n", boost::json::serialize(figures).c_str());
    } else {
      PrintRow(name, *report);
    }
  }
  return 0;
}

}  // namespace
}  // namespace flotilla

int main(int argc, char** argv) { return flotilla::Main(argc, argv); }
