// `flotilla bench fit` and `flotilla simulate`: what steps cost on a machine, and how the scheduler
// would do there with other requests or other flags.
#include <cstdio>
#include <fstream>
#include <sstream>

#include "absl/strings/str_format.h"
#include "boost/json.hpp"
#include "common/cli/figures_table.h"
#include "scheduler_proc/core/core_flags.h"
#include "scheduler_proc/simulation/simulator.h"
#include "shm/flight_ring.h"

namespace flotilla {
namespace {

constexpr char kFitLesson[] = R"(
Record while the machine does what it will do (flotilla serve keeps recordings of schedulers that
died; kill -9 the scheduler, by its id, when it has seen enough), then:
  flotilla bench fit ~/.cache/flotilla/flight/*.flight --output cost.json
  flotilla simulate --cost cost.json --requests 1000 --rate 20
)";
constexpr char kSimulateLesson[] = R"(
Try:
  flotilla simulate --cost cost.json --requests 1000 --rate 20            made up
  flotilla simulate --cost cost.json --trace trace.jsonl                  one JSON object a line:
      {"at": 1.5, "prompt_tokens": 200, "output_tokens": 64}              (see docs/simulation.md)
  flotilla simulate --cost cost.json --recording replica-0.flight --schedule-policy lpm
)";

struct Flags {
  std::vector<std::string> recordings;
  std::string output, cost, trace, recording;
  PoissonOptions poisson;
  uint32_t clients = 0;
  bool json = false;
  CoreFlags core;
};

int Fail(const Status& status) {
  std::fprintf(stderr, "flotilla: error: %s\n", std::string(status.message()).c_str());
  return 2;
}

StatusOr<std::string> ReadFile(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  std::stringstream text;
  text << in.rdbuf();
  if (!in) return absl::NotFoundError(StrCat("can't read ", path));
  return text.str();
}

StatusOr<StepModel> Fit(const std::vector<std::string>& files) {
  std::vector<std::vector<std::string>> recordings;
  for (const std::string& file : files) {
    ASSIGN_OR_RETURN(recordings.emplace_back(), ReadFlightFile(file));
  }
  return FitRecordings(recordings);
}

int RunFit(const Flags& flags) {
  const StatusOr<StepModel> model = Fit(flags.recordings);
  if (!model.ok()) return Fail(model.status());
  for (size_t i = 0; i < StepModel::kTerms; ++i) {
    std::printf("%-22s %12.3f us\n", StepModel::kNames[i], model->ns[i] * 1e-3);
  }
  std::printf("gap %.0f us, dispatch %.0f us, result %.0f us\n%llu steps, mean error %.1f %%\n",
              static_cast<double>(model->gap_ns) * 1e-3,
              static_cast<double>(model->dispatch_ns) * 1e-3,
              static_cast<double>(model->result_ns) * 1e-3,
              static_cast<unsigned long long>(model->num_steps), model->error * 100);
  std::ofstream out(flags.output);
  out << ToJson(*model);
  out.close();
  if (!out) return Fail(absl::UnavailableError(StrCat("can't write ", flags.output)));
  return 0;
}

StatusOr<std::vector<SimRequest>> Workload(const Flags& flags) {
  const int given =
      !flags.trace.empty() + !flags.recording.empty() + (flags.poisson.num_requests > 0);
  if (given != 1) {
    return absl::InvalidArgumentError("give one of --trace, --recording and --requests");
  }
  if (!flags.trace.empty()) {
    ASSIGN_OR_RETURN(const std::string text, ReadFile(flags.trace));
    StatusOr<std::vector<SimRequest>> requests = ParseTrace(text);
    return requests.ok() ? requests : Annotate(requests.status(), flags.trace);
  }
  if (flags.recording.empty()) return PoissonWorkload(flags.poisson);
  ASSIGN_OR_RETURN(const std::vector<std::string> records, ReadFlightFile(flags.recording));
  return RecordedWorkload(records);
}

// What a report says, in seconds and tokens a second.
boost::json::object Figures(const SimReport& report) {
  const auto seconds = [](double ns) { return ns * 1e-9; };
  const auto spread = [&](const std::vector<int64_t>& rising) {
    return boost::json::object{{"mean", seconds(MeanOf(rising))},
                               {"p50", seconds(static_cast<double>(Quantile(rising, 0.5)))},
                               {"p90", seconds(static_cast<double>(Quantile(rising, 0.9)))},
                               {"p99", seconds(static_cast<double>(Quantile(rising, 0.99)))}};
  };
  return {{"finished", report.finished},
          {"rejected", report.rejected},
          {"duration_seconds", seconds(static_cast<double>(report.duration_ns))},
          {"output_tokens_per_second", report.OutputRate()},
          {"prompt_tokens", report.prompt_tokens},
          {"cached_tokens", report.cached_tokens},
          {"steps", report.steps},
          {"retractions", report.retractions},
          {"time_to_first_token_seconds", spread(report.ttft_ns)},
          {"inter_token_latency_seconds", spread(report.token_gap_ns)},
          {"e2e_request_latency_seconds", spread(report.e2e_ns)}};
}

int RunSimulate(const Flags& flags) {
  const StatusOr<std::string> text = ReadFile(flags.cost);
  if (!text.ok()) return Fail(text.status());
  const StatusOr<StepModel> model = ParseStepModel(*text);
  if (!model.ok()) return Fail(Annotate(model.status(), flags.cost));
  const StatusOr<std::vector<SimRequest>> requests = Workload(flags);
  if (!requests.ok()) return Fail(requests.status());
  SimOptions options{flags.core.Config(), *model, flags.clients};
  SchedulerConfig& config = options.config;
  config.vocab_size = model->vocab_size;
  if (config.num_pages == 0) {
    config.num_pages =
        static_cast<uint32_t>(uint64_t{model->num_pages} * model->page_size / config.page_size);
  }
  if (config.context_length == 0) config.context_length = model->context_length;
  const StatusOr<SimReport> report = Simulate(options, *requests);
  if (!report.ok()) return Fail(report.status());
  const boost::json::object figures = Figures(*report);
  if (flags.json) {
    std::printf("%s\n", boost::json::serialize(figures).c_str());
  } else {
    std::fputs(FiguresTable(figures).c_str(), stdout);
  }
  return 0;
}

int Main(int argc, char** argv) {
  CLI::App app("Runs the scheduler under virtual time", "flotilla");
  app.require_subcommand(1);
  Flags flags;
  CLI::App* fit = app.add_subcommand(
      "fit", "Learns from flight recordings what a step costs on the machine that they are from");
  fit->footer(kFitLesson);
  fit->add_option("FILE", flags.recordings, "A .flight file; several are taken together")
      ->required();
  fit->add_option("--output", flags.output, "Where the costs go")->default_val("cost.json");
  CLI::App* simulate = app.add_subcommand(
      "simulate", "How long requests would take, with the scheduler's own decisions");
  simulate->footer(kSimulateLesson);
  simulate->option_defaults()->always_capture_default();
  simulate->add_option("--cost", flags.cost, "What flotilla bench fit has written")->required();
  simulate->add_option("--trace", flags.trace, "Requests, one JSON object a line");
  simulate->add_option("--recording", flags.recording, "Requests, as a .flight file has them");
  PoissonOptions& poisson = flags.poisson;
  simulate->add_option("--requests", poisson.num_requests, "Made up, so many");
  simulate->add_option("--rate", poisson.rate, "Of those, arrivals a second")
      ->check(CLI::Range(1e-6, 1e9));
  simulate->add_option("--prompt-tokens", poisson.prompt_tokens, "Of those, the mean")
      ->check(CLI::Range(1.0, 1e6));
  simulate->add_option("--output-tokens", poisson.output_tokens, "Of those, the mean")
      ->check(CLI::Range(1.0, 1e6));
  simulate
      ->add_option("--prefix-tokens", poisson.prefix_tokens,
                   "Of those, that all prompts begin with, beside --prompt-tokens")
      ->check(CLI::Range(0u, 1u << 20));
  simulate->add_option("--seed", poisson.seed, "Of those: the same seed, the same requests");
  simulate->add_option("--clients", flags.clients,
                       "So many clients, each sending its next request as it has an answer; 0: "
                       "requests come when they say");
  simulate->add_option("--num-pages", flags.core.config.num_pages,
                       "Pages of the KV cache; 0: as many tokens as where the costs are from");
  AddCoreFlags(simulate, &flags.core);
  simulate->add_flag("--json", flags.json, "Figures as JSON");
  ParseOrExit(&app, argc, argv);
  return fit->parsed() ? RunFit(flags) : RunSimulate(flags);
}

}  // namespace
}  // namespace flotilla

int main(int argc, char** argv) { return flotilla::Main(argc, argv); }
