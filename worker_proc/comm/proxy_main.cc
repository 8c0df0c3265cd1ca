// flotilla-rank-proxy: on the head host of a replica that spans several, the process of a rank that
// runs elsewhere. Reads flags, wires things up, runs RankProxy.
//
// Exit codes: 0 after SIGTERM; 2 for a bad flag, model or secret (restarting is useless); 3 when
// the rank is gone; 1 for anything else.
#include <csignal>
#include <memory>
#include <string>

#include "common/base/exit_status.h"
#include "common/base/flags.h"
#include "common/base/log.h"
#include "common/base/metrics.h"
#include "common/checkpoint/checkpoint.h"
#include "worker_proc/comm/kept_digest.h"
#include "worker_proc/comm/rank_config.h"
#include "worker_proc/comm/rank_proxy.h"
#include "worker_proc/runner/heartbeat.h"

namespace flotilla {
namespace {

std::atomic<bool> g_stop{false};
static_assert(std::atomic<bool>::is_always_lock_free);

void OnSignal(int) { g_stop.store(true, std::memory_order_relaxed); }

struct Flags {
  uint32_t rank = 0;
  uint32_t tp = 1;
  std::string model, digest_file, listen, link_secret_file, metrics_socket;
  std::string device = "cpu", dtype = "auto", kv_cache_dtype = "auto";
  int control_fd = -1;
  int step_ring_fd = -1;
  ModelRunnerOptions runner;
  LogOptions log;
};

void AddFlags(CLI::App* app, Flags* flags) {
  app->add_option("--rank", flags->rank, "The rank that runs on another host")->required();
  app->add_option("--tp", flags->tp, "Number of ranks")
      ->check(CLI::Range(1u, kMaxRanks))
      ->required();
  app->add_option("--listen", flags->listen, "HOST:PORT where the rank finds us")->required();
  app->add_option("--link-secret-file", flags->link_secret_file,
                  "File with the secret of all hosts of the replica")
      ->required();
  app->add_option("--model", flags->model, "Path of the model: a .gguf file or a folder")
      ->required();
  AddDigestFileFlag(app, &flags->digest_file);
  AddFlag(app, kDeviceFlag, &flags->device);
  AddFlag(app, kDtypeFlag, &flags->dtype);
  AddFlag(app, kKvCacheDtypeFlag, &flags->kv_cache_dtype);
  AddRunnerFlags(app, &flags->runner);
  app->add_option("--control-fd", flags->control_fd, "Inherited control segment")->required();
  app->add_option("--step-ring-fd", flags->step_ring_fd, "Inherited step ring")->required();
  app->add_option("--metrics-socket", flags->metrics_socket, "Unix socket that serves metrics");
  AddLogFlags(app, &flags->log);
}

Status Run(const Flags& flags) {
  if (flags.rank == 0 || flags.rank >= flags.tp) {
    return absl::InvalidArgumentError(
        StrCat("--rank ", flags.rank, " is not from 1 to below --tp ", flags.tp));
  }
  RankProxyOptions options;
  options.rank = flags.rank;
  options.ranks = flags.tp;
  const StatusOr<TcpAddress> listen = ParseTcpAddress(flags.listen);
  RETURN_IF_ERROR(Annotate(listen.status(), "--listen"));
  options.listen = *listen;
  ASSIGN_OR_RETURN(options.secret, ReadSecret(flags.link_secret_file));
  ASSIGN_OR_RETURN(const ReplicaControl control, ReplicaControl::Map(UniqueFd(flags.control_fd)));
  ASSIGN_OR_RETURN(const Segment step_ring, Segment::Map(UniqueFd(flags.step_ring_fd), 1));
  auto registry = std::make_shared<prometheus::Registry>();
  ASSIGN_OR_RETURN(const auto server,
                   MetricsServer::Start(flags.metrics_socket, flags.log.process, registry));
  ASSIGN_OR_RETURN(const std::unique_ptr<Checkpoint> checkpoint, OpenCheckpoint(flags.model));
  const RealClock clock;
  const Heartbeat heartbeat(&clock, &control->workers[flags.rank].heartbeat_ns);
  options.config = MakeRankConfig(
      {flags.tp, KeptDigest(*checkpoint, flags.digest_file, [&] { heartbeat.Beat(); }),
       flags.device, flags.dtype, flags.kv_cache_dtype, &flags.runner});
  return RankProxy({&control, &step_ring, registry.get(), &g_stop}, options).Run();
}

// 2: the same start would fail again.
int ExitCode(const Status& status) {
  if (status.ok()) return 0;
  if (absl::IsAborted(status) || absl::IsDeadlineExceeded(status)) return kExitPeerLost;
  const bool useless = absl::IsInvalidArgument(status) || absl::IsNotFound(status);
  return useless ? kExitBadConfiguration : 1;
}

}  // namespace
}  // namespace flotilla

int main(int argc, char** argv) {
  using namespace flotilla;
  Flags flags;
  CLI::App app("A rank of a replica that runs on another host; started by the launcher",
               "flotilla-rank-proxy");
  AddFlags(&app, &flags);
  ParseOrExit(&app, argc, argv);
  flags.log.process = StrCat("worker-", flags.rank);
  InitLog(flags.log);
  struct sigaction action = {};
  action.sa_handler = OnSignal;
  sigaction(SIGTERM, &action, nullptr);
  sigaction(SIGINT, &action, nullptr);
  signal(SIGPIPE, SIG_IGN);
  const Status status = Run(flags);
  if (!status.ok()) Log().error("worker failed {}", Kv("reason", std::string(status.message())));
  return ExitCode(status);
}
