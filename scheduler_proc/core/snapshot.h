// How the core's state lies in a snapshot (Scheduler::Save): the lists of fields that its writer
// (snapshot.cc) and its reader (snapshot_load.cc) share. Private to scheduler_proc/core.
//
// In order: pages; state; free pages; tree; slots; the requests that have ended but are in flight,
// those that run, and those that wait; the waiting queue; the plans in flight. Not stored is what
// can be told from the rest: the links, counts, hashes and orders of the tree, a request's shared
// pages and the tokens in them, what its rows in flight are about to compute and sample, heaps,
// sets and matches.
#pragma once

#include <algorithm>
#include <bit>
#include <span>
#include <string>
#include <vector>

#include "scheduler_proc/core/field_archive.h"
#include "scheduler_proc/core/scheduler_impl.h"

namespace flotilla {

// A field that is added to one of these must be listed below or be told from others: then these
// sizes change. (FreeSlots, NewTokenRatio, RadixCache, StepCost, WaitClock, WaitingQueue and the
// orders have lists of their own.)
static_assert(sizeof(Req) == 704 && sizeof(BatchRow) == 24 && sizeof(ScheduleBatch) == 104);
static_assert(sizeof(SchedulerStats) == 168);

template <typename Archive, typename Impl>
void StateFields(Archive& field, Impl& impl) {
  field(impl.epoch), field(impl.epoch_begun), field(impl.last_step_id), field(impl.next_seq);
  field(impl.batch_is_full), field(impl.full_at_ratio);
  field(impl.prefill_steps_in_a_row), field(impl.step_begin_ns);
  NewTokenRatio::Fields(field, impl.new_token_ratio);
  WaitClock::Fields(field, impl.wait_clock);
  StepCost::Fields(field, impl.step_cost);
  auto& stats = impl.stats;  // its gauges are computed when they are asked for
  field(stats.prompt_tokens), field(stats.cached_tokens), field(stats.generated_tokens);
  field(stats.prefix_queries), field(stats.prefix_hits), field(stats.retractions);
  field(stats.preemptions), field(stats.steps), field(stats.aborts);
  field(stats.draft_tokens), field(stats.accepted_draft_tokens);
}

// But its salts and tokens.
template <typename Archive, typename Tree>
void TreeFields(Archive& field, Tree& tree) {
  field(tree.clock), field(tree.num_born), field(tree.root_born), field(tree.born);
  field(tree.stamp), field(tree.parent), field(tree.hits), field(tree.num_pages), field(tree.pages);
}

template <typename Archive, typename R>
void ReqFields(Archive& field, R& req) {
  SpecFields(field, req.spec);
  field(req.prompt_len), field(req.seq), field(req.first_page_hash), field(req.waits_before);
  field(req.held_back_ns), field(req.next_prompt_logprob), field(req.was_scheduled);
  field(req.cached_tokens), field(req.queued_ns), field(req.first_scheduled_ns);
  field(req.first_token_ns), field(req.wait_reason), field(req.num_admitted_before);
  DraftRate::Fields(field, req.draft_rate);
}

// Of a request that has a slot.
template <typename Archive, typename R>
void HolderFields(Archive& field, R& req) {
  field(req.slot), field(req.num_computed), field(req.prefill_len), field(req.long_prompt);
  field(req.kept_len), field(req.pages_sent), field(req.draft_at);
}

struct RowSnapshot {
  uint32_t holder = 0;  // the number of a request that has a slot: the ended ones, then the others
  uint32_t start = 0, num_tokens = 0;
};

// Each in so many bytes.
inline uint32_t TokenBytes(uint32_t vocab_size) {
  return std::max(1u, (static_cast<uint32_t>(std::bit_width(vocab_size - 1)) + 7) / 8);
}
void PutTokens(std::span<const int32_t> tokens, uint32_t vocab_size, std::string* out);
// Appends to *tokens. False: they are cut off, or not of the vocabulary.
bool GetTokens(WireReader* in, uint32_t vocab_size, std::vector<int32_t>* tokens);

}  // namespace flotilla
