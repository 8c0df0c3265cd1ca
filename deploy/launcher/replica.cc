#include "deploy/launcher/replica.h"

#include <signal.h>

#include <algorithm>

#include "common/base/log.h"
#include "deploy/launcher/flight.h"
#include "deploy/launcher/stall_dump.h"
#include "shm/collective.h"
#include "shm/ring.h"
#include "shm/step_plan.h"
#include "shm/step_result.h"

namespace flotilla {
namespace {

constexpr size_t kStepRingBytes = 4 << 20;    // at least
constexpr size_t kResultRingBytes = 8 << 20;  // at least
constexpr size_t kCollectiveBytes = 1 << 20;  // staging a rank

// A plan is a frame, of which the ring takes up to a quarter of its size: a megabyte, and masks of
// a bit a token, one for every request and kSpareMasks.
size_t StepRingBytes(const ResolvedOptions& resolved) {
  const size_t masks = (size_t{resolved.options.max_running_requests} + kSpareMasks) *
                       MaskWords(resolved.vocab_size) * sizeof(uint32_t);
  return std::max(kStepRingBytes, 4 * ((1 << 20) + masks));
}

// A result likewise: a megabyte, and the logprobs of every position of a step.
size_t ResultRingBytes(const ServeOptions& options) {
  const size_t positions = size_t{options.chunked_prefill_size} + options.max_running_requests;
  return std::max(kResultRingBytes, 4 * ((1 << 20) + positions * kMaxPositionBytes));
}

}  // namespace

Replica::Replica(const Env& env, uint32_t index, std::string id, std::vector<std::string> listen)
    : env_(env) {
  wiring_.index = index;
  wiring_.id = std::move(id);
  wiring_.listen = std::move(listen);
  const std::string prefix = env.resolved->options.replicas > 1 ? wiring_.id + "/" : "";
  auto make = [&](const std::string& name, const std::string& socket) {
    return std::make_unique<ManagedProcess>(
        prefix + name, env.metrics->Wire(env.loop, env.logs, name, wiring_.id,
                                         SocketPath(*env.resolved, index, socket)));
  };
  const HostSpan& span = env.resolved->span;
  if (!span.joined) scheduler_ = make("scheduler", "scheduler.metrics");
  for (uint32_t i = 0; i < span.local_ranks + span.remote_ranks; ++i) {
    const std::string name = absl::StrCat("worker-", span.first_rank + i);
    workers_.push_back(make(name, name + ".metrics"));
  }
  if (!span.joined) detokenizer_ = make("detokenizer", "detokenizer.metrics");
}

bool Replica::Ready() const {
  if (!up_) return false;
  const ReplicaControlBlock& block = *segments_->control.operator->();
  const HostSpan& span = env_.resolved->span;
  return ReplicaControl::State(span.joined ? block.workers[span.first_rank] : block.scheduler) ==
         ProcessState::kReady;
}

bool Replica::AnyRunning() const {
  return SchedulerRunning() || (detokenizer_ && detokenizer_->running()) ||
         std::any_of(workers_.begin(), workers_.end(), [](const auto& w) { return w->running(); });
}

void Replica::SignalOthers(int signal) {
  for (const auto& worker : workers_) worker->Signal(signal);
  if (detokenizer_) detokenizer_->Signal(signal);
}

std::vector<Replica::Member> Replica::Members() const {
  ReplicaControlBlock* block = segments_->control.operator->();
  std::vector<Member> members;
  if (scheduler_) members.push_back({scheduler_.get(), &block->scheduler, 0});
  for (uint32_t i = 0; i < workers_.size(); ++i) {
    const uint32_t rank = env_.resolved->span.first_rank + i;
    members.push_back({workers_[i].get(), &block->workers[rank], rank});
  }
  if (detokenizer_) members.push_back({detokenizer_.get(), &block->detokenizer, 0});
  return members;
}

StatusOr<Replica::Segments> Replica::MakeSegments() const {
  const uint32_t tp = env_.resolved->tp;
  ASSIGN_OR_RETURN(ReplicaControl control, ReplicaControl::Create(tp));
  ASSIGN_OR_RETURN(Segment step, Segment::Create("flotilla-steps",
                                                 RingSegmentBytes(StepRingBytes(*env_.resolved))));
  RETURN_IF_ERROR(InitRing(step, tp));
  ASSIGN_OR_RETURN(Segment result,
                   Segment::Create("flotilla-results",
                                   RingSegmentBytes(ResultRingBytes(env_.resolved->options))));
  RETURN_IF_ERROR(InitRing(result, 1));
  ASSIGN_OR_RETURN(
      Segment collective,
      Segment::Create("flotilla-collective", CollectiveSegmentBytes(tp, kCollectiveBytes)));
  RETURN_IF_ERROR(InitCollective(collective, tp, kCollectiveBytes));
  Segments segments{std::move(control), std::move(step), std::move(result), std::move(collective),
                    std::nullopt};
  if (env_.resolved->flight_bytes > 0) {
    ASSIGN_OR_RETURN(Segment flight,
                     Segment::Create("flotilla-flight", env_.resolved->flight_bytes));
    segments.flight.emplace(std::move(flight));
  }
  return segments;
}

Status Replica::StartAll(int64_t now_ns) {
  segments_.reset();
  policy_.OnStart();
  StatusOr<Segments> segments = MakeSegments();
  if (!segments.ok()) {
    start_ns_ = policy_.OnExit(now_ns);
    return Annotate(segments.status(), "can't make the shared segments");
  }
  segments_.emplace(*std::move(segments));
  wiring_.control_fd = segments_->control.segment().fd();
  wiring_.step_ring_fd = segments_->step_ring.fd();
  wiring_.result_ring_fd = segments_->result_ring.fd();
  wiring_.collective_fd = segments_->collective.fd();
  wiring_.flight_fd = segments_->flight.has_value() ? segments_->flight->fd() : -1;
  up_ = true;
  for (const Member& member : Members()) {
    Status status = StartMember(member, now_ns);
    if (status.ok()) continue;
    if (member.process == scheduler_.get()) {
      up_ = false;
      start_ns_ = policy_.OnExit(now_ns);
      return status;
    }
    Log().warn("can't start {}",
               Kv("reason", std::string(status.message())));  // due again, as after a death
  }
  return OkStatus();
}

Status Replica::StartMember(const Member& member, int64_t now_ns) {
  ProcessSlot* slot = member.slot;
  slot->heartbeat_ns.store(now_ns, std::memory_order_relaxed);
  slot->incarnation.fetch_add(1, std::memory_order_acq_rel);
  ReplicaControl::SetState(slot, ProcessState::kStarting);

  Status status = member.process->Start(SpecOf(member), now_ns);
  if (!status.ok()) ReplicaControl::SetState(slot, ProcessState::kDead);
  slot->pid.store(static_cast<uint32_t>(std::max(0, member.process->pid())),
                  std::memory_order_relaxed);
  slot->restarts.store(member.process->restarts(), std::memory_order_relaxed);
  return status;
}

ChildSpec Replica::SpecOf(const Member& member) const {
  ChildSpec spec;
  spec.inherit_fds = {wiring_.control_fd};
  if (member.process == detokenizer_.get()) {
    spec.argv = DetokenizerArgv(*env_.resolved, wiring_);
    return spec;
  }
  spec.inherit_fds.push_back(wiring_.step_ring_fd);
  if (member.process != scheduler_.get() && env_.resolved->span.IsRemote(member.rank)) {
    spec.argv = RankProxyArgv(*env_.resolved, wiring_, member.rank);
    return spec;
  }
  spec.argv = member.process == scheduler_.get() ? SchedulerArgv(*env_.resolved, wiring_)
                                                 : WorkerArgv(*env_.resolved, wiring_, member.rank);
  spec.inherit_fds.insert(spec.inherit_fds.end(), {wiring_.result_ring_fd, wiring_.collective_fd});
  if (member.process == scheduler_.get() && wiring_.flight_fd >= 0) {
    spec.inherit_fds.push_back(wiring_.flight_fd);
  }
  return spec;
}

Status Replica::Tick(int64_t now_ns, int64_t watch_from_ns) {
  if (!up_) {
    if (AnyRunning() || now_ns < start_ns_) return OkStatus();
    return StartAll(now_ns);
  }
  for (const Member& member : Members()) {
    if (member.process->Due(now_ns)) {
      RETURN_IF_ERROR(StartMember(member, now_ns));
    } else {
      if (ReplicaControl::State(*member.slot) == ProcessState::kReady)
        member.process->OnReady(now_ns);
      Watch(member, now_ns, watch_from_ns);
    }
  }
  if (Ready()) policy_.OnReady(now_ns);
  return OkStatus();
}

void Replica::Watch(const Member& member, int64_t now_ns, int64_t watch_from_ns) const {
  const int64_t beat = member.slot->heartbeat_ns.load(std::memory_order_relaxed);
  const auto age_of = [&](int64_t then_ns) {
    return static_cast<double>(std::max<int64_t>(0, now_ns - then_ns)) / kNsPerSecond;
  };
  member.process->SetHeartbeatAge(age_of(beat));
  const ProcessState state = ReplicaControl::State(*member.slot);
  const bool starts = state == ProcessState::kStarting || state == ProcessState::kLoading;
  const bool works = state == ProcessState::kLoaded || state == ProcessState::kWarmup ||
                     state == ProcessState::kReady;
  const bool alive = member.process->running() && !member.process->killed();
  if (!alive || !(starts || works)) return;
  const ServeOptions& options = env_.resolved->options;
  const double age = age_of(std::max(beat, watch_from_ns));
  if (age <= (starts ? options.startup_timeout : options.watchdog_timeout)) return;
  Log().error("no heartbeat, killing it {} {} {} {}", Kv("name", member.process->name()),
              Kv("pid", member.process->pid()), Kv("state", ProcessStateName(state)),
              Kv("heartbeat_age_seconds", age));
  Dump(now_ns);
  member.process->Signal(SIGKILL);
}

std::optional<Replica::Death> Replica::OnExit(pid_t pid, int wait_status, int64_t now_ns,
                                              bool stopping) {
  if (!segments_) return std::nullopt;
  for (const Member& member : Members()) {
    if (member.process->pid() != pid) continue;
    const ProcessExit exit = member.process->OnExit(wait_status, now_ns);
    ever_failed_ = true;
    ReplicaControl::SetState(member.slot, ProcessState::kDead);
    member.slot->pid.store(0, std::memory_order_relaxed);
    if (member.process == scheduler_.get()) {
      up_ = false;
      start_ns_ = policy_.OnExit(now_ns);
      if (!stopping) {  // else the others have their own turn
        Log().info(
            "the scheduler ended, its replica's other processes are killed and all start again {}",
            Kv("name", scheduler_->name()));
        SignalOthers(SIGKILL);
        SaveFlight();
      }
    } else {
      ReplicaControl::Ring(&segments_->control->doorbell);
    }
    return Death{member.process, exit};
  }
  return std::nullopt;
}

// Something hangs and will be killed: all that may say why.
void Replica::Dump(int64_t now_ns) const {
  LogStates(now_ns);
  for (const Member& member : Members()) {
    for (const std::string& thread : DescribeThreads(member.process->pid())) {
      Log().info("thread {} {}", Kv("name", member.process->name()), thread);
    }
  }
  const BatchReport& batch = segments_->control->batch;
  const auto get = [](const auto& field) { return field.load(std::memory_order_relaxed); };
  Log().info("batch {} {} {} {} {} {} {}", Kv("step", get(batch.planned_step)),
             Kv("answered", get(batch.answered_step)), Kv("rows", get(batch.rows)),
             Kv("tokens", get(batch.tokens)), Kv("running", get(batch.running)),
             Kv("waiting", get(batch.waiting)),
             Kv("age_seconds", static_cast<double>(now_ns - get(batch.planned_ns)) / kNsPerSecond));
  for (const std::string& ring : {DescribeRing("steps", segments_->step_ring),
                                  DescribeRing("results", segments_->result_ring)}) {
    Log().info("ring {}", ring);
  }
  SaveFlight();
}

void Replica::SaveFlight() const {
  if (!segments_->flight.has_value()) return;
  const StatusOr<std::string> path =
      SaveFlightRecording(*segments_->flight, env_.resolved->flight_dir, wiring_.id);
  if (path.ok()) {
    Log().info("flight recording saved {} {}", Kv("path", *path),
               Kv("look", StrCat("flotilla replay ", *path)));
  } else if (!absl::IsNotFound(path.status())) {
    Log().warn("no flight recording {}", Kv("reason", std::string(path.status().message())));
  }
}

void Replica::LogStates(int64_t now_ns) const {
  for (const Member& member : Members()) {
    const int64_t beat = member.slot->heartbeat_ns.load(std::memory_order_relaxed);
    Log().info("state {} {} {} {} {} {}", Kv("name", member.process->name()),
               Kv("state", ProcessStateName(ReplicaControl::State(*member.slot))),
               Kv("pid", member.process->pid()),
               Kv("incarnation", member.slot->incarnation.load(std::memory_order_relaxed)),
               Kv("heartbeat_age_seconds", static_cast<double>(now_ns - beat) / kNsPerSecond),
               Kv("epoch", segments_->control->epoch.load(std::memory_order_relaxed)));
  }
}

}  // namespace flotilla
