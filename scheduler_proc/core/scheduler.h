// The scheduler's core (requirement 001): waiting_queue, running_batch, policies, PrefillAdder,
// radix cache, page allocator. Pure: no I/O, no threads, no clock; the same calls give the same
// plans.
//
// The loop calls, in this order each step: Add / Abort / Truncate for what came in, OnResult for
// each result in order, and PlanStep until it returns false.
//
// Overlap: with max_plans_in_flight 2 the next step is planned while one runs. What that one
// samples is not known yet, so a row goes on with "the last token" (shm/step_plan.h), a request
// that may have ended costs at most one row, and one that ends by its length costs none. Whatever
// needs to know the state for certain waits for the result: retraction, and drafts (draft.h): while
// they pay, nothing is planned ahead.
//
// A slot that became free is closed with the next plan that has rows (not at once: workers need not
// know), or opened again by it, which gives it a fresh state and saves the close. Units: tokens,
// pages of config.page_size tokens, nanoseconds. Threads: one. Errors: Add refuses what can never
// run and names the field; nothing else fails.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/status.h"
#include "scheduler_proc/core/grammar.h"
#include "scheduler_proc/core/page_event.h"
#include "scheduler_proc/core/wait_clock.h"
#include "shm/step_plan.h"
#include "shm/step_result.h"

namespace flotilla {

using ReqId = uint64_t;

struct SchedulerConfig {
  uint32_t num_pages = 0;              // of the KV cache
  uint32_t page_size = 16;             // tokens
  uint32_t max_running_requests = 64;  // = number of slots
  uint32_t max_queued_requests = 2048;
  uint32_t chunked_prefill_size = 512;  // prompt tokens a step, all requests together
  uint32_t max_prefill_tokens = 8192;   // input tokens admitted at once
  uint32_t context_length = 0;          // tokens a request may have in all
  uint32_t vocab_size = 0;
  bool enable_mixed_chunk = true;             // prefill chunks and decodes in one step
  uint32_t max_plans_in_flight = 2;           // 1: no overlap
  uint32_t speculative_num_draft_tokens = 0;  // a row, at most, where that pays (draft.h); 0: none
  // What a step may take when a prompt's chunk goes beside decodes. 0: kPromptStepNs, or a share
  // more than the decodes alone take; prompts longer than a chunk less of either.
  int64_t max_step_ns = 0;
  bool enable_prefix_cache = true;
  std::string eviction_policy = "lru";     // lru | lfu
  std::string schedule_policy = "fcfs";    // a row of schedule_policy.cc
  uint32_t schedule_max_overtakes = 8192;  // admissions after which a request goes first; 0: never
  uint64_t schedule_random_seed = 0;
  double vtc_input_weight = 1, vtc_output_weight = 2;  // service a token, as the paper has it
  // Of priorities: a greater difference preempts.
  uint32_t priority_scheduling_preemption_threshold = 10;
  // Of the remaining max_new_tokens, the share reserved at admission (new_token_ratio.h).
  double init_new_token_ratio = 0.7;
  double min_new_token_ratio_factor = 0.14;
  uint32_t new_token_ratio_decay_steps = 600;
  double schedule_conservativeness = 1;
  uint32_t clip_max_new_tokens = 4096;  // CLIP_MAX_NEW_TOKENS_ESTIMATION
  std::vector<int32_t> eos_ids;
};

enum class Finish : uint32_t { kNone = 0, kStop, kLength, kAbort, kDeadline, kError };

inline const char* FinishName(Finish finish) {
  constexpr const char* kNames[] = {"none", "stop", "length", "abort", "deadline", "error"};
  return kNames[static_cast<size_t>(finish)];
}

// Of an embedding request: prefill only, nothing is sampled.
enum class Pooling : uint32_t { kNone = 0, kLast, kMean };

// A request as the loop hands it over; validated by the front end, checked again here.
struct ReqSpec {
  ReqId id = 0;                     // unique among live requests
  std::vector<int32_t> prompt_ids;  // ≥ 1
  std::vector<int32_t>
      resumed_ids;  // output already delivered elsewhere (resume); counts as output
  SamplingParams sampling;
  std::vector<LogitBias> logit_bias;  // by rising token, each once
  uint32_t max_new_tokens = 0;        // output tokens in all, resumed ones included; 0 if pooled
  Pooling pooling = Pooling::kNone;
  uint32_t min_new_tokens = 0;
  bool ignore_eos = false;
  std::vector<int32_t> stop_token_ids;
  std::shared_ptr<const Grammar> grammar;  // null: any output; else it also decides when to end
  std::string cache_salt;                  // tenant
  int32_t priority = 0;
  int64_t arrival_ns = 0;
  int64_t deadline_ns = INT64_MAX;

  // Those that the workers must know: with min_tokens, which keeps them from being sampled.
  std::span<const int32_t> banned_stop_ids() const {
    if (min_new_tokens == 0) return {};
    return stop_token_ids;
  }
};

// What happened to a request in a step. Tokens come in order, each once, over retractions and
// restarts.
struct ReqOutput {
  ReqId id = 0;
  std::optional<int32_t> token;  // newly generated
  bool has_logprobs = false;
  PositionLogprobs logprobs;
  std::vector<PositionLogprobs> prompt_logprobs;  // next piece; position 0 has none and is not sent
  std::vector<float> embedding;  // with the finish of a pooled request: [hidden_size]
  Finish finish = Finish::kNone;
  int32_t stop_token = -1;  // kStop by eos or a stop token: which. It is also in `token` and counts
                            // in completion_tokens, but is not part of the text
  std::string error;        // kError
  absl::StatusCode error_code = absl::StatusCode::kInternal;  // kError
  uint32_t prompt_tokens = 0;                                 // with finish
  uint32_t cached_tokens = 0;  // with finish: prompt tokens read from the cache at first admission
  uint32_t completion_tokens = 0;  // with finish
  uint32_t computed_tokens = 0;    // with finish: of prompt and output, those from the cache too
  int64_t queued_ns = 0, first_scheduled_ns = 0, first_token_ns = 0;  // with finish; 0: never
  WaitReason wait_reason = WaitReason::kNextStep;  // with finish: what kept it queued the longest
};

struct SchedulerStats {
  uint32_t running = 0, waiting = 0;
  uint32_t ending = 0;  // have ended, but a plan in flight holds their slot and pages
  uint64_t free_pages = 0, evictable_pages = 0, locked_pages = 0, total_pages = 0;
  uint64_t queued_tokens = 0, running_tokens = 0;
  int64_t oldest_queued_ns = 0;  // when the first of those was queued that have not begun; 0: none
  double new_token_ratio = 0;
  // counters
  // (prompt and cached tokens of first admissions; generated ones as sampled, Truncate or not)
  uint64_t prompt_tokens = 0, cached_tokens = 0, generated_tokens = 0;
  uint64_t prefix_queries = 0, prefix_hits = 0;  // tokens, of all admissions
  uint64_t retractions = 0, preemptions = 0, steps = 0, aborts = 0;
  uint64_t draft_tokens = 0, accepted_draft_tokens = 0;  // verified; those of them that were right
  bool operator==(const SchedulerStats&) const = default;
};

// InvalidArgument naming the field; num_pages 0 is allowed (BeginEpoch sets it).
Status ValidateSchedulerConfig(const SchedulerConfig& config);

class Scheduler {
 public:
  // The configuration must be valid.
  explicit Scheduler(const SchedulerConfig& config);
  ~Scheduler();
  Scheduler(const Scheduler&) = delete;
  Scheduler& operator=(const Scheduler&) = delete;

  // ResourceExhausted: the queue is full. InvalidArgument: could never run; names the field.
  // Unavailable: the number of pages is not known yet (before the first BeginEpoch).
  // Sets sampling.min_tokens_until from min_new_tokens.
  Status Add(ReqSpec spec, int64_t now_ns);
  // The request ends with `reason` (kAbort or kDeadline): appends its last ReqOutput to outputs, if
  // there are any, and no other follows. False if unknown. Its slot and pages are free once the
  // plan in flight (if it is in one) has come back: within two steps.
  bool Abort(ReqId id, Finish reason, std::vector<ReqOutput>* outputs = nullptr);
  // A stop string ended inside output token number `num_tokens` - 1: what lies past is discarded,
  // as if it had stopped at once. Appends the final ReqOutput (kStop). False if unknown (it has
  // ended before; then the caller cuts its output).
  bool Truncate(ReqId id, uint32_t num_tokens, int64_t now_ns, std::vector<ReqOutput>* outputs);
  // Requests whose deadline is over are ended with kDeadline.
  void ExpireDeadlines(int64_t now_ns, std::vector<ReqOutput>* outputs);

  // Fills *plan (step_id, epoch, kForward) with the next step, reusing its memory. False: nothing
  // to do, or nothing before the next result.
  bool PlanStep(int64_t now_ns, StepPlan* plan);
  // When PlanStep is best called: at once if nothing is in flight; else shortly before the step
  // that runs is expected to end, so that what arrives meanwhile need not wait a step longer.
  // INT64_MAX: after the next result.
  int64_t PlanDueNs() const;
  // The result of the oldest plan in flight. A result of another epoch or step is ignored. A failed
  // step, or rows that do not answer the plan, end the plan's requests with kError.
  void OnResult(const StepResult& result, int64_t now_ns, std::vector<ReqOutput>* outputs);

  // All KV is gone (a rank died): plans in flight are forgotten, the radix tree emptied, running
  // requests retracted to the front of the queue with their tokens. Plans carry `epoch` from now
  // on. num_pages may change at the first call only.
  void BeginEpoch(uint32_t epoch, uint32_t num_pages);

  // Before the first BeginEpoch: later calls append to *log what the prefix cache gains or loses.
  // The caller empties it.
  void SetPageLog(PageLog* log);

  // What the last PlanStep found that keeps those who wait from running.
  WaitReason wait_reason() const;
  bool HasWork() const;  // something waits or runs
  uint32_t plans_in_flight() const;
  // Those of the plan whose result comes next; empty if none is in flight.
  struct PlannedReq {
    ReqId id = 0;
    uint32_t slot = 0;
  };
  std::vector<PlannedReq> RequestsOfNextResult() const;
  const SchedulerStats& stats() const;
  // Appends all that later calls depend on, but grammars: a core that is restored from it answers
  // them as this one does, and saves the same bytes. They name token ids and tenants.
  void Save(std::string* out) const;
  // The grammar of a request that has one; null: not known.
  using GrammarSource = std::function<std::shared_ptr<const Grammar>(const ReqSpec&)>;
  // DataLoss: `config` with these bytes is not what any core saves (or is larger than any can be).
  static StatusOr<std::unique_ptr<Scheduler>> Restore(const SchedulerConfig& config,
                                                      std::string_view bytes,
                                                      const GrammarSource& grammars = nullptr);
  uint32_t epoch() const;
  // Those that wait or run, by arrival, as they were added; output that they came with is part of
  // num_output.
  struct Progress {
    ReqSpec spec;
    uint32_t num_output = 0;
    int64_t queued_ns = 0, first_scheduled_ns = 0, first_token_ns = 0;  // 0: not yet
  };
  std::vector<Progress> LiveRequests() const;
  // free + evictable + locked == total, and every page has exactly its owners. For tests and
  // DCHECK.
  Status CheckLedger() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace flotilla
