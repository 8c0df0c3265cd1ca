// flotilla-worker: one tensor-parallel rank. Reads flags, wires things up, runs WorkerLoop.
//
// Exit codes: 0 after SIGTERM or a shutdown plan; 2 for a bad flag or model, or too little memory
// (restarting is useless); 3 when the head is lost; 1 for anything else.
#include <sched.h>
#include <unistd.h>

#include <csignal>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/base/clock.h"
#include "common/base/exit_status.h"
#include "common/base/flags.h"
#include "common/base/log.h"
#include "common/base/metrics.h"
#include "common/checkpoint/checkpoint.h"
#include "common/text/model_text.h"
#include "shm/collective.h"
#include "shm/replica_control.h"
#include "shm/ring.h"
#include "worker_proc/comm/kept_digest.h"
#include "worker_proc/comm/rank_config.h"
#include "worker_proc/comm/rank_link.h"
#include "worker_proc/comm/remote_plans.h"
#include "worker_proc/comm/tcp_collective.h"
#include "worker_proc/comm/timed_collective.h"
#include "worker_proc/runner/model_runner.h"
#include "worker_proc/runner/open_backend.h"
#include "worker_proc/runner/worker_loop.h"
#include "worker_proc/runner/worker_metrics.h"

namespace flotilla {
namespace {

std::atomic<bool> g_stop{false};
static_assert(std::atomic<bool>::is_always_lock_free);

void OnSignal(int) { g_stop.store(true, std::memory_order_relaxed); }

struct WorkerFlags {
  uint32_t rank = 0;
  uint32_t tp = 1;
  uint32_t local_ranks = 0;
  std::string model;
  DeviceFlags device;
  int control_fd = -1;
  int step_ring_fd = -1;
  int result_ring_fd = -1;
  int collective_fd = -1;
  // Of a replica that spans hosts.
  std::string collective_address, head, link_secret_file, digest_file;
  std::string metrics_socket;
  ModelRunnerOptions runner;
  LogOptions log;
};

void AddDeviceFlags(CLI::App* app, DeviceFlags* flags) {
  AddFlag(app, kDeviceFlag, &flags->device);
  app->add_option("--isa", flags->cpu.isa, "Instruction set: auto, reference, avx2, avx512 or amx")
      ->capture_default_str();
  AddFlag(app, kDtypeFlag, &flags->cpu.dtype);
  AddFlag(app, kKvCacheDtypeFlag, &flags->cpu.kv_cache_dtype);
  AddFlag(app, kPackCacheDirFlag, &flags->cpu.pack_cache_dir);
  AddFlag(app, kThreadsFlag, &flags->cpu.threads);
  app->add_option("--cpus", flags->cpu.cpus,
                  "A CPU for each thread to stay on, comma-separated; none: not pinned")
      ->delimiter(',')
      ->check(CLI::Range(0u, CPU_SETSIZE - 1u));
  app->add_option("--spin-us", flags->cpu.spin_us,
                  "How long a compute thread spins for the others, and a rank for the other ranks, "
                  "before it sleeps; 0 unless each thread of each rank has a core of its own")
      ->capture_default_str();
  app->add_option("--gpu", flags->gpu, "With --device cuda: which, as CUDA numbers them")
      ->capture_default_str();
  AddGpuFlags(app, &flags->gpu_flags);
}

void AddFlags(CLI::App* app, WorkerFlags* flags) {
  app->add_option("--rank", flags->rank, "This worker's rank, from 0")->capture_default_str();
  app->add_option("--tp", flags->tp, "Number of ranks")
      ->check(CLI::Range(1u, kMaxRanks))
      ->capture_default_str();
  app->add_option("--model", flags->model, "Path of the model: a .gguf file or a folder")
      ->required();
  AddDeviceFlags(app, &flags->device);
  app->add_option("--control-fd", flags->control_fd, "Inherited control segment")->required();
  app->add_option("--step-ring-fd", flags->step_ring_fd, "Inherited step ring")->required();
  app->add_option("--result-ring-fd", flags->result_ring_fd, "Inherited result ring")->required();
  app->add_option("--collective-fd", flags->collective_fd,
                  "Inherited collective segment; needed from 2 ranks up on one host");
  app->add_option(
      "--collective-address", flags->collective_address,
      "HOST:PORT where rank 0 listens for the ranks of all hosts, if there are several");
  app->add_option("--head", flags->head,
                  "HOST:PORT that has this rank's plans, if the scheduler is on another host");
  app->add_option("--local-ranks", flags->local_ranks,
                  "How many ranks this host has; 0: all. A rank with --head is alone on its host, "
                  "the others are the first ones")
      ->check(CLI::Range(0u, kMaxRanks))
      ->capture_default_str();
  app->add_option("--link-secret-file", flags->link_secret_file,
                  "File with the secret of all hosts of the replica; needed with several");
  AddDigestFileFlag(app, &flags->digest_file);
  AddRunnerFlags(app, &flags->runner);
  AddFlag(app, kTokenPaddingsFlag, &flags->runner.precompile_token_paddings);
  AddFlag(app, kBsPaddingsFlag, &flags->runner.precompile_bs_paddings);
  AddFlag(app, kDisablePrecompileFlag, &flags->runner.disable_precompile);
  app->add_option("--logits-dump", flags->runner.logits_dump,
                  "Rank 0 appends the raw logits of sampled and prompt_logprobs positions (tests)");
  app->add_option("--metrics-socket", flags->metrics_socket, "Unix socket that serves metrics");
  AddLogFlags(app, &flags->log);
}

// Only the eos ids are needed of the tokenizer.
StatusOr<std::vector<int32_t>> ReadEosIds(const std::string& path) {
  ASSIGN_OR_RETURN(const ModelText text, OpenModelText(path, nullptr));
  return text.tokenizer->eos_ids();
}

// The segments a worker inherits.
struct Segments {
  Segment step_ring;
  Segment result_ring;
  std::unique_ptr<Segment> collective;  // null with one rank
};

// What a worker shares with the other processes of its host.
struct Links {
  const ReplicaControl* control = nullptr;
  const Segments* segments = nullptr;
};

StatusOr<Segments> MapSegments(const WorkerFlags& flags) {
  const auto map = [](int fd, const char* what) -> StatusOr<Segment> {
    StatusOr<Segment> segment = Segment::Map(UniqueFd(fd), 1);
    if (!segment.ok()) return Annotate(segment.status(), what);
    return segment;
  };
  ASSIGN_OR_RETURN(Segment step_ring, map(flags.step_ring_fd, "--step-ring-fd"));
  ASSIGN_OR_RETURN(Segment result_ring, map(flags.result_ring_fd, "--result-ring-fd"));
  Segments segments{std::move(step_ring), std::move(result_ring), nullptr};
  if (flags.tp > 1 && flags.collective_address.empty()) {
    ASSIGN_OR_RETURN(Segment collective, map(flags.collective_fd, "--collective-fd"));
    segments.collective = std::make_unique<Segment>(std::move(collective));
  }
  return segments;
}

void BeatHeart(void* heartbeat) { static_cast<Heartbeat*>(heartbeat)->Beat(); }

StatusOr<std::unique_ptr<Collective>> MakeCollective(const WorkerFlags& flags, int64_t spin_ns,
                                                     const Links& links, Heartbeat* heartbeat) {
  if (flags.tp == 1) return MakeSingleRankCollective();
  if (!flags.collective_address.empty()) {
    TcpCollectiveOptions options;
    options.rank = flags.rank;
    options.ranks = flags.tp;
    const StatusOr<TcpAddress> address = ParseTcpAddress(flags.collective_address);
    RETURN_IF_ERROR(Annotate(address.status(), "--collective-address"));
    options.address = *address;
    ASSIGN_OR_RETURN(options.secret, ReadSecret(flags.link_secret_file));
    options.wait.spin_ns = spin_ns;
    options.epoch = &(*links.control)->epoch;
    options.on_wait = BeatHeart;
    options.on_wait_arg = heartbeat;
    return MakeTcpCollective(options);
  }
  ShmCollectiveOptions options;
  options.rank = flags.rank;
  options.wait.spin_ns = spin_ns;
  options.on_wait = BeatHeart;
  options.on_wait_arg = heartbeat;
  return AttachShmCollective(links.segments->collective.get(), options);
}

// The plans of a scheduler on another host; null: it is on this one.
StatusOr<std::unique_ptr<RemotePlans>> ConnectToHead(const WorkerFlags& flags, const Links& links,
                                                     const Checkpoint& checkpoint,
                                                     const Heartbeat& heartbeat) {
  if (flags.head.empty()) return std::unique_ptr<RemotePlans>();
  RemotePlansOptions options;
  options.rank = flags.rank;
  options.ranks = flags.tp;
  const StatusOr<TcpAddress> head = ParseTcpAddress(flags.head);
  RETURN_IF_ERROR(Annotate(head.status(), "--head"));
  options.head = *head;
  ASSIGN_OR_RETURN(options.secret, ReadSecret(flags.link_secret_file));
  options.config = MakeRankConfig(
      {flags.tp, KeptDigest(checkpoint, flags.digest_file, [&] { heartbeat.Beat(); }),
       flags.device.device, flags.device.cpu.dtype, flags.device.cpu.kv_cache_dtype,
       &flags.runner});
  const auto on_lost = [](const Status& status) {
    Log().warn("the head is lost {}", Kv("reason", std::string(status.message())));
    _exit(kExitPeerLost);  // wherever the other threads are
  };
  return RemotePlans::Connect({links.control, &links.segments->step_ring, &g_stop, on_lost},
                              options);
}

Status RunWorker(WorkerFlags flags, const ReplicaControl& control) {
  const RealClock clock;
  ProcessSlot* const slot = &control->workers[flags.rank];
  ReplicaControl::SetState(slot, ProcessState::kLoading);
  Heartbeat heartbeat(&clock, &slot->heartbeat_ns);
  heartbeat.Beat();

  auto registry = std::make_shared<prometheus::Registry>();
  WorkerMetrics metrics(registry.get(), flags.rank);
  ASSIGN_OR_RETURN(const auto server,
                   MetricsServer::Start(flags.metrics_socket, flags.log.process, registry));

  ASSIGN_OR_RETURN(const Segments segments, MapSegments(flags));
  const Links links{&control, &segments};
  ASSIGN_OR_RETURN(const std::unique_ptr<Checkpoint> checkpoint, OpenCheckpoint(flags.model));
  ASSIGN_OR_RETURN(const std::unique_ptr<RemotePlans> plans,
                   ConnectToHead(flags, links, *checkpoint, heartbeat));
  flags.runner.kv_pages_chosen = plans != nullptr && plans->kv_pages_chosen();
  // Those that share this host's cores and memory.
  flags.device.cpu.ranks = flags.local_ranks == 0 ? flags.tp : flags.local_ranks;
  flags.runner.local_ranks = flags.local_ranks;
  flags.runner.first_local_rank = flags.head.empty() ? 0 : flags.rank;
  ASSIGN_OR_RETURN(const OpenedBackend opened,
                   OpenBackend(flags.device, {flags.model, checkpoint.get(), flags.rank, flags.tp,
                                              heartbeat, &control->epoch}));

  const int64_t comm_ns = clock.NowNs();
  ASSIGN_OR_RETURN(std::unique_ptr<Collective> inner,
                   MakeCollective(flags, opened.spin_ns, links, &heartbeat));
  TimedCollective collective(std::move(inner), &clock, registry.get());
  Log().info("startup {} {} {}", Kv("step", "comm"),
             Kv("seconds", static_cast<double>(clock.NowNs() - comm_ns) * 1e-9),
             Kv("ranks", flags.tp));

  if (flags.rank == 0) {
    ASSIGN_OR_RETURN(flags.runner.eos_ids, ReadEosIds(flags.model));
  }
  for (uint32_t rank = 0; rank < flags.tp; ++rank) {
    flags.runner.kv_pages_chosen |= control->workers[rank].ready_epoch.load() != 0;
  }
  flags.runner.available_memory = opened.available_memory;
  flags.runner.device_memory = opened.device_memory;
  ASSIGN_OR_RETURN(const std::unique_ptr<ModelRunner> runner,
                   ModelRunner::Create({checkpoint.get(), opened.backend.get(), &collective,
                                        &heartbeat, &clock, opened.sampler_kernels},
                                       flags.runner));

  std::unique_ptr<RingWriter> results;
  if (flags.rank == 0) {
    ASSIGN_OR_RETURN(RingWriter writer, RingWriter::Attach(&segments.result_ring));
    results = std::make_unique<RingWriter>(std::move(writer));
  }
  WorkerLoop loop({&control, &segments.step_ring, results.get(), &collective, runner.get(),
                   opened.backend.get(), &metrics, &heartbeat, &clock, &g_stop, WaitPolicy{}});
  return loop.Run();
}

// 2: the same start would fail again.
int ExitCode(const Status& status) {
  if (status.ok()) return 0;
  const bool useless = absl::IsInvalidArgument(status) || absl::IsNotFound(status) ||
                       absl::IsResourceExhausted(status) || absl::IsUnimplemented(status);
  return useless ? kExitBadConfiguration : 1;
}

}  // namespace
}  // namespace flotilla

int main(int argc, char** argv) {
  using namespace flotilla;
  WorkerFlags flags;
  CLI::App app("One tensor-parallel rank of a replica; started by the launcher", "flotilla-worker");
  AddFlags(&app, &flags);
  ParseOrExit(&app, argc, argv);
  flags.log.process = StrCat("worker-", flags.rank);
  InitLog(flags.log);
  struct sigaction action = {};
  action.sa_handler = OnSignal;
  sigaction(SIGTERM, &action, nullptr);
  sigaction(SIGINT, &action, nullptr);
  signal(SIGPIPE, SIG_IGN);

  Status status = OkStatus();
  if (flags.rank >= flags.tp) {
    status =
        absl::InvalidArgumentError(StrCat("--rank ", flags.rank, " is not below --tp ", flags.tp));
  } else {
    const StatusOr<ReplicaControl> control = ReplicaControl::Map(UniqueFd(flags.control_fd));
    status = control.ok() ? RunWorker(flags, *control) : control.status();
  }
  if (!status.ok()) Log().error("worker failed {}", Kv("reason", std::string(status.message())));
  return ExitCode(status);
}
