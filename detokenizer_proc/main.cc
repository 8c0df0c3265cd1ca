// flotilla-detokenizer: reads flags, loads the tokenizer, wires the server up.
//
// Exit status: 0 after SIGTERM or SIGINT, 2 for flags or a model that a restart can't mend, else 1.
#include <sys/signalfd.h>

#include <csignal>
#include <cstdio>
#include <memory>

#include "common/base/clock.h"
#include "common/base/flags.h"
#include "common/base/log.h"
#include "common/base/metrics.h"
#include "common/base/unique_fd.h"
#include "common/text/model_text.h"
#include "detokenizer_proc/detokenizer_metrics.h"
#include "detokenizer_proc/detokenizer_server.h"
#include "shm/replica_control.h"

namespace flotilla {
namespace {

struct Flags {
  std::string model;
  int control_fd = -1;
  std::string metrics_socket;
  DetokenizerOptions server;
  LogOptions log{.process = "detokenizer"};
};

Flags ParseFlags(int argc, char** argv) {
  Flags flags;
  CLI::App app("Flotilla's detokenizer: token ids of one replica to text.");
  app.add_option("--model", flags.model, "Model (.gguf file or folder) whose tokenizer is used")
      ->required();
  app.add_option("--control-fd", flags.control_fd, "Descriptor of the replica's control segment")
      ->required();
  app.add_option("--request-socket", flags.server.request_socket,
                 "Where the scheduler sends tokens, ipc:///path")
      ->required();
  app.add_option("--reply-socket", flags.server.reply_socket,
                 "Where the scheduler takes text, ipc:///path")
      ->required();
  app.add_option("--metrics-socket", flags.metrics_socket,
                 "Unix socket that serves the metrics; none if empty");
  AddLogFlags(&app, &flags.log);
  ParseOrExit(&app, argc, argv);
  return flags;
}

StatusOr<std::unique_ptr<Tokenizer>> LoadTokenizer(const std::string& path) {
  ASSIGN_OR_RETURN(ModelText text, OpenModelText(path, nullptr));
  return std::move(text.tokenizer);
}

// SIGTERM and SIGINT as a descriptor; to be called before the first thread starts.
UniqueFd StopSignals() {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  return UniqueFd(signalfd(-1, &signals, SFD_CLOEXEC | SFD_NONBLOCK));
}

int Fail(const Status& status, int exit_code) {
  Log().error("{}", std::string(status.message()));
  return exit_code;
}

// Tells the scheduler and the launcher.
void Announce(const ReplicaControl& control, ProcessState state) {
  ReplicaControl::SetState(&control->detokenizer, state);
  ReplicaControl::Ring(&control->doorbell);
  ReplicaControl::Ring(&control->launcher_bell);
}

int Run(Flags flags) {
  InitLog(flags.log);
  const UniqueFd stop = StopSignals();
  if (!stop.valid()) return Fail(absl::InternalError("can't create a signalfd"), 1);
  const RealClock clock;
  StatusOr<ReplicaControl> control = ReplicaControl::Map(UniqueFd(flags.control_fd));
  if (!control.ok()) return Fail(Annotate(control.status(), "--control-fd"), 2);
  ProcessSlot* const slot = &(*control)->detokenizer;
  slot->heartbeat_ns.store(clock.NowNs(), std::memory_order_relaxed);
  ReplicaControl::SetState(slot, ProcessState::kLoading);

  const StatusOr<std::unique_ptr<Tokenizer>> tokenizer = LoadTokenizer(flags.model);
  if (!tokenizer.ok())
    return Fail(tokenizer.status(), absl::IsUnavailable(tokenizer.status()) ? 1 : 2);

  const auto registry = std::make_shared<prometheus::Registry>();
  DetokenizerMetrics metrics(registry.get());
  const auto metrics_server = MetricsServer::Start(flags.metrics_socket, "detokenizer", registry);
  if (!metrics_server.ok()) return Fail(metrics_server.status(), 1);

  flags.server.incarnation = slot->incarnation.load();
  flags.server.stop_fd = stop.get();
  const auto server =
      DetokenizerServer::Create(flags.server, tokenizer->get(), &clock, slot, &metrics);
  if (!server.ok()) return Fail(server.status(), 2);
  Announce(*control, ProcessState::kReady);
  Log().info("ready {} {}", Kv("incarnation", flags.server.incarnation),
             Kv("vocab_size", (*tokenizer)->vocab_size()));
  const Status status = (*server)->Run();
  if (!status.ok()) return Fail(status, 1);
  Announce(*control, ProcessState::kStopping);
  return 0;
}

}  // namespace
}  // namespace flotilla

int main(int argc, char** argv) { return flotilla::Run(flotilla::ParseFlags(argc, argv)); }
