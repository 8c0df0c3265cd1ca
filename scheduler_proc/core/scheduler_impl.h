// The scheduler's state and the steps of its event loop; scheduler.h is the interface.
//
// A request is in exactly one place: waiting_queue; running_batch (it has a slot); or ending (it
// has told its end, but the plan in flight still runs it, so its slot and pages are held until the
// result). Private to scheduler_proc/core.
//
// Threads: one. Source: SGLang's Scheduler (requirement 001).
#pragma once

#include <array>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "scheduler_proc/core/buffer_pool.h"
#include "scheduler_proc/core/kv_pool.h"
#include "scheduler_proc/core/new_token_ratio.h"
#include "scheduler_proc/core/prefill_adder.h"
#include "scheduler_proc/core/req_pool.h"
#include "scheduler_proc/core/schedule_batch.h"
#include "scheduler_proc/core/scheduler.h"
#include "scheduler_proc/core/waiting_queue.h"

namespace flotilla {

// Without mixed batches prefill goes first, but decoding gets a step after so many.
inline constexpr uint32_t kMaxPrefillStepsInARow = 8;
// Requests passed over in one step because they wait for another's prefix.
inline constexpr uint32_t kMaxHeldBackInAStep = 128;
inline constexpr uint32_t kMaxPlansInFlight = 2;
// Beside more that run nothing is drafted: a step's time is then its tokens' time anyway.
inline constexpr uint32_t kMaxDraftingRequests = 32;
// The next step is planned so long before the running one should end: a third of it, at least 2 ms.
inline constexpr int64_t kMinPlanLeadNs = 2'000'000;
inline constexpr int64_t kPlanLeadShare = 3;
// With max_step_ns 0 prompts may add such a share to the time of the decodes beside them, long ones
// less,
inline constexpr double kPromptShare = 1, kLongPromptShare = 0.35;
// or, with few decodes, as much as makes the step so long: 30 tokens a second are more than one
// reads. Long ones for each prompt that waits or is computed 15 ms, up to all of it.
inline constexpr int64_t kPromptStepNs = 33'000'000, kLongPromptStepNs = 15'000'000;
// So many times as many prompts as decodes are not limited.
inline constexpr int64_t kMostPromptsADecode = 2;
// Nor are several of which one has waited so long for its first token: short steps have become
// dear.
inline constexpr int64_t kLongWaitNs = 1'500'000'000;

// The slots of the workers. A freed slot is closed with the next plan, unless that opens it again:
// opening gives a slot a fresh state whatever it held.
class FreeSlots {
 public:
  explicit FreeSlots(uint32_t num_slots) : close_pending_(num_slots) { Reset(); }
  void Reset();
  bool full() const { return free_.empty(); }
  uint32_t num_free() const { return static_cast<uint32_t>(free_.size()); }
  uint32_t Take();
  void Free(uint32_t slot, bool opened);
  void MarkOpened(uint32_t slot) { close_pending_[slot] = false; }
  void MoveClosesTo(std::vector<uint32_t>* closes);

  // For snapshot.cc, in both directions; after loading, Settle says whether such slots can be
  // beside those in use (by slot: 1, else 0).
  template <typename Archive, typename Self>
  static void Fields(Archive& field, Self& self) {
    field(self.free_), field(self.closes_);
  }
  bool Settle(const std::vector<uint8_t>& used);

 private:
  std::vector<uint32_t> free_;
  std::vector<uint8_t> close_pending_;  // by slot
  std::vector<uint32_t> closes_;
};
static_assert(sizeof(FreeSlots) == 72);  // Fields and Settle know all of it

struct Scheduler::Impl {
  explicit Impl(const SchedulerConfig& config);

  // requests.cc: what comes in and how a request ends.
  Status Add(ReqSpec spec, int64_t now_ns);
  bool Abort(ReqId id, Finish reason, std::vector<ReqOutput>* outputs);
  bool Truncate(ReqId id, uint32_t num_tokens, int64_t now_ns, std::vector<ReqOutput>* outputs);
  void ExpireDeadlines(int64_t now_ns, std::vector<ReqOutput>* outputs);
  void ForgetOldDeadlines();
  void BeginEpoch(uint32_t epoch, uint32_t num_pages);
  Status Validate(const ReqSpec& spec) const;
  Status ValidatePooled(const ReqSpec& spec) const;
  // Tokens at which a request ends with kLength.
  uint32_t MaxTotal(size_t prompt_len, uint32_t max_new_tokens) const;
  void FillFinish(const Req& req, Finish finish, ReqOutput* output) const;
  void End(Req* req);
  void ReleaseSlotAndPages(Req* req);
  void Forget(Req* req);  // the last use of the pointer

  // plan_step.cc: the next batch.
  bool PlanStep(int64_t now_ns, StepPlan* plan);
  void GetNextBatchToRun(int64_t now_ns, ScheduleBatch* batch, StepPlan* plan);
  void GetNewBatchPrefill(int64_t now_ns, ScheduleBatch* batch);
  bool UpdateRunningBatch(ScheduleBatch* batch, StepPlan* plan);
  void SummarizeRunning(const ScheduleBatch& batch);
  bool no_pages() const { return batch_is_full && !new_token_ratio.FellSince(full_at_ratio); }
  bool may_admit() const { return !no_pages() && !waiting_queue.empty() && !slots.full(); }
  StepBudget ChunkBudget(const ScheduleBatch& decodes, bool admits, int64_t now_ns) const;
  WaitReason AdmitWaiting(int64_t now_ns, PrefillAdder* adder);
  void Admit(Req* req, int64_t now_ns);
  void Retract(Req* req);
  void BeginPlan(StepPlan* plan) const;
  void FillRows(const ScheduleBatch& batch, StepPlan* plan);
  void TakeBack(const ScheduleBatch& batch, const StepPlan& plan);
  void FillOpen(const Req& req, uint32_t start, StepPlan* plan);
  void FillRow(const BatchRow& row, StepPlan* plan);

  // preempt.cc: who runs gives way to who waits.
  bool RunsBefore(const Req& a, const Req& b) const;
  bool GivesWay(const Req& running, const Req& waiting) const;
  bool PreemptRunning(ScheduleBatch* batch);
  size_t NumKept(ScheduleBatch* batch);
  bool PrefixIsBeingComputed(const Req& waiting) const;

  // process_result.cc: what a batch brought.
  void OnResult(const StepResult& result, int64_t now_ns, std::vector<ReqOutput>* outputs);
  std::string CheckResult(const ScheduleBatch& batch, const StepResult& result);
  bool IsOfDraft(const BatchRow& row, const std::vector<int32_t>& accepted);
  void ProcessRow(const BatchRow& row, const RowResult& result, int64_t now_ns,
                  std::vector<ReqOutput>* outputs);
  Finish TakeToken(Req* req, int32_t token, int64_t now_ns, ReqOutput* output);
  void ForgetEnded(Req* req);
  void FailRow(const BatchRow& row, const std::string& error, std::vector<ReqOutput>* outputs);
  void AppendPromptLogprobs(Req* req, const RowResult& result, ReqOutput* output);
  Finish CheckFinished(const Req& req, int32_t token) const;

  // speculate.cc: drafts of what is likely to follow.
  bool drafts() const {
    return config.speculative_num_draft_tokens > 0 && running_batch.size() <= kMaxDraftingRequests;
  }
  bool WaitsForDrafts() const;
  double LeastDraftRate() const;
  uint32_t MostDraftTokens(const Req& req, uint32_t num_drafted) const;
  uint32_t TakeDraft(Req* req, double least_right, const ScheduleBatch& batch);
  static void AppendDraft(const Req& req, uint32_t num_tokens, std::vector<int32_t>* to);
  void OnDraftResult(const BatchRow& row, const RowResult& result);
  bool MayDraft(const Req& req) const;
  void LookForDraft(Req* req) const;

  // follow_grammar.cc: structured output.
  Status StartGrammar(const Grammar& grammar, std::span<const int32_t> output,
                      std::unique_ptr<GrammarMatcher>* matcher, std::vector<uint32_t>* mask) const;
  Finish FollowGrammar(Req* req, int32_t token, ReqOutput* output) const;
  uint32_t FollowDraft(const Req& req, uint32_t num_tokens);
  bool WaitsForGrammars(const ScheduleBatch& batch) const;

  // snapshot.cc, snapshot_load.cc.
  class Loader;
  void Save(std::string* out) const;
  Status Restore(std::string_view bytes, const GrammarSource& grammars);

  const SchedulerConfig config;
  uint32_t epoch = 0;
  bool epoch_begun = false;
  uint64_t last_step_id = 0;
  uint64_t next_seq = 0;

  ReqPool pool;
  BufferPool<int32_t> token_buffers;      // a request's token_ids move there when it gets a slot
  absl::flat_hash_map<ReqId, Req*> reqs;  // those that may still give output
  KvPool kv;
  FreeSlots slots;

  WaitingQueue waiting_queue;
  WaitClock wait_clock;
  WaitReason wait_reason = WaitReason::kNextStep;  // of the batch being planned
  NewTokenRatio new_token_ratio;
  std::vector<Req*> running_batch;  // by arrival (or priority): the last is retracted first
  std::optional<RunningSummary> running_summary;  // of the batch being planned, once it is known
  std::vector<Req*> ending;
  std::vector<Req*> preempting;       // scratch of NumKept
  std::vector<int32_t> draft;         // scratch of FollowDraft and IsOfDraft
  std::vector<uint32_t> draft_masks;  // of the row being planned, if it has a draft
  // No pages for who is next: until some are given back, others cache what it may read, or the
  // ratio falls.
  bool batch_is_full = false;
  double full_at_ratio = 0;  // new_token_ratio's value then

  // Batches whose result is to come, oldest first.
  std::array<ScheduleBatch, kMaxPlansInFlight> result_queue;
  uint32_t num_in_flight = 0;
  ForwardMode last_batch_mode = ForwardMode::kIdle;
  uint32_t prefill_steps_in_a_row = 0;

  StepCost step_cost;
  int64_t step_begin_ns = 0;                         // of the oldest plan in flight, about
  std::vector<std::pair<int64_t, ReqId>> deadlines;  // heap, soonest first; ended ones stay a while
  mutable SchedulerStats stats;
};

}  // namespace flotilla
