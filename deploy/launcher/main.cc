// The `flotilla` command: starts and supervises the processes of one host (serve, engine), hands
// over to the router, asks a question.
#include <algorithm>
#include <cstdio>
#include <fstream>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/str_join.h"
#include "common/base/flag_list.h"
#include "common/base/flags.h"
#include "common/base/listen.h"
#include "common/base/log.h"
#include "common/checkpoint/checkpoint.h"
#include "common/cli/flag_hints.h"
#include "common/cli/flag_sources.h"
#include "deploy/launcher/ask.h"
#include "deploy/launcher/doctor.h"
#include "deploy/launcher/flight.h"
#include "deploy/launcher/flight_command.h"
#include "deploy/launcher/host_plan.h"
#include "deploy/launcher/log_mux.h"
#include "deploy/launcher/machine.h"
#include "deploy/launcher/model.h"
#include "deploy/launcher/model_needs.h"
#include "deploy/launcher/options.h"
#include "deploy/launcher/programs.h"
#include "deploy/launcher/reference.h"
#include "deploy/launcher/supervisor.h"
#include "deploy/launcher/top.h"
#include "shm/flight_ring.h"

namespace flotilla {
namespace {

constexpr char kLesson[] = R"(
Try:
  flotilla serve                          one replica of the default model on this machine
  flotilla ask "Why is the sky blue?"     an answer, word by word
  flotilla chat                           a conversation
  flotilla serve --replicas 2 --tp 1      two copies behind one address
  flotilla serve --model my.gguf --port 0 your model, any free port (the ready line says which)
  flotilla help serve                     all flags of a command

While it serves (from another terminal):
  curl http://127.0.0.1:8000/v1/chat/completions -H 'Content-Type: application/json' \
    -d '{"model": "SmolLM2-135M-Instruct", "messages": [{"role": "user", "content": "Hello"}]}'
  flotilla top                            the fleet, live
  curl http://127.0.0.1:9400/metrics      what all processes count

In the source tree, ./flotilla also knows `test` and `format`.
)";

constexpr double kGraceBehindRouter = 0.5;  // seconds

int Fail(const Status& status, const LogOptions& log = {}) {
  PrintFatal(log, status.message());
  return ExitStatusOf(status);
}

StatusOr<ResolvedOptions> Resolve(Supervisor::Mode mode, const ServeOptions& options) {
  ResolvedOptions resolved;
  resolved.options = options;
  resolved.bin_dir = options.bin_dir.empty() ? OwnBinDir() : options.bin_dir;
  ASSIGN_OR_RETURN(resolved.model_path, ResolveModelPath(options.model));
  ASSIGN_OR_RETURN(const ModelConfig config, InspectModel(resolved.model_path));
  resolved.model_name =
      options.model_name.empty() ? ModelNameOfPath(resolved.model_path) : options.model_name;
  const uint64_t flight_bytes =
      options.flight_recorder_size.empty()
          ? DefaultFlightBytes(options.max_running_requests, options.device != "cpu")
          : std::stoull(options.flight_recorder_size);
  if (flight_bytes > 0 && flight_bytes < kMinFlightRingBytes) {
    return absl::InvalidArgumentError("--flight-recorder-size must be 0 or at least 64KiB");
  }
  resolved.flight_bytes = mode == Supervisor::Mode::kJoin ? 0 : flight_bytes;
  resolved.flight_dir =
      options.flight_recorder_dir.empty() ? DefaultFlightDir() : options.flight_recorder_dir;
  resolved.scheduler_grace = mode == Supervisor::Mode::kServe
                                 ? std::min(kGraceBehindRouter, options.shutdown_timeout)
                                 : options.shutdown_timeout;
  resolved.vocab_size = config.vocab_size;
  ASSIGN_OR_RETURN(const HostSpan span,
                   mode == Supervisor::Mode::kJoin ? SpanOfJoin(options) : SpanOfHead(options));
  const Machine machine = ThisMachine();
  ASSIGN_OR_RETURN(const HostPlan host, PlanHost(machine, options, span, &config));
  if (options.device == "cpu" && options.replicas > 1 && !host.span.several_hosts()) {
    ASSIGN_OR_RETURN(const auto model, OpenCheckpoint(resolved.model_path));
    RETURN_IF_ERROR(
        ShareMemory(NeedsOf(*model, resolved.model_name, options, host.tp, machine.available_bytes),
                    machine.available_bytes, &resolved.options));
  }
  const CorePlan& plan = host.cores;
  resolved.span = host.span;
  resolved.tp = host.tp;
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

int Exec(const OtherProgram& program, char** args) { return Fail(ExecProgram(program, args)); }

// `flotilla bench`, or one of its programs that is not there.
int Bench(const std::string& name) {
  if (!name.empty() && name != "--help" && name != "-h")
    return Fail(absl::NotFoundError(
        absl::StrCat("there is no benchmark '", name, "'; see flotilla bench --help")));
  std::printf("Measures this machine, or a replica on it\nUsage: flotilla bench NAME [--help]\n\n");
  constexpr std::string_view kBench = "bench ";
  for (const OtherProgram& program : OtherPrograms()) {
    const std::string_view command = program.command;
    if (command.starts_with(kBench))
      std::printf("  %-28s%s\n", program.command + kBench.size(), program.help);
  }
  return 0;
}

int NoCommand(const CLI::App& app, const std::string& name) {
  std::vector<std::string> commands;
  for (const CLI::App* command : app.get_subcommands(nullptr))
    commands.push_back(command->get_name());
  const std::string nearest = NearestOf(name, commands);
  return Fail(absl::NotFoundError(
      absl::StrCat("there is no command '", name, "'; ",
                   nearest.empty() ? absl::StrCat("there are ", absl::StrJoin(commands, ", "))
                                   : absl::StrCat("did you mean '", nearest, "'?"))));
}

int Complete(const CLI::App& app, const std::string& shell) {
  const StatusOr<std::vector<CommandInfo>> commands = ListCommands(app);
  if (!commands.ok()) return Fail(commands.status());
  std::fputs(CompletionScript(shell, *commands).c_str(), stdout);
  return 0;
}

struct ManOptions {
  std::string topic;   // empty: all commands
  std::string folder;  // gets every page, if not empty
};

void AddShellFlag(CLI::App* app, std::string* shell) {
  app->add_option("shell", *shell, "bash, zsh or fish")
      ->required()
      ->check(CLI::IsMember({"bash", "zsh", "fish"}));
}

void AddManFlags(CLI::App* app, ManOptions* options) {
  app->add_option("command", options->topic, "Of which command; none: of all");
  app->add_option("--output", options->folder, "Folder that gets the pages of all commands");
}

void AddTopicFlag(CLI::App* app, std::string* topic) {
  app->add_option("command", *topic, "Which one");
}

Status WriteManPages(const std::vector<CommandInfo>& commands, const std::string& folder) {
  const auto write = [&](const std::string& page, const std::string& text) {
    const std::string path = StrCat(folder, "/", page, ".1");
    std::ofstream out(path);
    out << text;
    out.close();
    return out ? OkStatus() : Status(absl::UnavailableError(StrCat("can't write ", path)));
  };
  RETURN_IF_ERROR(write("flotilla", ManOverview(commands, kLesson)));
  for (const CommandInfo& command : commands)
    RETURN_IF_ERROR(write(ManPageName(command), ManPage(command)));
  return OkStatus();
}

int Man(const CLI::App& app, const ManOptions& options) {
  const StatusOr<std::vector<CommandInfo>> commands = ListCommands(app);
  if (!commands.ok()) return Fail(commands.status());
  if (!options.folder.empty()) {
    const Status status = WriteManPages(*commands, options.folder);
    return status.ok() ? 0 : Fail(status);
  }
  if (options.topic.empty()) {
    std::fputs(ManOverview(*commands, kLesson).c_str(), stdout);
    return 0;
  }
  for (const CommandInfo& command : *commands) {
    if (command.name != options.topic) continue;
    std::fputs(ManPage(command).c_str(), stdout);
    return 0;
  }
  return Fail(absl::NotFoundError(absl::StrCat("there is no command '", options.topic, "'")));
}

// The commands that are not programs of their own, with what each was given.
class Commands {
 public:
  explicit Commands(CLI::App* app) : app_(app) {
    Add("serve", "A router and its replicas, in the foreground", AddServeFlags, &serve_,
        [this] { return Serve(Supervisor::Mode::kServe, serve_); });
    Add("engine", "One replica that routers reach by gRPC", AddEngineFlags, &engine_,
        [this] { return Serve(Supervisor::Mode::kEngine, engine_); });
    Add("join", "One rank of a replica whose head is another host", AddJoinFlags, &join_,
        [this] { return Serve(Supervisor::Mode::kJoin, join_); });
    Add("doctor", "What this machine offers and what serve, with the same flags, makes of it",
        AddServeFlags, &doctor_, [this] { return Doctor(doctor_); });
    Add("ask", "Streams an answer to a question", AddAskFlags, &ask_, [this] { return Ask(ask_); });
    Add("chat", "A conversation, in this terminal", AddChatFlags, &chat_,
        [this] { return Chat(chat_); });
    Add("top", "The fleet behind a router, live in this terminal", AddTopFlags, &top_,
        [this] { return Top(top_); });
    for (const Command& command : commands_) AddConfigFlag(command.app);
    Add("flight", "Takes a scheduler's flight recording out, while it runs or after its end",
        AddFlightCommandFlags, &flight_, [this] { return Flight(flight_); });
    Add("completion", "Prints what a shell needs to complete commands and flags (docs/flags.md)",
        AddShellFlag, &shell_, [this] { return Complete(*app_, shell_); });
    Add("man", "Prints a manual page, for man -l -", AddManFlags, &man_,
        [this] { return Man(*app_, man_); });
    Add("help", "Explains a command", AddTopicFlag, &topic_, [this] { return Help(); });
    app->add_subcommand("bench", "What this machine, or a replica on it, can do");
    for (const OtherProgram& program : OtherPrograms()) {
      if (NumWords(program) == 1) app->add_subcommand(program.command, program.help);
    }
    overview_ = app->help();  // after parsing it would be the subcommand's
  }

  const std::string& overview() const { return overview_; }
  // Of the one that was parsed.
  int Run() const {
    for (const Command& command : commands_)
      if (command.app->parsed()) return command.run();
    return 0;
  }

 private:
  struct Command {
    CLI::App* app;
    std::function<int()> run;
  };
  template <typename Options>
  void Add(const char* name, const char* help, void (*add_flags)(CLI::App*, Options*),
           Options* options, std::function<int()> run) {
    CLI::App* command = app_->add_subcommand(name, help);
    add_flags(command, options);
    command->footer("");
    commands_.push_back({command, std::move(run)});
  }

  int Help() const {
    if (topic_ == "bench") return Bench("");
    const char* const words[] = {topic_.c_str()};
    char flag[] = "--help";
    char* args[] = {flag, nullptr};
    if (const OtherProgram* other = FindProgram(words)) return Exec(*other, args);
    for (const Command& command : commands_) {
      if (command.app->get_name() != topic_) continue;
      std::printf("%s", command.app->help().c_str());
      return 0;
    }
    if (!topic_.empty())
      return Fail(absl::NotFoundError(absl::StrCat("there is no command '", topic_, "'")));
    std::printf("%s", overview_.c_str());
    return 0;
  }

  CLI::App* const app_;
  std::vector<Command> commands_;
  ServeOptions serve_, engine_, join_, doctor_;
  AskOptions ask_;
  ChatOptions chat_;
  TopOptions top_;
  FlightOptions flight_;
  ManOptions man_;
  std::string shell_, topic_, overview_;
};

int Main(int argc, char** argv) {
  const std::span<char*> words(argv + 1, static_cast<size_t>(std::max(argc, 1) - 1));
  if (const OtherProgram* other = FindProgram({words.data(), words.size()}))
    return Exec(*other, argv + 1 + NumWords(*other));
  if (!words.empty() && words[0] == std::string_view("bench"))
    return Bench(words.size() > 1 ? words[1] : "");

  CLI::App app("Flotilla serves large language models: one command, a cluster of processes.",
               "flotilla");
  app.require_subcommand(1);
  app.footer(kLesson);
  app.set_version_flag("--version", "flotilla " FLOTILLA_VERSION);
  const Commands commands(&app);
  if (argc < 2) {
    std::printf("%s", commands.overview().c_str());
    return 0;
  }
  if (words[0] == std::string_view("version")) {
    std::printf("%s\n", app.version().c_str());
    return 0;
  }
  if (words[0][0] != '-' && CommandOf(&app, words[0]) == &app) return NoCommand(app, words[0]);
  ParseWithSourcesOrExit(&app, argc, argv);
  return commands.Run();
}

}  // namespace
}  // namespace flotilla

int main(int argc, char** argv) { return flotilla::Main(argc, argv); }
