// Decides which prompt tokens go into the next step: first what runs and is not yet computed, then
// waiting requests, within the step's budgets. Lives for one step.
//
// Budgets: chunked_prefill_size tokens computed a step, those of drafts included, and beside
// decodes as many as StepBudget leaves time for, but always kMinChunkTokens; max_prefill_tokens of
// the admitted prompts, rounded up to pages (the first is always allowed); kMaxOpenWords of what a
// plan tells about newly opened slots (the first is always allowed); kMaxEmbedRows prompts that end
// in an embedding; and pages: a request is admitted if what is free and evictable holds its tokens
// and the batch's new_token_ratio × min(remaining max_new_tokens, clip_max_new_tokens) more, beside
// the same for all that run. If nothing runs, it is admitted anyway (Scheduler::Add refused what
// can never fit).
//
// Units: tokens, pages. Threads: one. Errors: none; AddReqResult says why not.
// Source: SGLang's PrefillAdder (requirement 001), counted in pages.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>

#include "scheduler_proc/core/kv_pool.h"
#include "scheduler_proc/core/schedule_batch.h"
#include "scheduler_proc/core/scheduler.h"

namespace flotilla {

enum class AddReqResult : uint32_t {
  kContinue,  // added, there may be room for more
  kNoToken,   // no pages
  kOther,     // a token budget of the step is used up
  kHeldBack,  // a row of this step or of one in flight computes a prefix that it can read later
};

// A request is held back for at least so many shared tokens: a common first word is no reason.
inline constexpr uint32_t kInBatchPrefixTokens = 32;
// `computing` computes, in steps to come too, more of req's prompt than req can read from the
// cache.
bool ComputesPrefixOf(const KvPool& kv, const Req& computing, const Req& req);
bool ComputesPrefixOf(const KvPool& kv, const ScheduleBatch& batch, const Req& req);  // one of it
// Words of 4 bytes, histories, prefixes' pages and logit biases together: a plan must fit the step
// ring's frame.
inline constexpr uint32_t kMaxOpenWords = 64 * 1024;
// A result must fit the result ring's frame (2 MiB): so many vectors, of up to 16,384 elements.
inline constexpr uint32_t kMaxEmbedRows = 24;

// However little time there is: a prompt must get on.
inline constexpr uint32_t kMinChunkTokens = 4;

// Time for prompt tokens in a step.
struct StepBudget {
  const StepCost* cost = nullptr;
  int64_t ns = INT64_MAX;
  int64_t long_ns = INT64_MAX;  // of it, for prompts that need more than one whole chunk

  bool limits() const { return ns != INT64_MAX; }
  int64_t For(const Req& req) const { return req.long_prompt ? std::min(ns, long_ns) : ns; }
  void Take(const Req& req, int64_t taken_ns) {
    ns -= taken_ns;
    if (req.long_prompt) long_ns -= taken_ns;
  }
};

// Pages that req is expected to need beyond those it has; ratio: of the tokens that it may still
// generate.
inline uint32_t ReservedPages(const SchedulerConfig& config, const KvPool& kv, double ratio,
                              const Req& req) {
  const uint32_t remaining =
      std::min(req.max_total - req.planned_len(), config.clip_max_new_tokens);
  const double share = ratio * remaining;
  auto expected = static_cast<uint32_t>(share);
  expected += expected < share;  // up; std::ceil is a call, for each who runs
  const uint32_t pages = kv.PagesFor(uint64_t{req.planned_len()} + expected);
  return pages - std::min(pages, req.num_pages);
}

// Of those that run, before a step takes new ones.
struct RunningSummary {
  uint64_t reserved_pages = 0;
  uint32_t num_running = 0, num_prefilling = 0;
  // Since when the first of those waits that have no token yet, but for the background's.
  int64_t waits_since_ns = INT64_MAX;

  void Add(const Req& req, uint32_t reserved) {
    reserved_pages += reserved;
    ++num_running;
    if (!req.is_decode()) AddPrefilling(req);
  }
  void AddPrefilling(const Req& req) {
    ++num_prefilling;
    if (req.num_output() == 0 && req.spec.priority >= 0)
      waits_since_ns = std::min(waits_since_ns, req.queued_ns);
  }
};

class PrefillAdder {
 public:
  PrefillAdder(const SchedulerConfig& config, KvPool* kv, const RunningSummary& running,
               std::span<const ScheduleBatch> in_flight, const StepBudget& budget,
               ScheduleBatch* batch);

  bool budget_left() const {
    return rem_chunk_tokens_ > 0 && (budget_.ns > 0 || batch_.num_extend_rows == 0);
  }
  // The next chunk of a request that has a slot.
  AddReqResult AddChunkedReq(Req* req);
  // The first chunk of a waiting request; if added, its prefix is taken and locked. The caller
  // gives it the slot.
  AddReqResult AddOneReq(Req* req);

 private:
  uint32_t Reserved(const Req& req) const {
    return ReservedPages(config_, kv_, batch_.new_token_ratio, req);
  }
  // Tokens of the request's next chunk, ending on a page if it must be cut.
  uint32_t ChunkLength(const Req& req) const;
  // Its last row would be one embedding too many.
  bool EndsBeyondEmbedRows(const Req& req, uint32_t num_tokens) const;
  bool HeldBack(const Req& req) const;
  // What opening the request's slot adds to the plan beside the open itself.
  static uint32_t OpenWords(const Req& req);
  void AddRow(Req* req, uint32_t num_tokens);

  const SchedulerConfig& config_;
  KvPool& kv_;
  const std::span<const ScheduleBatch> in_flight_;
  ScheduleBatch& batch_;
  bool nothing_runs_;
  StepBudget budget_;
  uint32_t rem_chunk_tokens_;
  int64_t rem_input_tokens_;
  uint32_t open_words_ = 0;
  uint64_t reserved_pages_ = 0;
  uint32_t num_admitted_ = 0;
};

}  // namespace flotilla
