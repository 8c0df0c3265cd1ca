// flotilla-served: `flotilla bench serve`. Sends a load to a server that runs, any with OpenAI's
// API, and says how it was answered.
//
// Exit codes: 0; 2 for a bad flag; 1 if the server can't be reached or a request failed; 130 after
// Ctrl-C, with the figures of what was answered.
#include <signal.h>
#include <unistd.h>

#include <boost/json.hpp>
#include <cstdio>

#include "common/cli/flag_sources.h"
#include "deploy/launcher/chat_client.h"
#include "deploy/launcher/served/load_run.h"

namespace flotilla {
namespace {

constexpr char kLesson[] = R"(
Prompts are random tokens, and no answer ends before its length (ignore_eos). With --max-concurrency
each client sends its next request when it has its answer; with --request-rate requests come at
random, whether or not the server keeps up. Latencies are in milliseconds: TTFT to the first text,
ITL between two pieces of text, TPOT the mean a token, E2EL to the end.

Try, while `flotilla serve` runs:
  flotilla bench serve --max-concurrency 8
  flotilla bench serve --request-rate 4 --goodput ttft:1000,tpot:100
  flotilla bench serve --shared-prefix 256 --input-len 32 --requests 200
  for c in 1 8 32; do flotilla bench serve --max-concurrency $c --json --label here; done > load.jsonl
In the source tree, tests/bench/plots.py --load load.jsonl draws that.
)";

constexpr int kExitInterrupted = 130;
constexpr uint32_t kDefaultClients = 8;

std::atomic<bool> g_stop{false};
void OnSignal(int) { g_stop.store(true); }

struct Flags {
  ServerFlags server;
  std::string model, label = "flotilla", goodput;
  std::string input_len = "128", output_len = "64";
  RandomWorkload workload;
  uint32_t vocab_size = 10'000;
  ServedLoad load;
  double temperature = 0;
  bool json = false;
};

void AddFlags(CLI::App* app, Flags* flags) {
  AddServerFlags(app, "The server", &flags->server);
  app->add_option("--model", flags->model, "Its name there. Default: the first of /v1/models");
  flags->workload.requests = 100;
  app->add_option("--requests", flags->workload.requests, "How many")
      ->check(CLI::Range(1u, 1u << 20))
      ->capture_default_str();
  app->add_option("--max-concurrency", flags->load.max_concurrency,
                  "Most requests under way at once; 0: no limit, but 8 without --request-rate")
      ->check(CLI::Range(0u, 1u << 16))
      ->capture_default_str();
  app->add_option("--request-rate", flags->load.request_rate,
                  "Requests a second, at random; 0: as soon as --max-concurrency allows")
      ->check(CLI::Range(0.0, 1e6))
      ->capture_default_str();
  app->add_option("--input-len", flags->input_len, "Tokens of a prompt: MIN:MAX, or a number")
      ->capture_default_str();
  app->add_option("--output-len", flags->output_len, "Tokens of an answer: MIN:MAX, or a number")
      ->capture_default_str();
  app->add_option("--shared-prefix", flags->workload.shared_prefix,
                  "Tokens that all prompts begin with, beside --input-len")
      ->check(CLI::Range(0u, 1u << 20))
      ->capture_default_str();
  app->add_option("--vocab-size", flags->vocab_size, "Token ids are drawn below this")
      ->check(CLI::Range(1u, 1u << 24))
      ->capture_default_str();
  app->add_option("--temperature", flags->temperature, "Of the sampling")
      ->check(CLI::Range(0.0, 2.0))
      ->capture_default_str();
  app->add_option("--seed", flags->workload.seed, "Of lengths, tokens and arrivals")
      ->capture_default_str();
  app->add_option("--goodput", flags->goodput,
                  "Also count requests that keep these limits, in milliseconds, such as "
                  "ttft:500,tpot:50,e2el:10000");
  app->add_flag("--json", flags->json, "Figures as one line of JSON");
  app->add_option("--label", flags->label, "Of that line")->capture_default_str();
}

// One line on a terminal.
class Bar {
 public:
  explicit Bar(size_t requests) : requests_(requests) {}
  void Show(const LoadRunOptions::Progress& progress) const {
    if (!terminal_) return;
    constexpr size_t kWidth = 30;
    const size_t filled = progress.ended * kWidth / requests_;
    std::fprintf(stderr, "\r\x1b[K[%s%s] %zu of %zu, %zu under way, %llu pieces of text",
                 std::string(filled, '#').c_str(), std::string(kWidth - filled, '.').c_str(),
                 progress.ended, requests_, progress.running,
                 static_cast<unsigned long long>(progress.output_pieces));
  }
  void End() const {
    if (terminal_) std::fprintf(stderr, "\r\x1b[K");
  }

 private:
  const size_t requests_;
  const bool terminal_ = isatty(STDERR_FILENO) != 0;
};

int Fail(const Status& status) {
  std::fprintf(stderr, "flotilla: error: %s\n", std::string(status.message()).c_str());
  return absl::IsInvalidArgument(status) ? 2 : 1;
}

StatusOr<boost::json::object> Measure(Flags flags) {
  LoadRunOptions options;
  ASSIGN_OR_RETURN(options.url, ParseHttpUrl(flags.server.url, flags.server.tls));
  ASSIGN_OR_RETURN(flags.workload.input_len, ParseLengthRange("--input-len", flags.input_len));
  ASSIGN_OR_RETURN(flags.workload.output_len, ParseLengthRange("--output-len", flags.output_len));
  Slo slo;
  if (!flags.goodput.empty()) {
    ASSIGN_OR_RETURN(slo, ParseSlo(flags.goodput));
  }
  if (flags.load.request_rate == 0 && flags.load.max_concurrency == 0)
    flags.load.max_concurrency = kDefaultClients;
  options.model = flags.model;
  if (options.model.empty()) {
    ASSIGN_OR_RETURN(options.model, FirstModel(options.url, flags.server.api_key, &g_stop));
  }
  constexpr uint32_t kAnyContext = 1u << 30;  // the server knows
  ASSIGN_OR_RETURN(const std::vector<RandomRequest> requests,
                   MakeRandomRequests(flags.workload, flags.vocab_size, kAnyContext));
  const Bar bar(requests.size());
  options.api_key = flags.server.api_key;
  options.load = flags.load;
  options.temperature = flags.temperature;
  options.seed = flags.workload.seed;
  options.stop = &g_stop;
  options.progress = [&bar](const LoadRunOptions::Progress& progress) { bar.Show(progress); };
  const auto answers = RunLoad(requests, options);
  bar.End();
  RETURN_IF_ERROR(answers.status());
  return ServedFigures(*answers, flags.load, slo);
}

// Figures of prompts that need not be computed are those of another load.
void TellIfCached(const Flags& flags, const boost::json::object& figures) {
  const auto cached = figures.at("cached_tokens").to_number<uint64_t>();
  if (flags.workload.shared_prefix > 0 ||
      2 * cached < figures.at("prompt_tokens").to_number<uint64_t>() || cached == 0)
    return;
  std::fprintf(stderr,
               "flotilla: most of these prompts were in the server's prefix cache, perhaps from a "
               "run before this one; another --seed makes others\n");
}

int Main(int argc, char** argv) {
  Flags flags;
  CLI::App app("How a server answers a load: throughput, latencies, goodput",
               "flotilla bench serve");
  app.footer(kLesson);
  AddFlags(&app, &flags);
  AddConfigFlag(&app);
  ParseWithSourcesOrExit(&app, argc, argv);
  struct sigaction action = {};
  action.sa_handler = OnSignal;
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
  StatusOr<boost::json::object> figures = Measure(flags);
  if (absl::IsCancelled(figures.status())) return kExitInterrupted;
  if (!figures.ok()) return Fail(figures.status());
  if (flags.json) {
    (*figures)["label"] = flags.label;
    std::printf("%s\n", boost::json::serialize(*figures).c_str());
  } else {
    std::printf("%s", ServedTable(*figures).c_str());
  }
  TellIfCached(flags, *figures);
  if (g_stop.load()) return kExitInterrupted;
  return figures->at("failed").to_number<uint64_t>() == 0 ? 0 : 1;
}

}  // namespace
}  // namespace flotilla

int main(int argc, char** argv) { return flotilla::Main(argc, argv); }
