// flotilla-scheduler: reads its flags, maps what the launcher passed, runs the engine until
// SIGTERM.
//
// Exit codes: 0 after SIGTERM; 2 for a wrong command line, model or address (a restart is useless);
// 1 for anything else.
#include <pthread.h>
#include <signal.h>
#include <sys/prctl.h>

#include <atomic>
#include <cstdio>
#include <filesystem>

#include "common/base/file_watch.h"
#include "common/base/flags.h"
#include "common/checkpoint/checkpoint.h"
#include "common/checkpoint/gguf_shards.h"
#include "common/text/model_text.h"
#include "common/tls/certificate_metric.h"
#include "common/tls/tls_flags.h"
#include "scheduler_proc/core/core_flags.h"
#include "scheduler_proc/engine.h"
#include "scheduler_proc/grammar_vocabulary.h"

namespace flotilla {
namespace {

struct Flags {
  std::string model_path;
  std::string chat_template;
  EngineOptions engine;
  int control_fd = -1, step_ring_fd = -1, result_ring_fd = -1, collective_fd = -1, flight_fd = -1;
  std::string metrics_socket;
  TlsPaths tls;
  uint32_t drain_grace_ms = 30'000;
  uint32_t step_timeout_ms = 120'000;
  uint32_t idempotency_ttl_ms = 600'000;
  CoreFlags core;
  GrammarCompiler::Options grammar;
  LogOptions log;
};

void AddGrammarFlags(CLI::App* app, Flags* f) {
  GrammarCompiler::Options& g = f->grammar;
  app->add_option("--grammar-threads", g.threads, "Grammars that are compiled at once")
      ->check(CLI::Range(1u, 64u));
  app->add_option("--grammar-timeout-ms", g.timeout_ms,
                  "Milliseconds after which a grammar is compiled or refused")
      ->check(CLI::Range(250u, 600'000u));
  app->add_option("--max-requests-awaiting-grammar", g.max_waiting,
                  "Requests that wait for a grammar to be compiled")
      ->check(CLI::Range(1u, 1u << 20));
  app->add_option("--grammar-memory", g.sandbox.memory_bytes, "Memory for compiling a grammar")
      ->transform(BytesFlag());
  app->add_option("--max-grammar-bytes", f->engine.max_grammar_bytes,
                  "Longest text of a schema, regular expression, grammar or list of choices")
      ->transform(BytesFlag());
  app->add_option("--max-compiled-grammar-bytes", g.sandbox.compiled_bytes,
                  "Largest grammar after compiling")
      ->transform(BytesFlag());
  app->add_option("--grammar-cache-bytes", g.cache_bytes, "Of compiled grammars that are kept")
      ->transform(BytesFlag());
  app->add_option("--grammar-program", g.sandbox.program,
                  "The sandbox's binary (default: beside this one)");
}

void AddFlags(CLI::App* app, Flags* f) {
  EngineOptions& e = f->engine;
  e.model_name.clear();
  app->option_defaults()->always_capture_default();
  app->add_option("--replica-id", e.replica_id, "Name of this replica in logs and metrics");
  app->add_option("--tp", e.tp_size, "Tensor-parallel ranks")->check(CLI::Range(1u, kMaxRanks));
  app->add_option("--model", f->model_path, "Path of the model: a .gguf file or a folder")
      ->required();
  app->add_option("--model-name", e.model_name, "Name clients use (default: the file's stem)");
  AddFlag(app, kChatTemplateFlag, &f->chat_template);
  app->add_option("--listen", e.listen, "host:port or unix:/path; repeatable")->required();
  AddServerTlsFlags(app, &f->tls);
  app->add_option("--control-fd", f->control_fd, "Inherited control segment")->required();
  app->add_option("--step-ring-fd", f->step_ring_fd, "Inherited step ring")->required();
  app->add_option("--result-ring-fd", f->result_ring_fd, "Inherited result ring")->required();
  app->add_option("--flight-fd", f->flight_fd, "Inherited segment of the flight recorder");
  app->add_option("--collective-fd", f->collective_fd, "Inherited collective segment");
  app->add_option("--detokenizer-request-socket", e.detok_request_address, "ipc:// address to bind")
      ->required();
  app->add_option("--detokenizer-reply-socket", e.detok_reply_address, "ipc:// address to bind")
      ->required();
  app->add_option("--metrics-socket", f->metrics_socket, "Unix socket that gives the metrics");
  AddCoreFlags(app, &f->core);
  AddFlag(app, kSpeculativeNumDraftTokensFlag, &f->core.config.speculative_num_draft_tokens);
  AddFlag(app, kDecodeLogIntervalFlag, &e.decode_log_interval);
  app->add_option("--step-timeout-ms", f->step_timeout_ms,
                  "Milliseconds after which a step that workers have not answered is lost")
      ->check(CLI::Range(1000u, 86'400'000u));
  AddFlag(app, kDrainGraceMsFlag, &f->drain_grace_ms);
  AddGrammarFlags(app, f);
  app->add_option("--idempotency-memory", e.keyed.max_bytes,
                  "Memory for what requests with an Idempotency-Key have given")
      ->transform(BytesFlag());
  app->add_option("--idempotency-ttl-ms", f->idempotency_ttl_ms,
                  "Milliseconds for which such a request's answer is kept after its end")
      ->check(CLI::Range(0u, 86'400'000u));
  AddLogFlags(app, &f->log);
}

struct Segments {
  ReplicaControl control;
  Segment steps;
  Segment results;
  std::optional<Segment> collective;
  std::optional<Segment> flight;
};

StatusOr<Segments> MapSegments(const Flags& flags) {
  ASSIGN_OR_RETURN(ReplicaControl control, ReplicaControl::Map(UniqueFd(flags.control_fd)));
  ASSIGN_OR_RETURN(Segment steps, Segment::Map(UniqueFd(flags.step_ring_fd), 4096));
  ASSIGN_OR_RETURN(Segment results, Segment::Map(UniqueFd(flags.result_ring_fd), 4096));
  Segments segments{std::move(control), std::move(steps), std::move(results), std::nullopt,
                    std::nullopt};
  if (flags.collective_fd >= 0) {
    ASSIGN_OR_RETURN(Segment collective, Segment::Map(UniqueFd(flags.collective_fd), 4096));
    segments.collective.emplace(std::move(collective));
  }
  if (flags.flight_fd >= 0) {
    ASSIGN_OR_RETURN(Segment flight, Segment::Map(UniqueFd(flags.flight_fd), kMinFlightRingBytes));
    segments.flight.emplace(std::move(flight));
  }
  return segments;
}

struct Model {
  std::string digest;
  std::string tokenizer_file;
  std::unique_ptr<Tokenizer> tokenizer;
  StatusOr<ChatFormat> chat_format = absl::UnknownError("not read");
};

// Fills what the model decides in *options.
StatusOr<Model> LoadModel(const Flags& flags, ProcessSlot* slot, EngineOptions* options) {
  ASSIGN_OR_RETURN(auto checkpoint, OpenCheckpoint(flags.model_path));
  Model model;
  ASSIGN_OR_RETURN(ModelText text, OpenModelText(flags.model_path, &model.tokenizer_file));
  if (!flags.chat_template.empty()) {
    RETURN_IF_ERROR(Annotate(UseChatTemplate(flags.chat_template, &text, &model.tokenizer_file),
                             kChatTemplateFlag.name));
  }
  model.tokenizer = std::move(text.tokenizer);
  model.chat_format = std::move(text.chat_format);
  if (!model.chat_format.ok()) {
    Log().warn("model can't chat {}",
               Kv("error", std::string(model.chat_format.status().message())));
  }
  model.digest = checkpoint->Digest(
      [slot] { slot->heartbeat_ns.store(RealClock::Now(), std::memory_order_relaxed); });
  const ModelConfig& config = checkpoint->config();
  SchedulerConfig& core = options->core;
  if (core.context_length > config.max_position_embeddings)
    return absl::InvalidArgumentError(StrCat("--context-length ", core.context_length,
                                             ": the model has ", config.max_position_embeddings));
  if (core.context_length == 0) core.context_length = config.max_position_embeddings;
  core.vocab_size = config.vocab_size;
  options->hidden_size = config.hidden_size;
  core.eos_ids = model.tokenizer->eos_ids();
  if (options->model_name.empty()) {
    options->model_name = GgufStem(std::filesystem::path(flags.model_path).filename().string());
  }
  return model;
}

int Fail(const Status& status, int code) {
  Log().error("{}", std::string(status.message()));
  return code;
}

// The certificates of the ports, and who reads them again when they change.
struct Tls {
  std::unique_ptr<TlsFiles> files;  // null: plain text
  std::unique_ptr<FileWatch> watch;
};

StatusOr<Tls> LoadTls(const TlsPaths& paths, prometheus::Registry* registry) {
  Tls tls;
  if (paths.empty()) return tls;
  tls.files =
      std::make_unique<TlsFiles>(kTlsServer, paths, CertificateExpiryMetric("scheduler", registry));
  RETURN_IF_ERROR(tls.files->Load());
  tls.watch = std::make_unique<FileWatch>(std::vector<WatchedFile>{
      {kTlsServer.cert_flag, [files = tls.files.get()] { return files->Reload(); }}});
  return tls;
}

sigset_t BlockSignals() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGTERM);
  sigaddset(&set, SIGINT);
  pthread_sigmask(SIG_BLOCK, &set, nullptr);
  signal(SIGPIPE, SIG_IGN);
  return set;
}

int Run(Flags flags) {
  // Before any thread exists, so that all inherit it and only sigwait sees the signals.
  const sigset_t signals = BlockSignals();
  EngineOptions& options = flags.engine;
  options.core = flags.core.Config();
  options.keyed.ttl_ns = int64_t{flags.idempotency_ttl_ms} * kNsPerMs;
  options.step_timeout_ns = int64_t{flags.step_timeout_ms} * kNsPerMs;
  StatusOr<Segments> segments = MapSegments(flags);
  if (!segments.ok()) return Fail(segments.status(), 2);
  ReplicaControlBlock* control = segments->control.operator->();
  ReplicaControl::SetState(&control->scheduler, ProcessState::kLoading);
  if (control->tp_size != options.tp_size)
    return Fail(absl::InvalidArgumentError(StrCat(
                    "--tp ", options.tp_size, ": the control segment is for ", control->tp_size)),
                2);
  StatusOr<Model> model = LoadModel(flags, &control->scheduler, &options);
  if (!model.ok())
    return Fail(Annotate(model.status(), "--model"), absl::IsUnavailable(model.status()) ? 1 : 2);
  std::string& sandbox = flags.grammar.sandbox.program;
  if (sandbox.empty()) {
    const std::filesystem::path self = std::filesystem::read_symlink("/proc/self/exe");
    sandbox = self.parent_path() / "flotilla-grammar";
  }

  RealClock clock;
  auto registry = std::make_shared<prometheus::Registry>();
  auto metrics = MetricsServer::Start(flags.metrics_socket, "scheduler", registry);
  if (!metrics.ok()) return Fail(metrics.status(), 2);
  const StatusOr<Tls> tls = LoadTls(flags.tls, registry.get());
  if (!tls.ok()) return Fail(tls.status(), 2);
  auto grammars = GrammarCompiler::Start(
      flags.grammar, GrammarVocabulary(*model->tokenizer, options.core.vocab_size), &clock,
      registry.get());
  if (!grammars.ok()) return Fail(grammars.status(), 1);
  std::atomic<int> exit_code{0};
  Engine::Inputs inputs;
  inputs.clock = &clock;
  inputs.tokenizer = model->tokenizer.get();
  if (model->chat_format.ok()) inputs.chat_format = &*model->chat_format;
  inputs.grammars = grammars->get();
  inputs.control = control;
  inputs.step_ring = &segments->steps;
  inputs.result_ring = &segments->results;
  inputs.collective = segments->collective.has_value() ? &*segments->collective : nullptr;
  inputs.flight = segments->flight.has_value() ? &*segments->flight : nullptr;
  inputs.tls = tls->files.get();
  inputs.model_digest = model->digest;
  inputs.tokenizer_file = std::move(model->tokenizer_file);
  inputs.registry = registry.get();
  inputs.on_fatal = [&](const Status& status) {
    exit_code = absl::IsResourceExhausted(status) ? 2 : 1;
    kill(getpid(), SIGTERM);
  };
  auto engine = Engine::Start(options, std::move(inputs));
  if (!engine.ok()) return Fail(engine.status(), 2);

  int signal_number = 0;
  sigwait(&signals, &signal_number);
  (*engine)->BeginDrain();
  if (exit_code == 0 &&
      !(*engine)->WaitIdle(clock.NowNs() + static_cast<int64_t>(flags.drain_grace_ms) * kNsPerMs))
    Log().warn("requests were cut off by the end of the grace");
  (*engine)->Stop();
  return exit_code;
}

}  // namespace
}  // namespace flotilla

int main(int argc, char** argv) {
  flotilla::Flags flags;
  flags.log.process = "scheduler";
  CLI::App app("Flotilla's scheduler: one per replica, started by the launcher");
  flotilla::AddFlags(&app, &flags);
  flotilla::ParseOrExit(&app, argc, argv);
  flotilla::InitLog(flags.log);
  return flotilla::Run(std::move(flags));
}
