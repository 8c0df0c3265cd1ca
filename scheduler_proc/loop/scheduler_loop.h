// The scheduler's event loop (requirement 001): one Step() drains the inbox, takes results, plans
// and publishes the next step, and hands outputs to the output side.
//
// It never blocks on text, sockets or clients. Run() sleeps on the control block's doorbell, which
// everyone rings: inbox, rank 0 after a result, launcher. Threads: all methods but Stop() on one.
// Errors: fatal ones end Run (a rank without KV memory, a corrupt ring); the process then ends.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "common/base/clock.h"
#include "scheduler_proc/core/scheduler.h"
#include "scheduler_proc/exchange/cache_board.h"
#include "scheduler_proc/exchange/inbox.h"
#include "scheduler_proc/exchange/load_board.h"
#include "scheduler_proc/exchange/output_event.h"
#include "scheduler_proc/flight/recorded_scheduler.h"
#include "scheduler_proc/loop/epoch_manager.h"
#include "scheduler_proc/loop/loop_metrics.h"
#include "shm/ring.h"

namespace flotilla {

class SchedulerLoop {
 public:
  struct Options {
    SchedulerConfig core;  // num_pages comes from the ranks
    // A request that was in so many failed steps since its last token is ended,
    uint32_t max_failed_steps = 3;
    // or in so many in which a worker died or did not answer: more, since that mostly is somebody
    // else's fault.
    uint32_t max_lost_steps = 8;
    // A plan that is not answered for this long is given up: next epoch. 0: never.
    int64_t step_timeout_ns = 120 * kNsPerSecond;
  };
  struct Deps {
    const Clock* clock = nullptr;
    ReplicaControlBlock* control = nullptr;
    EpochManager* epochs = nullptr;
    StepPort* port = nullptr;
    RingReader* results = nullptr;
    Inbox* inbox = nullptr;
    OutputQueue* outputs = nullptr;
    LoadBoard* load = nullptr;
    LoopMetrics* metrics = nullptr;
    FlightRingWriter* flight = nullptr;  // null: nothing is recorded
    CacheBoard* cache = nullptr;         // null: nobody wants to know what is cached
    // The replica begins to serve; before the first time the core is not there and nothing may be
    // submitted. An error ends Run, before anything is computed.
    std::function<Status(uint32_t num_pages)> on_serving;
    // It stopped.
    std::function<void()> on_lost;
    // LoadBoard's `recovering` has changed, or is known for the first time.
    std::function<void(bool recovering)> on_recovering;
  };
  SchedulerLoop(const Options& options, Deps deps);

  // Steps until Stop(); OK after it.
  Status Run();
  void Stop();
  // One turn. True: it did something, more may be due at once.
  StatusOr<bool> Step();

  // Null before the first epoch.
  const Scheduler* core() const { return core_ == nullptr ? nullptr : &core_->core(); }

 private:
  struct LiveReq {
    int64_t arrival_ns = 0;
    int64_t last_token_ns = 0;
    int64_t deadline_ns = INT64_MAX;
    uint32_t failed_steps = 0, lost_steps = 0;  // since last_token_ns
  };
  Status PollEpoch(int64_t now_ns);
  bool DrainInbox(int64_t now_ns);
  void Take(Command&& command, int64_t now_ns);
  void Submit(SubmitCommand&& command, int64_t now_ns);
  void CheckStepTimeout(int64_t now_ns);
  StatusOr<bool> TakeResults(int64_t now_ns);
  void OnRestart(const std::string& reason);
  void OnStepFailed(const std::string& reason, std::span<const RowResult> blamed);
  void OnWorkerLost();
  void OnStepLost(const std::string& reason);
  void CountLostSteps();
  void ForgiveThoseWithTokens();
  void CountStep(ReqId id, uint32_t LiveReq::*count, uint32_t most);
  bool PublishPlan(int64_t now_ns);
  void ReportBatch(int64_t now_ns);
  static int64_t TokenNs(std::span<const ReqOutput> outputs, int64_t last_ns, int64_t now_ns);
  bool HandOutputs(int64_t now_ns, bool results);
  void RecomputeDeadline();
  void WriteKeyFrameIfDue();
  void ReportRecovering();
  void Beat(int64_t now_ns);
  int64_t NextWakeNs() const;

  const Options options_;
  const Deps deps_;
  std::unique_ptr<RecordedScheduler> core_;
  std::unordered_map<ReqId, LiveReq> live_;
  uint64_t taken_ = 0, taken_tokens_ = 0;  // of submits, for the LoadBoard
  int64_t step_ns_ = 0;                    // now, for the last Step
  int64_t last_progress_ns_ = 0;  // a plan was published while none was in flight, or a result came
  std::optional<bool> recovering_;        // as reported
  int64_t next_deadline_ns_ = INT64_MAX;  // no live request's deadline is earlier
  // Reused each step.
  std::vector<Command> commands_;
  size_t next_command_ = 0;  // those before it are done
  std::vector<ReqOutput> core_outputs_;
  std::vector<OutputEvent> events_;
  PageLog page_log_;
  StepPlan plan_;
  StepResult result_;
  std::atomic<bool> stop_{false};
};

}  // namespace flotilla
