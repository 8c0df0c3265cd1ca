// The `flotilla` command: starts and supervises the processes of one host (serve, engine), hands
// over to the router, asks a question.
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "common/base/flags.h"
#include "common/base/listen.h"
#include "common/base/log.h"
#include "deploy/launcher/ask.h"
#include "deploy/launcher/core_plan.h"
#include "deploy/launcher/doctor.h"
#include "deploy/launcher/flight.h"
#include "deploy/launcher/log_mux.h"
#include "deploy/launcher/model.h"
#include "deploy/launcher/options.h"
#include "deploy/launcher/supervisor.h"
#include "shm/flight_ring.h"

namespace flotilla {
namespace {

constexpr char kLesson[] = R"(
Try:
  flotilla serve                          one replica of the default model on this machine
  flotilla ask "Why is the sky blue?"     an answer, word by word
  flotilla serve --replicas 2 --tp 1      two copies behind one address
  flotilla serve --model my.gguf --port 0 your model, any free port (the ready line says which)
  flotilla help serve                     all flags of a command

While it serves (from another terminal):
  curl http://127.0.0.1:8000/v1/chat/completions -H 'Content-Type: application/json' \
    -d '{"model": "SmolLM2-135M-Instruct", "messages": [{"role": "user", "content": "Hello"}]}'
  curl http://127.0.0.1:9400/metrics      what all processes count

In the source tree, ./flotilla also knows `test` and `format`.
)";

std::string BinDir(const ServeOptions& options) {
  if (!options.bin_dir.empty()) return options.bin_dir;
  std::error_code error;
  return std::filesystem::read_symlink("/proc/self/exe", error).parent_path().string();
}

int Fail(const Status& status, const LogOptions& log = {}) {
  PrintFatal(log, status.message());
  return kExitBadConfiguration;
}

StatusOr<ResolvedOptions> Resolve(Supervisor::Mode mode, const ServeOptions& options) {
  ResolvedOptions resolved;
  resolved.options = options;
  resolved.bin_dir = BinDir(options);
  ASSIGN_OR_RETURN(resolved.model_path, ResolveModelPath(options.model));
  ASSIGN_OR_RETURN(const ModelConfig config, InspectModel(resolved.model_path));
  resolved.model_name =
      options.model_name.empty() ? ModelNameOfPath(resolved.model_path) : options.model_name;
  const uint64_t flight_bytes = std::stoull(options.flight_recorder_size);
  if (flight_bytes > 0 && flight_bytes < kMinFlightRingBytes) {
    return absl::InvalidArgumentError("--flight-recorder-size must be 0 or at least 64KiB");
  }
  resolved.flight_bytes = mode == Supervisor::Mode::kJoin ? 0 : flight_bytes;
  resolved.flight_dir =
      options.flight_recorder_dir.empty() ? DefaultFlightDir() : options.flight_recorder_dir;
  resolved.vocab_size = config.vocab_size;
  CoreRequest request = CoreRequestOf(options, &config);
  ASSIGN_OR_RETURN(resolved.span,
                   mode == Supervisor::Mode::kJoin ? SpanOfJoin(options) : SpanOfHead(options));
  if (resolved.span.several_hosts()) {
    ASSIGN_OR_RETURN(resolved.tp, ResolveTp(options.tp, config.num_attention_heads));
    request.tp = StrCat(resolved.span.local_ranks);
  }
  ASSIGN_OR_RETURN(const CorePlan plan, PlanCores(ThisMachine(), request));
  if (!resolved.span.several_hosts()) {
    resolved.tp = plan.tp;
    resolved.span.local_ranks = plan.tp;
  }
  resolved.threads = plan.threads;
  resolved.spin_us = SpinUs(plan.threads, plan.tp * options.replicas, plan.cores);
  resolved.cpus = plan.cpus;
  Log().info("starting {} {} {} {} {} {}", Kv("model", resolved.model_name),
             Kv("replicas", options.replicas), Kv("tp", resolved.tp), Kv("threads", plan.threads),
             Kv("cores", plan.cores), Kv("pinned", plan.pinned));
  return resolved;
}

int Serve(Supervisor::Mode mode, ServeOptions options) {
  BlockSignals();
  options.log.process = "launcher";
  options.log.tagged = true;
  InitLog(options.log);
  StatusOr<ResolvedOptions> resolved = Resolve(mode, options);
  if (!resolved.ok()) return Fail(resolved.status(), options.log);
  if (mode == Supervisor::Mode::kEngine && options.grpc_port == 0) {
    // The scheduler is told a number: one that is free now.
    const StatusOr<UniqueFd> probe = ListenTcp(options.host, 0, &resolved->options.grpc_port);
    if (!probe.ok()) return Fail(probe.status(), options.log);
  }
  StatusOr<RuntimeDir> runtime_dir = RuntimeDir::Create(RuntimeDir::DefaultParent());
  if (!runtime_dir.ok()) return Fail(runtime_dir.status(), options.log);
  resolved->runtime_dir = runtime_dir->path();
  return Supervisor(mode, *resolved).Run();
}

// What needs no supervisor becomes another program. `args`: its arguments, behind `first` if that
// is not null.
int Exec(const char* program, const char* first, char** args) {
  const std::string path = StrCat(BinDir(ServeOptions()), "/", program);
  std::vector<char*> argv = {const_cast<char*>(path.c_str())};
  if (first != nullptr) argv.push_back(const_cast<char*>(first));
  for (; *args != nullptr; ++args) argv.push_back(*args);
  argv.push_back(nullptr);
  execv(path.c_str(), argv.data());
  return Fail(absl::NotFoundError(absl::StrCat("can't run ", path, ": ", std::strerror(errno))));
}

// Commands that are programs of their own.
struct OtherProgram {
  const char* command;
  const char* program;
  const char* first;  // argument; nullptr: none
  const char* help;
};
constexpr OtherProgram kOtherPrograms[] = {
    {"router", "flotilla-router", nullptr, "Only a router; its flags: flotilla router --help"},
    {"replay", "flotilla-flight", "replay",
     "Runs a scheduler's flight recording again: does it decide the same?"},
    {"inspect", "flotilla-worker-bench", "inspect",
     "What a worker prepares before its first step, by bucket, with its cost here"},
    {"trace", "flotilla-flight", "trace",
     "Turns a flight recording into a trace for Perfetto or chrome://tracing"},
    {"simulate", "flotilla-simulate", "simulate",
     "How long requests would take: the real scheduler under virtual time; simulate fleet: what "
     "the "
     "router's policies do to many replicas"},
};

// Those of `flotilla bench`.
constexpr OtherProgram kBenchPrograms[] = {
    {"roofline", "flotilla-worker-bench", nullptr,
     "The model's kernels and steps, each beside what this machine could do at most"},
    {"offline", "flotilla-offline", nullptr,
     "Throughput of one replica with all requests at once, without HTTP"},
    {"quality", "flotilla-quality", nullptr,
     "What the fast arithmetics cost in precision: KL, top-1 and perplexity"},
    {"fit", "flotilla-simulate", "fit",
     "Learns from flight recordings what a step costs on this machine"},
};

const OtherProgram* Find(std::span<const OtherProgram> programs, const std::string& command) {
  for (const OtherProgram& other : programs) {
    if (command == other.command) return &other;
  }
  return nullptr;
}

int Bench(int argc, char** argv) {
  const std::string command = argc >= 3 ? argv[2] : "--help";
  const OtherProgram* program = Find(kBenchPrograms, command);
  if (program != nullptr) return Exec(program->program, program->first, argv + 3);
  if (command != "--help" && command != "-h") {
    return Fail(absl::NotFoundError(
        absl::StrCat("there is no benchmark '", command, "'; see flotilla bench --help")));
  }
  std::printf("Measures this machine, or a replica on it\nUsage: flotilla bench NAME [--help]\n\n");
  for (const OtherProgram& bench : kBenchPrograms) {
    std::printf("  %-28s%s\n", bench.command, bench.help);
  }
  return 0;
}

int Main(int argc, char** argv) {
  if (argc >= 2 && std::strcmp(argv[1], "bench") == 0) return Bench(argc, argv);
  if (argc >= 3 && std::strcmp(argv[1], "simulate") == 0 && std::strcmp(argv[2], "fleet") == 0)
    return Exec("flotilla-fleet", nullptr, argv + 3);
  const OtherProgram* other = argc >= 2 ? Find(kOtherPrograms, argv[1]) : nullptr;
  if (other != nullptr) return Exec(other->program, other->first, argv + 2);

  CLI::App app("Flotilla serves large language models: one command, a cluster of processes.",
               "flotilla");
  app.require_subcommand(1);
  app.footer(kLesson);
  app.set_version_flag("--version", "flotilla " FLOTILLA_VERSION);
  ServeOptions serve_options, engine_options, join_options, doctor_options;
  AskOptions ask_options;
  std::string topic;
  CLI::App* serve = app.add_subcommand("serve", "A router and its replicas, in the foreground");
  AddServeFlags(serve, &serve_options);
  CLI::App* engine = app.add_subcommand("engine", "One replica that routers reach by gRPC");
  AddEngineFlags(engine, &engine_options);
  CLI::App* join = app.add_subcommand("join", "One rank of a replica whose head is another host");
  AddJoinFlags(join, &join_options);
  CLI::App* doctor = app.add_subcommand(
      "doctor", "What this machine offers and what serve, with the same flags, makes of it");
  AddServeFlags(doctor, &doctor_options);
  for (const OtherProgram& program : kOtherPrograms) {
    app.add_subcommand(program.command, program.help);
  }
  app.add_subcommand("bench", "What this machine, or a replica on it, can do");
  CLI::App* ask = app.add_subcommand("ask", "Streams an answer to a question");
  AddAskFlags(ask, &ask_options);
  CLI::App* help = app.add_subcommand("help", "Explains a command");
  help->add_option("command", topic, "Which one");

  for (CLI::App* command : {serve, engine, join, doctor, ask, help}) command->footer("");

  const std::string overview = app.help();  // after parsing it would be the subcommand's
  if (argc < 2) {
    std::printf("%s", overview.c_str());
    return 0;
  }
  ParseOrExit(&app, argc, argv);
  if (serve->parsed()) return Serve(Supervisor::Mode::kServe, serve_options);
  if (engine->parsed()) return Serve(Supervisor::Mode::kEngine, engine_options);
  if (join->parsed()) return Serve(Supervisor::Mode::kJoin, join_options);
  if (doctor->parsed()) return Doctor(doctor_options);
  if (ask->parsed()) return Ask(ask_options);
  char flag[] = "--help";
  char* args[] = {flag, nullptr};
  if (topic == "bench") return Bench(0, nullptr);
  other = Find(kOtherPrograms, topic);
  if (other != nullptr) return Exec(other->program, other->first, args);
  for (CLI::App* command : {serve, engine, join, doctor, ask}) {
    if (command->get_name() == topic) {
      std::printf("%s", command->help().c_str());
      return 0;
    }
  }
  if (!topic.empty())
    return Fail(absl::NotFoundError(absl::StrCat("there is no command '", topic, "'")));
  std::printf("%s", overview.c_str());
  return 0;
}

}  // namespace
}  // namespace flotilla

int main(int argc, char** argv) { return flotilla::Main(argc, argv); }
