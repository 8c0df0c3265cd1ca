// One request inside the scheduler, from Add to its last token.
//
// token_ids is the whole sequence as far as it is known: prompt, then output. Plans in flight will
// add num_unknown tokens. Its KV is present for the first num_computed tokens, and for the first
// num_scheduled once the plans in flight are done; pages[i] holds positions
// [i * page_size, (i + 1) * page_size). The first num_shared pages belong to the radix tree (locked
// through last_node), the others to the request.
//
// Units: tokens, pages, nanoseconds. Threads: one. Ownership: ReqPool.
// Source: SGLang's Req (requirement 001).
#pragma once

#include <boost/intrusive/set_hook.hpp>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "scheduler_proc/core/draft.h"
#include "scheduler_proc/core/radix_cache.h"
#include "scheduler_proc/core/scheduler.h"
#include "scheduler_proc/core/wait_clock.h"

namespace flotilla {

inline constexpr uint32_t kNoSlot = UINT32_MAX;
inline constexpr uint32_t kNoTenant = UINT32_MAX;
using WaitHook = boost::intrusive::set_member_hook<>;

enum class ReqState : uint8_t {
  kWaiting,  // in waiting_queue
  kRunning,  // has a slot
  kEnded,    // has told its end; stays until the plan it is in comes back
};

struct Req;
inline constexpr size_t kPrefetchDistance = 8;  // requests

// Where the cached prefix of a waiting request ends, and its place among those that end there
// (matched_order.h).
struct MatchLinks {
  NodeId node = kNoNode;     // that holds the last page of the match; the root if there is none
  uint32_t num_pages = 0;    // of the match
  uint32_t order_pages = 0;  // by which it stands in the order
  bool moved = false;        // num_pages has changed since
  bool in_bucket = false;    // the match ends where `node` does, and another page follows
  uint64_t key = 0;          // then: of that page below the node
  Req *next = nullptr, *previous = nullptr;                // at the same node
  Req *bucket_next = nullptr, *bucket_previous = nullptr;  // in the same bucket
};

// What a step that decodes reads and changes of a request: one cache line.
struct ReqProgress {
  uint32_t num_tokens = 0;     // of token_ids, which are far away
  int32_t last_token = -1;     // of those it sampled
  uint32_t prompt_len = 0;     // tokens
  uint32_t max_total = 0;      // tokens at which it ends with kLength
  uint32_t prefill_len = 0;    // tokens there were when it got its slot: to extend before decode
  uint32_t num_computed = 0;   // tokens with KV, confirmed by results
  uint32_t num_scheduled = 0;  // the same, with the plans in flight
  uint32_t num_unknown = 0;    // tokens that the plans in flight sample, at most
  uint32_t plans_in_flight = 0;
  uint32_t slot = kNoSlot;
  uint32_t num_pages = 0;  // of pages
  uint32_t num_shared = 0;
  uint32_t pages_sent = 0;  // to the workers
  uint32_t draft_at = 0;    // where in token_ids the draft of what follows begins; 0: there is none
  ReqState state = ReqState::kWaiting;
  bool retracted = false;    // had begun, here or elsewhere: goes before all that never ran
  bool opened = false;       // the workers know the slot
  bool long_prompt = false;  // more than one whole chunk was to be computed when it got its slot
  bool is_pooled = false;    // spec.pooling is not kNone
  bool is_masked = false;    // has a matcher
  DraftRate draft_rate;
};
static_assert(sizeof(ReqProgress) <= 64);

struct alignas(64) Req : ReqProgress {
  std::vector<int32_t> token_ids;
  std::vector<PageId> pages;
  NodeId last_node = kNoNode;
  // With a grammar: where the output is in it, and what may come next.
  std::unique_ptr<GrammarMatcher> matcher;
  std::vector<uint32_t> mask;

  uint64_t seq = 0;  // order of arrival
  NodeId root = kNoNode;
  uint64_t first_page_hash = 0;    // of the first page's tokens; 0: shorter than a page
  uint32_t kept_len = UINT32_MAX;  // tokens past it were discarded by Truncate

  // While it waits: places in WaitingQueue and in the policy's order, and what they remember.
  WaitHook by_age, by_order;
  bool waits_first = false;  // it had begun, and the policy does not order those
  uint64_t num_admitted_before = 0;
  uint64_t round = 0;                   // the last that gave it
  uint32_t position = 0;                // in an order that is an array
  uint32_t tenant = kNoTenant;          // for a policy that counts by tenant
  MatchLinks match;                     // for a policy that follows the cache
  WaitClock::Totals waits_before = {};  // when it came
  int64_t held_back_ns = 0;             // since when, for a prefix

  // What was told, and the figures told at the end.
  uint32_t next_prompt_logprob = 1;  // first prompt position not yet reported
  bool was_scheduled = false;
  uint32_t cached_tokens = 0;
  int64_t queued_ns = 0;
  int64_t first_scheduled_ns = 0;
  int64_t first_token_ns = 0;
  WaitReason wait_reason = WaitReason::kNextStep;  // until it was first scheduled

  // Last: a step that decodes does not read it. Its prompt_ids and resumed_ids are in token_ids.
  ReqSpec spec;

  // Bring nearer, for when a thousand run: its ReqProgress; where its next page will stand.
  void Prefetch() const { __builtin_prefetch(this); }
  void PrefetchNextPage() const { __builtin_prefetch(pages.data() + num_pages, /*rw=*/1); }

  void SetTokens(std::vector<int32_t> ids) {
    token_ids = std::move(ids);
    CountTokens();
  }
  void AppendToken(int32_t token) {
    token_ids.push_back(token);
    ++num_tokens;
    last_token = token;
  }
  // After token_ids, or pages, changed otherwise.
  void CountTokens() { num_tokens = static_cast<uint32_t>(token_ids.size()); }
  void CountPages() { num_pages = static_cast<uint32_t>(pages.size()); }

  uint32_t len() const { return num_tokens; }
  uint32_t num_output() const { return len() - prompt_len; }
  // Tokens there will be after the plans in flight.
  uint32_t planned_len() const { return len() + num_unknown; }
  // Tokens that no plan has computed.
  uint32_t num_pending() const { return planned_len() - num_scheduled; }
  // One token pending, which it samples or sampled itself since it got its slot.
  bool is_decode() const { return num_scheduled >= prefill_len; }
  // The plans in flight bring it to its last token, whichever that is.
  bool ends_by_length() const { return planned_len() >= max_total; }
  // Its mask is that of a token that the plans in flight will bring.
  bool waits_for_grammar() const { return is_masked && num_unknown > 0; }
  // Where a step may be planned at most one is in flight; a row without a draft samples one token.
  bool draft_in_flight() const { return num_unknown > 1; }
  bool is_mean() const { return is_pooled && spec.pooling == Pooling::kMean; }
  bool has_prompt_logprobs_left() const {
    return spec.sampling.num_prompt_logprobs != kNoLogprobs && next_prompt_logprob < prompt_len;
  }
  // Prompt logprobs and a mean need every position's hidden state, so what has yet to report them
  // reads no cache.
  bool may_read_cache() const { return !has_prompt_logprobs_left() && !is_mean(); }
};

}  // namespace flotilla
