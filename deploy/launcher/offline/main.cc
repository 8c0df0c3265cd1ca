// flotilla-offline: `flotilla bench offline`. Starts a replica of its own, gives it all requests at
// once and says how fast they were answered.
//
// Exit codes: 0; 2 for a bad flag; 1 if the run failed; 130 after Ctrl-C.
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <set>

#include "boost/json.hpp"
#include "common/base/clock.h"
#include "common/base/flags.h"
#include "common/cli/figures_table.h"
#include "common/cli/flag_sources.h"
#include "deploy/launcher/offline/engine_run.h"
#include "deploy/launcher/options.h"
#include "deploy/launcher/private_cluster.h"

namespace flotilla {
namespace {

constexpr char kLesson[] = R"(
All requests are sent at once to a replica that this command starts, over its gRPC stream: no HTTP,
no texts in. Prompts are random tokens, lengths are drawn uniformly, and no answer ends before its
length. How the replica runs is up to the flags of `flotilla engine` (flotilla help engine), which
this command takes too.

Defaults are for a few cores. The usual workload on a GPU is
  flotilla bench offline --requests 256 --input-len 100:1024 --output-len 100:1024
Also try:
  flotilla bench offline --requests 16 --input-len 128 --output-len 64 --json
  flotilla bench offline --max-running-requests 128 --kv-cache-memory 4GiB
)";

constexpr int kExitInterrupted = 130;
constexpr int64_t kTerminalProgressNs = kNsPerSecond / 2, kLogProgressNs = 10 * kNsPerSecond;

std::atomic<bool> g_stop{false};
void OnSignal(int) { g_stop.store(true); }

struct Flags {
  RandomWorkload workload;
  std::string input_len = "100:512", output_len = "100:512";
  float temperature = 0.6f;
  bool json = false;
  ServeOptions engine;
  std::vector<CLI::Option*> engine_flags;
};

// What this command decides itself.
constexpr const char* kOwnFlags[] = {"--host", "--grpc-port", "--metrics-port",
                                     "--shutdown-timeout", "--model-name"};

void AddFlags(CLI::App* app, Flags* flags) {
  app->add_option("--requests", flags->workload.requests, "How many, all at once")
      ->check(CLI::Range(1u, 1u << 20))
      ->capture_default_str();
  app->add_option("--input-len", flags->input_len, "Tokens of a prompt: MIN:MAX, or a number")
      ->capture_default_str();
  app->add_option("--output-len", flags->output_len, "Tokens of an answer: MIN:MAX, or a number")
      ->capture_default_str();
  app->add_option("--seed", flags->workload.seed, "Of lengths, tokens and sampling")
      ->capture_default_str();
  app->add_option("--temperature", flags->temperature, "Of the sampling")
      ->check(CLI::Range(0.0, 2.0))
      ->capture_default_str();
  app->add_flag("--json", flags->json, "Figures as JSON");
  const std::vector<CLI::Option*> own = app->get_options();
  const std::set<CLI::Option*> known(own.begin(), own.end());
  AddEngineFlags(app, &flags->engine);
  for (const char* name : kOwnFlags) app->remove_option(app->get_option(name));
  for (CLI::Option* option : app->get_options()) {
    if (known.contains(option)) continue;
    flags->engine_flags.push_back(option);
  }
}

bool AsksForHelp(int argc, char** argv) {
  return std::any_of(argv, argv + argc, [](const std::string& arg) {
    return arg == "--help" || arg == "-h" || arg == "--list-flags";
  });
}

// From --help only: an error must be able to name them.
void HideEngineFlags(const Flags& flags) {
  for (CLI::Option* option : flags.engine_flags) {
    if (!option->check_name("--model")) option->group("");  // engine's help has them
  }
}

// The engine's command line: what was given here, and what this command needs.
std::vector<std::string> EngineArgs(const Flags& flags) {
  std::vector<std::string> args = {"engine", "--shutdown-timeout=1"};
  const auto given = [&](const char* name) {
    for (const CLI::Option* option : flags.engine_flags) {
      if (option->check_name(name)) return option->count() > 0;
    }
    return false;
  };
  for (const CLI::Option* option : flags.engine_flags) {
    for (const std::string& value : option->results()) {
      // get_name() says nothing of a hidden option.
      AppendFlag(StrCat("--", option->get_lnames().front()), value, &args);
    }
  }
  if (!given("--log-level")) args.push_back("--log-level=warn");
  if (!given("--max-queued-requests")) {
    args.push_back(StrCat("--max-queued-requests=", std::max(2048u, flags.workload.requests)));
  }
  return args;
}

// One line on a terminal, now and then a line in a log.
class Progress {
 public:
  explicit Progress(size_t requests) : requests_(requests) {}
  void operator()(const OfflineStats& stats) {
    const int64_t now_ns = RealClock::Now();
    const bool due = now_ns - last_ns_ >= (terminal_ ? kTerminalProgressNs : kLogProgressNs);
    if (!due) return;
    const double seconds = static_cast<double>(now_ns - last_ns_) * 1e-9;
    const double rate = static_cast<double>(stats.output_tokens() - last_tokens_) / seconds;
    std::fprintf(stderr, "%s%zu of %zu requests, %llu tokens, %.0f tok/s%s",
                 terminal_ ? "\r\x1b[K" : "", stats.finished(), requests_,
                 static_cast<unsigned long long>(stats.output_tokens()), rate,
                 terminal_ ? "" : "\n");
    last_ns_ = now_ns;
    last_tokens_ = stats.output_tokens();
    shown_ = true;
  }
  void End() const {
    if (terminal_ && shown_) std::fprintf(stderr, "\r\x1b[K");
  }

 private:
  const size_t requests_;
  const bool terminal_ = isatty(STDERR_FILENO) != 0;
  int64_t last_ns_ = RealClock::Now();
  uint64_t last_tokens_ = 0;
  bool shown_ = false;
};

StatusOr<OfflineStats> RunOffline(const Flags& flags) {
  std::error_code error;
  const auto self = std::filesystem::read_symlink("/proc/self/exe", error);
  std::fprintf(stderr, "flotilla: starting a replica\n");
  ASSIGN_OR_RETURN(const PrivateCluster cluster,
                   PrivateCluster::Start((self.parent_path() / "flotilla").string(),
                                         EngineArgs(flags), &g_stop));
  ASSIGN_OR_RETURN(const std::unique_ptr<EngineRun> run, EngineRun::Connect(cluster.grpc()));
  ASSIGN_OR_RETURN(
      const std::vector<RandomRequest> requests,
      MakeRandomRequests(flags.workload, run->model().vocab_size(), run->model().max_model_len()));
  Progress progress(requests.size());
  StatusOr<OfflineStats> stats = run->Run(requests, {.temperature = flags.temperature,
                                                     .seed = flags.workload.seed,
                                                     .stop = &g_stop,
                                                     .progress = std::ref(progress)});
  progress.End();
  return stats;
}

int Fail(const Status& status, int code) {
  std::fprintf(stderr, "flotilla: error: %s\n", std::string(status.message()).c_str());
  return code;
}

int Main(int argc, char** argv) {
  CLI::App app("Throughput of one replica with all requests at once", "flotilla bench offline");
  app.footer(kLesson);
  Flags flags;
  AddFlags(&app, &flags);
  if (AsksForHelp(argc, argv)) HideEngineFlags(flags);
  ParseOrExit(&app, argc, argv);
  StatusOr<LengthRange> input = ParseLengthRange("--input-len", flags.input_len);
  if (!input.ok()) return Fail(input.status(), 2);
  StatusOr<LengthRange> output = ParseLengthRange("--output-len", flags.output_len);
  if (!output.ok()) return Fail(output.status(), 2);
  flags.workload.input_len = *input;
  flags.workload.output_len = *output;
  struct sigaction action = {};
  action.sa_handler = OnSignal;  // no SA_RESTART: waiting for the replica ends
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);

  const StatusOr<OfflineStats> stats = RunOffline(flags);
  if (absl::IsCancelled(stats.status()) || g_stop.load()) {
    std::fprintf(stderr, "flotilla: stopped\n");
    return kExitInterrupted;
  }
  if (!stats.ok()) return Fail(stats.status(), absl::IsInvalidArgument(stats.status()) ? 2 : 1);
  const boost::json::object figures = stats->Figures();
  if (flags.json) {
    std::printf("%s\n", boost::json::serialize(figures).c_str());
  } else {
    std::fputs(FiguresTable(figures).c_str(), stdout);
  }
  return 0;
}

}  // namespace
}  // namespace flotilla

int main(int argc, char** argv) { return flotilla::Main(argc, argv); }
