#include "scheduler_proc/loop/scheduler_loop.h"

#include <algorithm>
#include <span>
#include <utility>

#include "common/base/check.h"
#include "common/base/log.h"
#include "shm/futex.h"

namespace flotilla {
namespace {

constexpr int64_t kBeatNs = kNsPerSecond / 2;
constexpr int64_t kMaxDrainNs = 2 * kNsPerMs;  // a turn, and one command more
// Long before the watchdog ends it. It beats twice a second; a worker within each layer, but not
// while its device runs a step, which may take a share of the time that a step may take at most.
constexpr int64_t kDetokenizerSilentNs = 5 * kNsPerSecond;
constexpr int64_t kLeastWorkerSilentNs = 10 * kNsPerSecond;
constexpr int64_t kWorkerSilentShare = 12;

bool IsAway(const ProcessSlot& slot) {
  const ProcessState state = ReplicaControl::State(slot);
  return state == ProcessState::kDead || state == ProcessState::kStarting ||
         state == ProcessState::kLoading;
}

// It stands still.
bool IsSilent(const ProcessSlot& slot, int64_t longest_ns) {
  const int64_t beat = slot.heartbeat_ns.load(std::memory_order_relaxed);
  return beat != 0 && RealClock::Now() - beat > longest_ns;
}

// Nothing is answered without the detokenizer and all ranks; what has become of ranks that are away
// the epoch says.
bool AnyIsSilent(const ReplicaControlBlock& control, int64_t step_timeout_ns) {
  const std::span ranks(control.workers, control.tp_size);
  const int64_t longest_ns = std::max(kLeastWorkerSilentNs, step_timeout_ns / kWorkerSilentShare);
  return IsSilent(control.detokenizer, kDetokenizerSilentNs) ||
         std::any_of(ranks.begin(), ranks.end(),
                     [&](const ProcessSlot& rank) { return IsSilent(rank, longest_ns); });
}

}  // namespace

SchedulerLoop::SchedulerLoop(const Options& options, Deps deps)
    : options_(options), deps_(std::move(deps)) {}

StatusOr<bool> SchedulerLoop::Step() {
  const int64_t now_ns = deps_.clock->NowNs();
  step_ns_ = now_ns;
  Beat(now_ns);
  RETURN_IF_ERROR(PollEpoch(now_ns));
  if (core_ == nullptr) return false;
  bool progress = DrainInbox(now_ns);
  ASSIGN_OR_RETURN(const bool results, TakeResults(now_ns));
  progress = results || progress;
  if (deps_.epochs->serving()) {
    CheckStepTimeout(now_ns);
    while (core_->core().PlanDueNs() <= now_ns && PublishPlan(now_ns)) progress = true;
  }
  // Before the outputs, whose frames carry the events.
  if (deps_.cache != nullptr) deps_.cache->Publish(&page_log_);
  progress = HandOutputs(now_ns, results) || progress;
  ReportRecovering();
  WriteKeyFrameIfDue();
  return progress;
}

void SchedulerLoop::ReportRecovering() {
  const bool recovering = !deps_.epochs->serving() || IsAway(deps_.control->detokenizer) ||
                          AnyIsSilent(*deps_.control, options_.step_timeout_ns);
  if (std::exchange(recovering_, recovering) == recovering) return;
  deps_.load->SetRecovering(recovering);
  deps_.on_recovering(recovering);
}

// The workers have their plan, and clients their tokens.
void SchedulerLoop::WriteKeyFrameIfDue() {
  const uint64_t lost_before = core_->key_frames_lost();
  core_->WriteKeyFrameIfDue();
  if (core_->key_frames_lost() == lost_before || core_->key_frames_lost() > 1) return;
  Log().warn(
      "the cache is too large for the flight recorder: a recording that has lost its beginning "
      "can't be replayed (--flight-recorder-size) {}",
      Kv("ring_bytes", deps_.flight->capacity()));
}

Status SchedulerLoop::Run() {
  std::atomic<uint32_t>* doorbell = &deps_.control->doorbell;
  while (!stop_.load()) {
    const uint32_t seen = doorbell->load(std::memory_order_acquire);
    ASSIGN_OR_RETURN(const bool progress, Step());
    if (!progress && !stop_.load()) FutexWait(doorbell, seen, NextWakeNs());
  }
  return OkStatus();
}

void SchedulerLoop::Stop() {
  stop_.store(true);
  ReplicaControl::Ring(&deps_.control->doorbell);
}

Status SchedulerLoop::PollEpoch(int64_t now_ns) {
  ASSIGN_OR_RETURN(const EpochManager::Event event, deps_.epochs->Poll(now_ns));
  if (event == EpochManager::Event::kLost) OnWorkerLost();
  if (event != EpochManager::Event::kBegan) return OkStatus();
  const uint32_t num_pages = deps_.epochs->num_pages();
  if (core_ == nullptr) {
    SchedulerConfig config = options_.core;
    config.num_pages = num_pages;
    core_ = std::make_unique<RecordedScheduler>(config, deps_.flight);
    if (deps_.cache != nullptr) core_->SetPageLog(&page_log_);
  }
  core_->BeginEpoch(deps_.epochs->epoch(), num_pages);
  deps_.load->Publish(core_->core().stats(), taken_, taken_tokens_);
  deps_.metrics->OnStats(core_->core().stats());
  Log().info("serving {} {}", Kv("epoch", deps_.epochs->epoch()), Kv("pages", num_pages));
  return deps_.on_serving(num_pages);
}

// Many that come at once, long prompts or resumed outputs with grammars, are no reason to leave the
// workers idle: what is not done in time is done in the next turn.
bool SchedulerLoop::DrainInbox(int64_t now_ns) {
  if (next_command_ == commands_.size()) {
    commands_.clear();
    next_command_ = 0;
    deps_.inbox->Drain(&commands_);
  }
  const bool any = next_command_ < commands_.size();
  const int64_t end_ns = deps_.clock->NowNs() + kMaxDrainNs;
  while (next_command_ < commands_.size()) {
    Take(std::move(commands_[next_command_++]), now_ns);
    if (deps_.clock->NowNs() >= end_ns) break;
  }
  if (now_ns >= next_deadline_ns_) core_->ExpireDeadlines(now_ns, &core_outputs_);
  return any;
}

void SchedulerLoop::Take(Command&& command, int64_t now_ns) {
  if (auto* submit = std::get_if<SubmitCommand>(&command)) {
    Submit(std::move(*submit), now_ns);
  } else if (auto* abort = std::get_if<AbortCommand>(&command)) {
    core_->Abort(abort->id, abort->reason, &core_outputs_);
  } else {
    const auto& truncate = std::get<TruncateCommand>(command);
    core_->Truncate(truncate.id, truncate.num_tokens, now_ns, &core_outputs_);
  }
}

void SchedulerLoop::Submit(SubmitCommand&& command, int64_t now_ns) {
  const ReqId id = command.spec.id;
  OpenOutput open;
  open.id = id;
  open.options = std::move(command.options);
  open.sink = std::move(command.sink);
  open.stream = command.stream;
  open.prompt_tokens = static_cast<uint32_t>(command.spec.prompt_ids.size());
  open.resumed_ids = command.spec.resumed_ids;
  open.arrival_ns = command.spec.arrival_ns;
  ++taken_;
  taken_tokens_ += open.prompt_tokens;
  const LiveReq live{command.spec.arrival_ns, 0, command.spec.deadline_ns};
  events_.emplace_back(std::move(open));
  const Status added = core_->Add(std::move(command.spec), now_ns);
  if (added.ok()) {
    live_.emplace(id, live);
    next_deadline_ns_ = std::min(next_deadline_ns_, live.deadline_ns);
  } else {
    deps_.metrics->OnRejected(added.code());
    events_.emplace_back(FailOutput{id, added});
  }
}

StatusOr<bool> SchedulerLoop::TakeResults(int64_t now_ns) {
  bool any = false;
  while (true) {
    ASSIGN_OR_RETURN(const std::string_view frame, deps_.results->TryRead());
    if (frame.empty()) return any;
    any = true;
    const Status parsed = ParseStepResult(frame, options_.core.max_running_requests,
                                          options_.core.vocab_size, &result_);
    deps_.results->Release();
    if (!parsed.ok()) {
      Log().error("result frame refused {}", Kv("error", std::string(parsed.message())));
      deps_.metrics->OnRejectedResult();
      OnStepFailed("a result frame was malformed", {});
    } else if (!deps_.epochs->serving() || result_.epoch != deps_.epochs->epoch()) {
      continue;  // of an epoch that is over
    } else if (result_.code == static_cast<uint32_t>(absl::StatusCode::kDeadlineExceeded)) {
      OnStepLost("a rank did not take part in a step in time");
    } else if (result_.code != 0) {
      Log().error("step failed {} {} {}", Kv("step", result_.step_id), Kv("code", result_.code),
                  Kv("error", result_.message));
      OnStepFailed("a step failed", result_.rows);
    } else {
      last_progress_ns_ = now_ns;
      deps_.control->batch.answered_step.store(result_.step_id, std::memory_order_relaxed);
      core_->OnResult(result_, now_ns, &core_outputs_);
      deps_.metrics->OnResult(result_, core_->core().stats());
    }
  }
}

void SchedulerLoop::OnRestart(const std::string& reason) {
  deps_.epochs->Restart(reason);
  deps_.on_lost();
}

// A rank that another epoch overtook, or that is stopped, answers nothing.
void SchedulerLoop::CheckStepTimeout(int64_t now_ns) {
  if (options_.step_timeout_ns == 0 || core_->core().plans_in_flight() == 0 ||
      now_ns - last_progress_ns_ < options_.step_timeout_ns)
    return;
  OnStepLost(absl::StrCat("a step was not answered within ",
                          options_.step_timeout_ns / kNsPerSecond,
                          " s; --watchdog-timeout lets steps take longer, and a smaller "
                          "--chunked-prefill-size makes them shorter"));
}

// All begin anew, but for a request with which steps fail again and again: the one that the worker
// names, or, if it knows none, all of such a step. Who has got a token since is none of them.
void SchedulerLoop::OnStepFailed(const std::string& reason, std::span<const RowResult> blamed) {
  if (!deps_.epochs->serving())
    return OnRestart(reason);  // nobody's plan: there may be no core yet
  ForgiveThoseWithTokens();
  const std::vector<Scheduler::PlannedReq> planned = core_->core().RequestsOfNextResult();
  OnRestart(reason);  // the plans are gone with it
  for (const Scheduler::PlannedReq& req : planned) {
    const auto is_it = [&](const RowResult& row) { return row.slot == req.slot; };
    if (!blamed.empty() && std::ranges::none_of(blamed, is_it)) continue;
    CountStep(req.id, &LiveReq::failed_steps, options_.max_failed_steps);
  }
}

// What the worker computed when it died may be what it died of.
void SchedulerLoop::OnWorkerLost() {
  deps_.on_lost();
  if (core_ != nullptr) CountLostSteps();
}

// All begin anew, as after a death: what takes a rank too long takes it too long again.
void SchedulerLoop::OnStepLost(const std::string& reason) {
  CountLostSteps();
  OnRestart(reason);
}

void SchedulerLoop::CountLostSteps() {
  ForgiveThoseWithTokens();
  for (const Scheduler::PlannedReq& req : core_->core().RequestsOfNextResult())
    CountStep(req.id, &LiveReq::lost_steps, options_.max_lost_steps);
}

// Whose tokens are not handed out yet.
void SchedulerLoop::ForgiveThoseWithTokens() {
  for (const ReqOutput& output : core_outputs_) {
    const auto it = live_.find(output.id);
    if (it != live_.end() && output.token.has_value())
      it->second.failed_steps = it->second.lost_steps = 0;
  }
}

void SchedulerLoop::CountStep(ReqId id, uint32_t LiveReq::*count, uint32_t most) {
  const auto it = live_.find(id);
  if (it == live_.end() || ++(it->second.*count) < most) return;
  if (!core_->Abort(id, Finish::kAbort)) return;  // it has ended
  ReqOutput failed;                               // the core says nothing more of it
  failed.id = id;
  failed.finish = Finish::kError;
  failed.error_code = absl::StatusCode::kInternal;
  failed.error = "the replica's workers failed to run the request repeatedly";
  core_outputs_.push_back(std::move(failed));
}

bool SchedulerLoop::PublishPlan(int64_t now_ns) {
  if (!deps_.epochs->serving()) return false;
  if (core_->core().plans_in_flight() == 0) last_progress_ns_ = now_ns;
  const SchedulerStats before = core_->core().stats();
  if (!core_->PlanStep(now_ns, &plan_)) return false;
  const Status published = deps_.port->Publish(plan_);
  if (!published.ok()) {
    OnStepLost(StrCat("the step ring is stuck: ", published.message()));
    return true;
  }
  deps_.metrics->OnPlan(plan_, before, core_->core().stats(), now_ns);
  ReportBatch(now_ns);
  return true;
}

void SchedulerLoop::ReportBatch(int64_t now_ns) {
  BatchReport& batch = deps_.control->batch;
  const SchedulerStats& stats = core_->core().stats();
  batch.rows.store(static_cast<uint32_t>(plan_.rows.size()), std::memory_order_relaxed);
  batch.tokens.store(static_cast<uint32_t>(plan_.input_ids.size()), std::memory_order_relaxed);
  batch.running.store(stats.running, std::memory_order_relaxed);
  batch.waiting.store(stats.waiting, std::memory_order_relaxed);
  batch.planned_ns.store(now_ns, std::memory_order_relaxed);
  batch.planned_step.store(plan_.step_id, std::memory_order_relaxed);
}

// When the first of `outputs` came, which is one of several tokens that a step brought the request
// if it had a draft: in the time since the one before they came evenly.
int64_t SchedulerLoop::TokenNs(std::span<const ReqOutput> outputs, int64_t last_ns,
                               int64_t now_ns) {
  const auto other = [&](const ReqOutput& o) {
    return o.id != outputs[0].id || !o.token.has_value();
  };
  const auto after = std::find_if(outputs.begin() + 1, outputs.end(), other) - outputs.begin() - 1;
  return last_ns == 0 ? now_ns : now_ns - (now_ns - last_ns) * after / (after + 1);
}

bool SchedulerLoop::HandOutputs(int64_t now_ns, bool results) {
  for (size_t i = 0; i < core_outputs_.size(); ++i) {
    ReqOutput& output = core_outputs_[i];
    auto it = live_.find(output.id);
    if (it != live_.end()) {
      LiveReq& live = it->second;
      if (output.token.has_value()) {
        const int64_t at_ns =
            TokenNs(std::span(core_outputs_).subspan(i), live.last_token_ns, now_ns);
        deps_.metrics->OnToken(live.arrival_ns, live.last_token_ns, at_ns);
        live.last_token_ns = at_ns;
        live.failed_steps = live.lost_steps = 0;
      }
      if (output.finish != Finish::kNone) {
        deps_.metrics->OnFinished(output, live.arrival_ns, now_ns);
        live_.erase(it);
      }
    }
    events_.emplace_back(std::move(output));
  }
  core_outputs_.clear();
  if (now_ns >= next_deadline_ns_) RecomputeDeadline();
  const bool any = !events_.empty();
  deps_.load->Publish(core_->core().stats(), taken_, taken_tokens_);
  // A request that has ended may have given its pages back with a result of no other effect.
  if (any || results) deps_.metrics->OnStats(core_->core().stats());
  if ((any || results) && deps_.flight != nullptr) deps_.metrics->OnFlight(core_->covered_ns());
  deps_.outputs->Push(&events_);
  return any;
}

void SchedulerLoop::RecomputeDeadline() {
  next_deadline_ns_ = INT64_MAX;
  for (const auto& [id, live] : live_)
    next_deadline_ns_ = std::min(next_deadline_ns_, live.deadline_ns);
}

void SchedulerLoop::Beat(int64_t now_ns) {
  deps_.control->scheduler.heartbeat_ns.store(now_ns, std::memory_order_relaxed);
}

int64_t SchedulerLoop::NextWakeNs() const {
  int64_t next = std::min(step_ns_ + kBeatNs, deps_.epochs->NextDeadlineNs());
  if (core_ != nullptr && deps_.epochs->serving()) {
    const int64_t due = core_->core().PlanDueNs();
    if (due > step_ns_) next = std::min(next, due);  // else there was nothing to plan
  }
  if (!live_.empty()) next = std::min(next, next_deadline_ns_);
  return next;
}

}  // namespace flotilla
