// Real worker processes over real segments, and the scheduler's side of their protocol: admit,
// reset, publish plans, read results. For tests of the worker binary.
//
// Threads: one. The destructor ends the processes it started. Errors: Status, with the exit code of
// a worker that ended by itself.
#pragma once

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <memory>
#include <string>
#include <vector>

#include "common/base/clock.h"
#include "shm/collective.h"
#include "shm/replica_control.h"
#include "shm/ring.h"
#include "shm/step_plan.h"
#include "shm/step_result.h"

namespace flotilla::testing {

struct TestReplicaOptions {
  uint32_t tp = 1;
  std::string worker_binary;
  std::string model;
  std::vector<std::string> flags;  // further ones
  size_t result_ring_bytes = 8 << 20;
};

class TestReplica {
 public:
  static StatusOr<std::unique_ptr<TestReplica>> Create(const TestReplicaOptions& options) {
    std::unique_ptr<TestReplica> replica(new TestReplica(options));
    RETURN_IF_ERROR(replica->MakeSegments());
    for (uint32_t rank = 0; rank < options.tp; ++rank) RETURN_IF_ERROR(replica->Spawn(rank));
    return replica;
  }
  ~TestReplica() {
    for (pid_t pid : pids_) {
      if (pid > 0) kill(pid, SIGKILL);
    }
    for (pid_t pid : pids_) {
      if (pid > 0) waitpid(pid, nullptr, 0);
    }
  }

  const ReplicaControl& control() const { return *control_; }
  pid_t pid(uint32_t rank) const { return pids_[rank]; }

  // (Re)starts a rank as the launcher does.
  Status Spawn(uint32_t rank) {
    ProcessSlot& slot = (*control_)->workers[rank];
    slot.incarnation.fetch_add(1);
    ReplicaControl::SetState(&slot, ProcessState::kStarting);
    std::vector<std::string> args = {options_.worker_binary,
                                     "--rank",
                                     std::to_string(rank),
                                     "--tp",
                                     std::to_string(options_.tp),
                                     "--model",
                                     options_.model,
                                     "--control-fd",
                                     std::to_string(control_->segment().fd()),
                                     "--step-ring-fd",
                                     std::to_string(step_segment_->fd()),
                                     "--result-ring-fd",
                                     std::to_string(result_segment_->fd()),
                                     "--collective-fd",
                                     std::to_string(collective_segment_->fd())};
    args.insert(args.end(), options_.flags.begin(), options_.flags.end());
    std::vector<char*> argv;
    for (std::string& arg : args) argv.push_back(arg.data());
    argv.push_back(nullptr);
    const int fds[] = {control_->segment().fd(), step_segment_->fd(), result_segment_->fd(),
                       collective_segment_->fd()};
    const pid_t pid = fork();
    if (pid == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      for (int fd : fds) fcntl(fd, F_SETFD, 0);
      execv(argv[0], argv.data());
      _exit(127);
    }
    if (pid < 0) return absl::InternalError("fork");
    pids_[rank] = pid;
    return OkStatus();
  }

  // Kills a rank and notes its death as the launcher does.
  void Kill(uint32_t rank) {
    kill(pids_[rank], SIGKILL);
    waitpid(pids_[rank], nullptr, 0);
    pids_[rank] = 0;
    ReplicaControl::SetState(&(*control_)->workers[rank], ProcessState::kDead);
  }

  // Exit code of a rank that ends by itself; -1 if it does not.
  int WaitExit(uint32_t rank) {
    int status = 0;
    if (waitpid(pids_[rank], &status, 0) != pids_[rank]) return -1;
    pids_[rank] = 0;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }

  // The scheduler's path into an epoch: all loaded → admitted → reset → all ready.
  Status BeginEpoch(uint32_t epoch) {
    (*control_)->epoch.store(epoch);
    if (epoch > 1) AbortCollective(*collective_segment_, epoch);
    RETURN_IF_ERROR(WaitFor([&](const ProcessSlot& slot) {
      const ProcessState state = ReplicaControl::State(slot);
      return state == ProcessState::kLoaded || state == ProcessState::kReady ||
             state == ProcessState::kWarmup;
    }));
    for (uint32_t rank = 0; rank < options_.tp; ++rank) {
      ProcessSlot& slot = (*control_)->workers[rank];
      const uint32_t incarnation = slot.incarnation.load();
      if (slot.admitted.load() == incarnation) continue;
      steps_->ActivateReader(rank);
      slot.admitted.store(incarnation);
    }
    ReplicaControl::Ring(&(*control_)->worker_bell);
    if (num_pages_ == 0) {
      num_pages_ = (*control_)->reports[0].max_kv_pages.load();
      for (uint32_t rank = 1; rank < options_.tp; ++rank) {
        num_pages_ = std::min(num_pages_, (*control_)->reports[rank].max_kv_pages.load());
      }
    }
    epoch_ = epoch;
    StepPlan reset;
    reset.command = StepCommand::kReset;
    reset.epoch = epoch;
    reset.num_pages = static_cast<uint32_t>(num_pages_);
    RETURN_IF_ERROR(Publish(reset));
    return WaitFor([&](const ProcessSlot& slot) { return slot.ready_epoch.load() == epoch; });
  }

  Status Publish(const StepPlan& plan) {
    std::string frame;
    BuildStepPlan(plan, &frame);
    return PublishFrame(frame);
  }
  Status PublishFrame(const std::string& frame) {
    return steps_->Write(frame, RealClock::Now() + 10 * kNsPerSecond);
  }
  StatusOr<StepResult> ReadResult(int64_t timeout_ns = 120 * kNsPerSecond) {
    ASSIGN_OR_RETURN(const std::string_view frame, results_->Read(RealClock::Now() + timeout_ns));
    StepResult result;
    const Status parsed = ParseStepResult(frame, 4096, 1u << 20, &result);
    results_->Release();
    RETURN_IF_ERROR(parsed);
    return result;
  }
  StatusOr<StepResult> Execute(const StepPlan& plan) {
    RETURN_IF_ERROR(Publish(plan));
    return ReadResult();
  }
  uint32_t num_pages() const { return static_cast<uint32_t>(num_pages_); }

  // Sleeps on the doorbell until every worker's slot satisfies `done`.
  template <typename Done>
  Status WaitFor(Done done) {
    const int64_t deadline_ns = RealClock::Now() + 180 * kNsPerSecond;
    for (;;) {
      const uint32_t seen = (*control_)->doorbell.load();
      bool all = true;
      for (uint32_t rank = 0; rank < options_.tp; ++rank) {
        all = all && done((*control_)->workers[rank]);
        int status = 0;
        if (pids_[rank] > 0 && waitpid(pids_[rank], &status, WNOHANG) == pids_[rank]) {
          pids_[rank] = 0;
          return absl::UnavailableError(StrCat("worker ", rank, " ended, wait status ", status));
        }
      }
      if (all) return OkStatus();
      const int64_t now_ns = RealClock::Now();
      if (now_ns > deadline_ns) return absl::DeadlineExceededError("workers are not ready");
      FutexWait(&(*control_)->doorbell, seen, now_ns + 100 * kNsPerMs);
    }
  }

 private:
  explicit TestReplica(const TestReplicaOptions& options)
      : options_(options), pids_(options.tp, 0) {}

  Status MakeSegments() {
    ASSIGN_OR_RETURN(ReplicaControl control, ReplicaControl::Create(options_.tp));
    control_ = std::make_unique<ReplicaControl>(std::move(control));
    ASSIGN_OR_RETURN(step_segment_, MakeRing("steps", 4 << 20, options_.tp));
    ASSIGN_OR_RETURN(result_segment_, MakeRing("results", options_.result_ring_bytes, 1));
    ASSIGN_OR_RETURN(Segment collective,
                     Segment::Create("collective", CollectiveSegmentBytes(options_.tp, 1 << 20)));
    RETURN_IF_ERROR(InitCollective(collective, options_.tp, 1 << 20));
    collective_segment_ = std::make_unique<Segment>(std::move(collective));
    ASSIGN_OR_RETURN(RingWriter steps, RingWriter::Attach(step_segment_.get()));
    steps_ = std::make_unique<RingWriter>(std::move(steps));
    ASSIGN_OR_RETURN(RingReader results,
                     RingReader::Attach(result_segment_.get(), 0, WaitPolicy{}));
    results_ = std::make_unique<RingReader>(std::move(results));
    return OkStatus();
  }
  static StatusOr<std::unique_ptr<Segment>> MakeRing(const char* name, size_t bytes,
                                                     uint32_t readers) {
    ASSIGN_OR_RETURN(Segment segment, Segment::Create(name, RingSegmentBytes(bytes)));
    RETURN_IF_ERROR(InitRing(segment, readers));
    return std::make_unique<Segment>(std::move(segment));
  }

  const TestReplicaOptions options_;
  std::vector<pid_t> pids_;
  std::unique_ptr<ReplicaControl> control_;
  std::unique_ptr<Segment> step_segment_, result_segment_, collective_segment_;
  std::unique_ptr<RingWriter> steps_;
  std::unique_ptr<RingReader> results_;
  uint64_t num_pages_ = 0;
  uint32_t epoch_ = 0;
};

}  // namespace flotilla::testing
