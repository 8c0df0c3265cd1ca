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
#include <vector>

#include "scheduler_proc/core/radix_cache.h"
#include "scheduler_proc/core/scheduler.h"

namespace flotilla {

inline constexpr uint32_t kNoSlot = UINT32_MAX;
inline constexpr uint32_t kNoTenant = UINT32_MAX;
using WaitHook = boost::intrusive::set_member_hook<>;

enum class ReqState : uint32_t {
  kWaiting,  // in waiting_queue
  kRunning,  // has a slot
  kEnded,    // has told its end; stays until the plan it is in comes back
};

struct Req {
  // From the spec; prompt_ids and resumed_ids were moved to token_ids.
  ReqSpec spec;
  uint64_t seq = 0;  // order of arrival
  NodeId root = kNoNode;
  uint64_t first_page_hash = 0;  // of the first page's tokens; 0: shorter than a page
  std::vector<int32_t> token_ids;
  uint32_t prompt_len = 0;
  uint32_t max_total = 0;          // tokens at which it ends with kLength
  uint32_t kept_len = UINT32_MAX;  // tokens past it were discarded by Truncate

  // Where it is.
  ReqState state = ReqState::kWaiting;
  bool retracted = false;  // goes before all that never ran
  uint32_t plans_in_flight = 0;
  uint32_t slot = kNoSlot;
  bool opened = false;         // the workers know the slot
  uint32_t num_computed = 0;   // tokens with KV, confirmed by results
  uint32_t num_scheduled = 0;  // the same, with the plans in flight
  uint32_t num_unknown = 0;    // tokens that the plans in flight sample
  uint32_t prefill_len = 0;  // tokens there were when it got its slot: what to extend before decode
  std::vector<PageId> pages;
  uint32_t num_shared = 0;
  uint32_t pages_sent = 0;  // to the workers
  NodeId last_node = kNoNode;

  // While it waits: places in WaitingQueue and in the policy's order, and what they remember.
  WaitHook by_age, by_order;
  bool waits_first = false;  // it was retracted, and the policy does not order those
  uint64_t num_admitted_before = 0;
  uint64_t round = 0;           // the last that gave it
  uint32_t position = 0;        // in an order that is an array
  uint32_t tenant = kNoTenant;  // for a policy that counts by tenant
  uint64_t match_version = 0;   // match_pages, for the policy, holds while the tree's is the same
  uint32_t match_pages = 0;

  // What was told, and the figures told at the end.
  uint32_t next_prompt_logprob = 1;  // first prompt position not yet reported
  bool was_scheduled = false;
  uint32_t cached_tokens = 0;
  int64_t first_scheduled_ns = 0;
  int64_t first_token_ns = 0;

  uint32_t len() const { return static_cast<uint32_t>(token_ids.size()); }
  uint32_t num_output() const { return len() - prompt_len; }
  // Tokens there will be after the plans in flight.
  uint32_t planned_len() const { return len() + num_unknown; }
  // Tokens that no plan has computed.
  uint32_t num_pending() const { return planned_len() - num_scheduled; }
  // One token pending, which it samples or sampled itself since it got its slot.
  bool is_decode() const { return num_scheduled >= prefill_len; }
  // The plans in flight bring it to its last token, whichever that is.
  bool ends_by_length() const { return planned_len() >= max_total; }
  // Prompt logprobs need every position's logits, so what has yet to report them reads no cache.
  bool may_read_cache() const {
    return spec.sampling.num_prompt_logprobs == kNoLogprobs || next_prompt_logprob >= prompt_len;
  }
};

}  // namespace flotilla
