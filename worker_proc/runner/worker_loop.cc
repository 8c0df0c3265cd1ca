#include "worker_proc/runner/worker_loop.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "common/base/log.h"
#include "shm/spin.h"

namespace flotilla {
namespace {

// How long a sleep may last: heartbeats and SIGTERM are looked after this often.
constexpr int64_t kPollNs = 200 * kNsPerMs;

// The collective lost a rank: the step is void, the process is fine.
bool IsLostStep(const Status& status) {
  return absl::IsAborted(status) || absl::IsDeadlineExceeded(status);
}

// The step failed but ranks and slots are in step with each other; the scheduler is told.
bool IsAnswerable(const Status& status) {
  return status.ok() || absl::IsInvalidArgument(status) || absl::IsDataLoss(status);
}

}  // namespace

WorkerLoop::WorkerLoop(const Deps& deps)
    : deps_(deps),
      rank_(deps.collective->rank()),
      incarnation_((*deps.control)->workers[rank_].incarnation.load(std::memory_order_acquire)),
      slot_(&(*deps.control)->workers[rank_]) {}

void WorkerLoop::SetState(ProcessState state) {
  ReplicaControl::SetState(slot_, state);
  ReplicaControl::Ring(&(*deps_.control)->doorbell);
  ReplicaControl::Ring(&(*deps_.control)->launcher_bell);
}

void WorkerLoop::PublishReport() {
  WorkerReport& report = (*deps_.control)->reports[rank_];
  report.weight_bytes.store(deps_.runner->weight_bytes_read(), std::memory_order_relaxed);
  ReplicaControl::SetBackend(&report, deps_.backend->name());
  report.page_bytes.store(deps_.runner->kv_page_bytes(), std::memory_order_relaxed);
  report.max_kv_pages.store(deps_.runner->max_kv_pages(), std::memory_order_release);
  deps_.metrics->SetMemory(deps_.backend->memory());
}

bool WorkerLoop::WaitAdmitted() {
  const std::atomic<uint32_t>& bell = (*deps_.control)->worker_bell;
  while (!deps_.stop->load(std::memory_order_relaxed)) {
    const uint32_t seen = bell.load(std::memory_order_acquire);
    if (slot_->admitted.load(std::memory_order_acquire) == incarnation_) return true;
    deps_.heartbeat->Beat();
    FutexWait(&bell, seen, deps_.clock->NowNs() + kPollNs);
  }
  return false;
}

Status WorkerLoop::Run() {
  PublishReport();
  deps_.heartbeat->Beat();
  SetState(ProcessState::kLoaded);
  if (!WaitAdmitted()) return OkStatus();
  ASSIGN_OR_RETURN(RingReader reader, RingReader::Attach(deps_.step_ring, rank_, deps_.wait));
  while (!shutdown_ && !deps_.stop->load(std::memory_order_relaxed)) {
    deps_.heartbeat->Beat();
    const StatusOr<std::string_view> frame = NextFrame(&reader);
    if (absl::IsDeadlineExceeded(frame.status())) continue;
    RETURN_IF_ERROR(Annotate(frame.status(), "step ring"));
    const Status parsed = ParseStepPlan(*frame, deps_.runner->limits(), &next().plan);
    reader.Release();
    if (!parsed.ok()) {
      deps_.metrics->AddRejectedFrame();
      Log().error("step ring: frame refused {}", Kv("reason", std::string(parsed.message())));
      RETURN_IF_ERROR(EndAllSteps());
      next().plan = StepPlan();
      next().plan.epoch = joined_epoch_;  // the scheduler looks at no other's
      RETURN_IF_ERROR(SendResult(&next(), parsed));
      continue;
    }
    RETURN_IF_ERROR(HandlePlan());
  }
  RETURN_IF_ERROR(EndAllSteps());
  RingIfOwed();
  SetState(ProcessState::kStopping);
  return OkStatus();
}

// With nothing to do, the scheduler is woken first. Otherwise the step that comes does it.
StatusOr<std::string_view> WorkerLoop::NextFrame(RingReader* reader) {
  while (IsRunning()) {
    ASSIGN_OR_RETURN(const std::string_view frame, reader->TryRead());
    if (!frame.empty()) return frame;
    ASSIGN_OR_RETURN(const bool done, deps_.runner->Done());
    if (!done) {
      CpuRelax();
      continue;
    }
    RETURN_IF_ERROR(EndStep());
  }
  ASSIGN_OR_RETURN(const std::string_view frame, reader->TryRead());
  if (!frame.empty()) return frame;
  RingIfOwed();
  return reader->Read(deps_.clock->NowNs() + kPollNs);
}

Status WorkerLoop::HandlePlan() {
  if (next().plan.command != StepCommand::kForward) {
    RingIfOwed();
    RETURN_IF_ERROR(EndAllSteps());
  }
  switch (next().plan.command) {
    case StepCommand::kReset:
      return HandleReset();
    case StepCommand::kForward:
      return HandleForward();
    case StepCommand::kShutdown:
      shutdown_ = true;
      return OkStatus();
  }
  return OkStatus();
}

Status WorkerLoop::HandleReset() {
  joined_epoch_ = 0;
  if (next().plan.epoch < (*deps_.control)->epoch.load(std::memory_order_acquire)) {
    return OkStatus();  // a newer reset is on its way
  }
  SetState(ProcessState::kWarmup);
  RETURN_IF_ERROR(Annotate(deps_.runner->AllocateKvCache(next().plan.num_pages), "reset"));
  const Status joined = JoinEpoch();
  const StatusOr<uint64_t> hash = joined.ok() ? deps_.runner->Reset() : joined;
  if (IsLostStep(hash.status())) {
    Log().warn("reset lost {} {}", Kv("epoch", next().plan.epoch),
               Kv("reason", std::string(hash.status().message())));
    return OkStatus();
  }
  RETURN_IF_ERROR(Annotate(hash.status(), "reset"));
  joined_epoch_ = next().plan.epoch;
  deps_.metrics->SetMemory(deps_.backend->memory());
  if (rank_ == 0) {
    (*deps_.control)->reports[0].probe_hash.store(*hash, std::memory_order_release);
  }
  slot_->ready_epoch.store(next().plan.epoch, std::memory_order_release);
  SetState(ProcessState::kReady);
  Log().info("ready {} {}", Kv("epoch", next().plan.epoch),
             Kv("pages", deps_.runner->limits().num_pages));
  return OkStatus();
}

// A rank that begins anew may take longer for its KV cache than an operation waits; how long all
// may take is the scheduler's to say, by the next epoch.
Status WorkerLoop::JoinEpoch() {
  const std::atomic<uint32_t>& newest = (*deps_.control)->epoch;
  Status joined;
  do {
    joined = deps_.collective->Reset(next().plan.epoch);
  } while (absl::IsDeadlineExceeded(joined) && newest.load() == next().plan.epoch &&
           !deps_.stop->load());
  return joined;
}

Status WorkerLoop::HandleForward() {
  if (next().plan.epoch != joined_epoch_) return OkStatus();
  if (std::exchange(owed_ring_, false)) deps_.backend->WakeSoon(&(*deps_.control)->doorbell);
  if (deps_.runner->num_begun() == ModelRunner::kMaxBegun) RETURN_IF_ERROR(EndStep());
  Step* const step = &next();
  const auto is_lost = [this, step] { return step->plan.epoch != joined_epoch_; };
  if (is_lost()) return OkStatus();
  step->begin_ns = deps_.clock->NowNs();
  const bool runs_one = IsRunning();
  const auto replayed = [this] {
    const GraphSteps steps = deps_.backend->graph_steps();
    return steps.full + steps.piecewise;
  };
  const uint64_t replayed_before = replayed();
  const StatusOr<bool> begun = deps_.runner->Begin(&step->plan, &step->result);
  if (begun.ok() && *begun) {
    step->result.cuda_graph = replayed() > replayed_before;
    if (runs_one) deps_.metrics->AddStepAhead();
    next_ = (next_ + 1) % steps_.size();
    return OkStatus();
  }
  if (!IsAnswerable(begun.status()) && !IsLostStep(begun.status())) {
    return Annotate(begun.status(), "step");
  }
  RETURN_IF_ERROR(EndAllSteps());
  if (is_lost()) return OkStatus();  // with one of those before
  if (!begun.ok()) return AnswerStep(step, begun.status());
  const Status executed = deps_.runner->Execute(&step->plan, &step->result);
  step->result.cuda_graph = replayed() > replayed_before;
  return AnswerStep(step, executed);
}

// The device works on its own: nothing is beaten here, so that one that hangs is found.
Status WorkerLoop::EndStep() {
  const size_t begun = deps_.runner->num_begun();
  Step* const step = &steps_[(next_ + steps_.size() - begun) % steps_.size()];
  for (;;) {
    ASSIGN_OR_RETURN(const bool done, deps_.runner->Done());
    if (done) break;
    CpuRelax();
  }
  RETURN_IF_ERROR(AnswerStep(step, deps_.runner->End()));
  RingIfOwed();
  return OkStatus();
}

Status WorkerLoop::EndAllSteps() {
  while (IsRunning()) RETURN_IF_ERROR(EndStep());
  return OkStatus();
}

Status WorkerLoop::AnswerStep(Step* step, const Status& status) {
  StepResult& result = step->result;
  result.end_ns = deps_.clock->NowNs();
  // It began when the one before was over.
  result.start_ns = std::max(step->begin_ns, std::exchange(last_end_ns_, result.end_ns));
  if (IsLostStep(status)) {
    joined_epoch_ = 0;
    owed_ring_ = true;  // the backend may not have come to it
    Log().warn("step lost {} {}", Kv("step", step->plan.step_id),
               Kv("reason", std::string(status.message())));
    // Of a rank that hangs the scheduler may not know yet; of a new epoch it does.
    return absl::IsDeadlineExceeded(status) ? SendResult(step, status) : OkStatus();
  }
  if (!IsAnswerable(status)) return Annotate(status, "step");
  if (!status.ok()) {
    Log().error("step failed {} {}", Kv("step", step->plan.step_id),
                Kv("reason", std::string(status.message())));
  } else {
    deps_.metrics->ObserveStep(deps_.runner->last_mode(),
                               static_cast<double>(result.end_ns - result.start_ns) * 1e-9);
    deps_.metrics->AddTokens(static_cast<uint32_t>(step->plan.input_ids.size()));
    deps_.metrics->SetPlanMisses(deps_.runner->plan_misses());
    deps_.metrics->SetGraphSteps(deps_.backend->graph_steps());
  }
  return SendResult(step, status);
}

Status WorkerLoop::SendResult(Step* step, const Status& status) {
  if (deps_.result_ring == nullptr) return OkStatus();
  StepResult& result = step->result;
  result.step_id = step->plan.step_id;
  result.epoch = step->plan.epoch;
  result.code = static_cast<uint32_t>(status.code());
  result.message.assign(status.message().data(), status.message().size());
  if (!status.ok() && !absl::IsDataLoss(status)) result.rows.clear();
  BuildStepResult(result, &frame_);
  for (;;) {
    const Status written = deps_.result_ring->Write(frame_, deps_.clock->NowNs() + kPollNs);
    if (written.ok()) break;
    if (absl::IsInvalidArgument(written) && !result.rows.empty()) {
      // Larger than the ring takes: said as a failure, or the same step would come for ever.
      return SendResult(
          step, absl::ResourceExhaustedError(StrCat("the step's result takes ", frame_.size(),
                                                    " bytes; too many for its ring")));
    }
    if (!absl::IsDeadlineExceeded(written)) return Annotate(written, "result ring");
    // Full: the scheduler is behind. It may also be gone; then the launcher ends us.
    deps_.heartbeat->Beat();
    if (deps_.stop->load(std::memory_order_relaxed)) return OkStatus();
  }
  deps_.metrics->SetResultRingFill(deps_.result_ring->FillRatio());
  owed_ring_ = true;
  return OkStatus();
}

void WorkerLoop::RingIfOwed() {
  if (std::exchange(owed_ring_, false)) ReplicaControl::Ring(&(*deps_.control)->doorbell);
}

}  // namespace flotilla
