// A rank's loop: reads plans from the step ring, executes them, and on rank 0 writes results and
// rings the scheduler's doorbell. Follows the epochs of shm/replica_control.h.
//
// Where the device samples itself, a step is begun as soon as its plan is there, behind the one
// that the device still runs (ModelRunner::Begin): then it does not wait between them. Results go
// out in the order of the steps.
//
// Run() publishes the report, becomes kLoaded, waits to be admitted, and serves until `stop` is set
// or a shutdown plan comes. After a step lost to the collective the rank waits for the next reset;
// of one that took too long (a rank stalled) rank 0 tells the scheduler, of a new epoch it need
// not. A plan that is refused is answered with its status code and changes nothing.
//
// Threads: one runs Run(); anyone may set `stop`. Ownership: everything in Deps outlives the loop.
// Errors: Run returns what ends the process.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <string>
#include <string_view>

#include "common/base/clock.h"
#include "shm/collective.h"
#include "shm/replica_control.h"
#include "shm/ring.h"
#include "worker_proc/runner/model_runner.h"
#include "worker_proc/runner/worker_metrics.h"

namespace flotilla {

class WorkerLoop {
 public:
  struct Deps {
    const ReplicaControl* control = nullptr;
    const Segment* step_ring = nullptr;
    RingWriter* result_ring = nullptr;  // rank 0; null elsewhere
    Collective* collective = nullptr;
    ModelRunner* runner = nullptr;
    Backend* backend = nullptr;
    WorkerMetrics* metrics = nullptr;
    const Heartbeat* heartbeat = nullptr;
    const Clock* clock = nullptr;
    const std::atomic<bool>* stop = nullptr;
    WaitPolicy wait;
  };
  explicit WorkerLoop(const Deps& deps);

  Status Run();

 private:
  void PublishReport();
  bool WaitAdmitted();  // false: stopped
  Status HandlePlan();
  Status HandleReset();
  Status JoinEpoch();
  Status HandleForward();
  // The next frame of the step ring, before kPollNs have passed; steps that end meanwhile are
  // answered.
  StatusOr<std::string_view> NextFrame(RingReader* reader);
  struct Step {
    StepPlan plan;
    StepResult result;
    int64_t begin_ns = 0;
  };
  // Which the next plan becomes; those before it, as many as the runner has, are begun.
  Step& next() { return steps_[next_]; }
  bool IsRunning() const { return deps_.runner->num_begun() > 0; }
  // Waits for the oldest step that is begun, and answers it.
  Status EndStep();
  Status EndAllSteps();
  // Of a step that is over: its status, times and metrics; then SendResult, where there is one.
  Status AnswerStep(Step* step, const Status& status);
  // Rank 0: the step's result with this status goes to the scheduler, who is owed a ring of its
  // doorbell.
  Status SendResult(Step* step, const Status& status);
  void RingIfOwed();
  void SetState(ProcessState state);

  const Deps deps_;
  const uint32_t rank_;
  const uint32_t incarnation_;
  ProcessSlot* const slot_;
  uint32_t joined_epoch_ = 0;  // 0: none; forwards of other epochs are ignored
  bool shutdown_ = false;
  bool owed_ring_ = false;
  std::array<Step, ModelRunner::kMaxBegun + 1> steps_;
  size_t next_ = 0;
  int64_t last_end_ns_ = 0;
  std::string frame_;
};

}  // namespace flotilla
