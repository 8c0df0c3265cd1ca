// One rank's model: start-up in the documented order, then Execute(plan) → result.
//
// Start-up (requirement 004): comm (the caller's collective) → model → weights → warm-up (profile;
// on a device with memory of its own, the largest step) → KV cache sized; then, once the scheduler
// has chosen the number of pages, Reset: KV cache allocated → probe forward → plans of all buckets
// of steps (padding_policy.h), or of a device graphs of them. Each step is logged with its time and
// bytes.
//
// Units: bytes, pages, tokens. Threads: one. Ownership: everything in Deps outlives the runner.
// Errors: Create: InvalidArgument / NotFound (the model or a flag), ResourceExhausted (memory),
// each with the way out. Execute: Aborted and DeadlineExceeded come from the collective (the step
// is lost, all ranks Reset); InvalidArgument for a plan that does not fit the slots (all ranks
// alike, nothing was run); DataLoss for logits that are not finite; anything else ends the process.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "worker_proc/model/model.h"
#include "worker_proc/runner/device_sampler.h"
#include "worker_proc/runner/forward_batch.h"
#include "worker_proc/runner/kv_cache.h"
#include "worker_proc/runner/logits_dump.h"
#include "worker_proc/runner/padding_policy.h"
#include "worker_proc/runner/result_pool.h"
#include "worker_proc/runner/sampler.h"
#include "worker_proc/runner/slot_table.h"
#include "worker_proc/runner/stepping_out.h"

namespace flotilla {

struct ModelRunnerOptions {
  uint32_t page_size = 16;             // tokens
  uint32_t context_length = 0;         // tokens; 0: the model's
  uint32_t max_running_requests = 64;  // slots
  uint32_t chunked_prefill_size = 512;
  uint64_t kv_cache_memory = 0;  // of the replica, all ranks; 0: choose
  // A respawned rank: the other ranks have their KV cache, whose number of pages stays.
  bool kv_pages_chosen = false;
  uint32_t first_local_rank = 0, local_ranks = 0;  // as HostKvRequest's
  std::function<uint64_t()> available_memory;      // bytes that can still be had, now
  // Of a device with memory of its own, now; the largest step has run before it is asked for the KV
  // cache's sake. Empty: steps use the host's memory.
  std::function<DeviceMemory()> device_memory;
  std::string logits_dump;  // rank 0 only; empty: none
  // Rank 0: sees what the dump gets, in the order of the positions. Empty: none.
  std::function<Status(uint32_t slot, uint32_t position, std::span<const float>)> on_logits;
  std::vector<int32_t> eos_ids;  // masked by min_tokens
  // As PaddingOptions'.
  std::vector<uint32_t> precompile_token_paddings, precompile_bs_paddings;
  bool disable_precompile = false;  // a bucket's first step prepares its plan
};

class ModelRunner {
 public:
  struct Deps {
    const Checkpoint* checkpoint = nullptr;
    Backend* backend = nullptr;
    Collective* collective = nullptr;
    const Heartbeat* heartbeat = nullptr;
    const Clock* clock = nullptr;
    const SamplerKernels* sampler_kernels = nullptr;
  };
  static StatusOr<std::unique_ptr<ModelRunner>> Create(const Deps& deps,
                                                       const ModelRunnerOptions& options);

  uint64_t max_kv_pages() const { return max_kv_pages_; }
  uint64_t kv_page_bytes() const;  // on this rank
  uint64_t weight_bytes_read() const { return weight_bytes_read_; }
  StepPlanLimits limits() const;

  // Allocates and touches the KV cache (num_pages; 0, or as many as before: keeps it), which may
  // take seconds a GiB: before Collective::Reset, so that nobody waits for it within an operation.
  Status AllocateKvCache(uint32_t num_pages);
  // All ranks, after Collective::Reset: forgets all slots and runs the probe. Returns the hash of
  // its logits' bits (rank 0; 0 elsewhere).
  StatusOr<uint64_t> Reset();

  // Rank 0 fills result->rows, after DataLoss with the row whose logits are bad; times and ids are
  // the caller's business. Replaces kLastToken in the plan, and leaves every rank with the tokens
  // that were sampled.
  Status Execute(StepPlan* plan, StepResult* result);

  // ---- Steps that a device is given while it still runs the one before, where it samples itself
  // and ranks' exchanges are queued. Execute, Reset and AllocateKvCache only while none is begun.
  static constexpr size_t kMaxBegun = 2;
  // False: the step must be executed, once those begun have ended; nothing has happened. All ranks
  // say the same. Errors: those of Execute, for which the step has not begun; after any other the
  // runner is of no use any more. Plan and result must live until End.
  StatusOr<bool> Begin(StepPlan* plan, StepResult* result);
  size_t num_begun() const { return num_begun_ - num_ended_; }
  // Whether the oldest is done.
  StatusOr<bool> Done() { return device_sampler_->Done(); }
  // The oldest, which is done, as if Execute had returned.
  Status End();

  // Of the step that was executed or ended last.
  ForwardMode last_mode() const { return last_mode_; }
  // Steps whose plan was not prepared.
  uint64_t plan_misses() const { return plan_misses_; }

 private:
  ModelRunner(const Deps& deps, const ModelRunnerOptions& options, TpPartition partition,
              PaddingPolicy padding);
  Status LoadModel();
  Status CheckWeightsFit() const;
  Status CheckContextFits() const;
  Status RunLargestStep();
  StepPlan StepOfShape(const PlanShape& shape, bool decodes) const;
  Status RunForNothing(const StepPlan& plan);
  std::vector<uint64_t> KvPageBytes() const;  // of each rank
  StatusOr<uint64_t> KvPagesThatFit(std::vector<uint64_t> page_bytes) const;
  Status SizeKvCache();
  uint32_t logits_tile() const;
  StatusOr<uint64_t> Probe();
  // Of a bucket: room for its forward, its logits and the sampler.
  void PreparePlan(size_t bucket);
  void PrepareAllPlans();
  // Forward, then the head over logits_rows in tiles; on rank 0 visit(rows, logits), whose errors
  // keep it from being called again.
  using VisitTile = absl::FunctionRef<Status(std::span<const LogitsRow>, Tensor)>;
  Status Run(VisitTile visit);
  StatusOr<Tensor> RunForward();
  // The same for each row: visit(row, logits), which are on the host.
  using VisitRow = absl::FunctionRef<Status(const LogitsRow&, std::span<float>)>;
  Status RunOnHost(VisitRow visit);
  Status UseLogits(const StepPlan& plan, const LogitsRow& row, std::span<float> logits,
                   StepResult* result);
  // What a tile's rows ask of the device's sampler, and its answers.
  struct Draws {
    std::vector<LogitsRow> rows;
    std::vector<SampleQuery> queries;
    std::vector<int32_t> tokens;             // of queries
    std::vector<PositionLogprobs> logprobs;  // of rows: of a prompt's token, or beside a draft's
  };
  void AskFor(const StepPlan& plan, std::span<const LogitsRow> rows, StepResult* result,
              Draws* draws) const;
  // `status`: the sampler's.
  Status UseDraws(const StepPlan& plan, Draws* draws, const Status& status, StepResult* result,
                  std::optional<uint32_t>* bad_slot);
  // Slots and batch_ get the plan, the result its rows.
  Status PrepareStep(StepPlan* plan, StepResult* result);
  // All ranks, at the beginning of an epoch.
  Status AgreeWhetherStepsBegin();
  bool MayBegin(const StepPlan& plan) const;
  // The step's status, and what its result says then.
  static Status Finished(const Status& status, std::optional<uint32_t> bad_slot,
                         StepResult* result);
  // Of a row with a draft: whether this token of it still counts, all before having been right;
  // then the one that was sampled last is accepted.
  bool TakeUpDraft(const StepPlan& plan, const LogitsRow& row, RowResult* out);
  // The row's draw, of the plan that runs.
  SampleInput InputOf(const StepPlan& plan, const LogitsRow& row) const;
  // After Run, on rank 0: hidden states into the slots' sums and the embeddings that are due.
  Status Pool(const StepPlan& plan, StepResult* result, std::optional<uint32_t>* bad_slot);
  Status PoolRow(const PlanRow& row, uint32_t first_token, RowResult* out);
  // Rank 0 tells the others what it sampled: their next plan may say "the last token".
  Status ShareTokens(const StepPlan& plan, const StepResult& result);
  void FindMasks(const StepPlan& plan);
  bool is_root() const { return partition_.rank == 0; }

  const Deps deps_;
  const ModelRunnerOptions options_;
  const TpPartition partition_;
  const PaddingPolicy padding_;
  const ModelConfig& config_;
  const uint32_t context_length_;
  SteppingOut model_collective_;
  std::unique_ptr<Model> model_;
  uint64_t weight_bytes_read_ = 0;
  uint64_t graph_bytes_ = 0;  // kept back for graphs
  uint64_t max_kv_pages_ = 0;
  uint32_t num_pages_ = 0;  // allocated

  SlotTable slots_;
  ForwardBatch batch_;
  Sampler sampler_;
  DeviceSampler* device_sampler_ = nullptr;  // null: sampler_ draws, on rank 0
  bool begins_steps_ = false;                // the same on all ranks
  Draws draws_;                              // of the step that is executed
  struct Begun {
    StepPlan* plan = nullptr;
    StepResult* result = nullptr;
    ForwardMode mode = ForwardMode::kIdle;
    Draws draws;
    std::optional<Status> sampled;  // at once, since it could not be begun
  };
  Begun begun_[kMaxBegun];
  uint64_t num_begun_ = 0;  // since the start; a step's number is num_begun_ after it
  uint64_t num_ended_ = 0;
  ForwardMode last_mode_ = ForwardMode::kIdle;
  ResultPool results_;
  std::vector<std::span<const uint32_t>> row_masks_;  // of the plan that runs; empty: no mask
  std::optional<LogitsDump> dump_;
  std::vector<uint32_t> tile_rows_;
  std::vector<int32_t> sampled_;
  std::vector<bool> prepared_;  // of each bucket
  uint64_t plan_misses_ = 0;
};

}  // namespace flotilla
