// flotilla-quality: `flotilla bench quality`.
//
// Exit codes: 0; 2 for a bad flag, model or text, or too little memory; 130 after Ctrl-C; 1 for
// anything else.
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstdio>

#include "common/base/clock.h"
#include "common/base/cpu_features.h"
#include "common/base/default_model.h"
#include "common/base/flags.h"
#include "common/base/log.h"
#include "worker_proc/bench/json_file.h"
#include "worker_proc/bench/quality.h"

namespace flotilla::bench {
namespace {

constexpr int kExitInterrupted = 130;
constexpr int64_t kTerminalProgressNs = kNsPerSecond / 5;
constexpr int64_t kLogProgressNs = 10 * kNsPerSecond;

constexpr char kLesson[] = R"(
How to read it: the text is given token by token, in windows of --context-length, and the logits of
every position are compared with those of float32 arithmetic with a float32 KV cache. "mean KL" is
the mean Kullback-Leibler divergence in nats, "top-1" how often the most likely token is the same,
"top-1 decided" that where the reference leads by more than 0.5; "perplexity" counts all positions
but each window's last. docs/performance.md has more.

Try:
  flotilla bench quality                             the default model, our own text
  flotilla bench quality --model my.gguf --text my.txt --tokens 4096
  flotilla bench quality --llama-logits "$(tests/bench/build_llama.sh)/llama_logits"
                                                     llama.cpp's figures beside ours
)";

std::atomic<bool> g_stop{false};
static_assert(std::atomic<bool>::is_always_lock_free);
void OnSignal(int) { g_stop.store(true); }

struct Flags {
  QualityOptions quality;
  std::string json;
};

void AddFlags(CLI::App* app, Flags* flags) {
  QualityOptions& o = flags->quality;
  app->add_option("--model", o.model,
                  "Path of a .gguf file or of a model folder with safetensors, or 'default' "
                  "(SmolLM2-135M-Instruct)")
      ->default_val("default");
  app->add_option("--text", o.text, "File with the text, UTF-8; default: one of our own");
  app->add_option("--tokens", o.max_tokens, "Most tokens of the text; 0: all")
      ->capture_default_str();
  app->add_option("--context-length", o.context_length,
                  "Tokens a window, each of which is read as a text of its own")
      ->check(CLI::Range(2u, 1u << 20))
      ->capture_default_str();
  app->add_option("--isa", o.isa, "Instruction set of the CPU backend")
      ->check(CLI::IsMember(IsaChoices()))
      ->capture_default_str();
  app->add_option("--threads", o.threads, "Compute threads; 0: the cores that this process may use")
      ->check(CLI::Range(0u, 1024u))
      ->capture_default_str();
  app->add_option("--llama-logits", o.llama_logits,
                  "Program llama_logits of tests/bench/build_llama.sh: llama.cpp's figures too");
  app->add_option("--json", flags->json, "File for the same figures as JSON");
}

// One line on a terminal, now and then a line in a log.
class Progress {
 public:
  Status operator()(const QualityRow& row, uint64_t done, uint64_t tokens) {
    if (g_stop.load()) return absl::CancelledError("stopped");
    const int64_t now_ns = RealClock::Now();
    if (now_ns - last_ns_ < (terminal_ ? kTerminalProgressNs : kLogProgressNs)) return OkStatus();
    last_ns_ = now_ns;
    std::fprintf(stderr, "%s%s, KV %s: %llu of %llu tokens%s", terminal_ ? "\r\x1b[K" : "",
                 row.activations.c_str(), row.kv.c_str(), static_cast<unsigned long long>(done),
                 static_cast<unsigned long long>(tokens), terminal_ ? "" : "\n");
    return OkStatus();
  }
  void End() const {
    if (terminal_) std::fprintf(stderr, "\r\x1b[K");
  }

 private:
  const bool terminal_ = isatty(STDERR_FILENO) != 0;
  int64_t last_ns_ = RealClock::Now();
};

Status Run(Flags flags) {
  if (flags.quality.model == "default") {
    ASSIGN_OR_RETURN(flags.quality.model, DefaultModelPath());
  }
  Progress progress;
  const StatusOr<QualityReport> report = RunQuality(flags.quality, std::ref(progress));
  progress.End();
  RETURN_IF_ERROR(report.status());
  std::printf("%s", QualityTable(*report).c_str());
  return WriteJsonFile(flags.json, QualityJson(*report));
}

}  // namespace
}  // namespace flotilla::bench

int main(int argc, char** argv) {
  using namespace flotilla;
  bench::Flags flags;
  CLI::App app("What the fast arithmetics cost in precision: KL, top-1 and perplexity",
               "flotilla bench quality");
  app.footer(bench::kLesson);
  bench::AddFlags(&app, &flags);
  ParseOrExit(&app, argc, argv);
  LogOptions log;
  log.level = "warn";
  InitLog(log);
  struct sigaction action = {};
  action.sa_handler = bench::OnSignal;  // no SA_RESTART: waiting for the other program ends
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
  const Status status = bench::Run(flags);
  if (bench::g_stop.load()) {
    std::fprintf(stderr, "flotilla: stopped\n");
    return bench::kExitInterrupted;
  }
  if (status.ok()) return 0;
  std::fprintf(stderr, "flotilla: error: %s\n", std::string(status.message()).c_str());
  return absl::IsInternal(status) || absl::IsDataLoss(status) ? 1 : 2;
}
