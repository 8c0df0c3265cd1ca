// shm_bench: what the shared memory of a replica costs, beside its targets, what others offer for
// the same and what the machine allows. docs/performance.md says how to read it.
#include <cstdio>
#include <string>

#include "common/base/flags.h"
#include "tests/bench/shm_bench.h"

int main(int argc, char** argv) {
  using namespace flotilla;
  ShmBenchOptions options;
  std::string json, section = "all";
  bool check = false;
  CLI::App app("Measures rings, wake-ups and collectives between processes", "shm_bench");
  app.add_option("--iterations", options.iterations, "Operations a round; slow ones take fewer")
      ->check(CLI::Range(100, 10'000'000))
      ->capture_default_str();
  app.add_option("--rounds", options.rounds, "Alternating rounds; the median one is reported")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  app.add_option("--tp", options.tp, "Ranks of the collectives; targets hold for 2")
      ->check(CLI::Range(2, 16))
      ->capture_default_str();
  app.add_flag("!--no-pin", options.pin, "Leave it to the kernel where processes run");
  app.add_option("--section", section, "Only this one: round-trips, wake-ups or collectives")
      ->check(CLI::IsMember({"all", "round-trips", "wake-ups", "collectives"}))
      ->capture_default_str();
  app.add_option("--json", json, "Also writes the figures to this file");
  app.add_flag("--check", check, "Exit with 1 if a target is missed");
  ParseOrExit(&app, argc, argv);

  options.cores = AllowedCores();
  std::printf("%s\n", DescribeMachine().c_str());
  Report report;
  if (section == "all" || section == "round-trips") RunRoundTrips(options, &report);
  if (section == "all" || section == "wake-ups") RunWakeUps(options, &report);
  if (section == "all" || section == "collectives") RunCollectives(options, &report);
  report.PrintSummary();
  if (!json.empty()) {
    const Status written = report.WriteJson(json);
    if (!written.ok()) {
      std::fprintf(stderr, "shm_bench: error: %s\n", std::string(written.message()).c_str());
      return 1;
    }
  }
  return check && !report.AllMet() ? 1 : 0;
}
