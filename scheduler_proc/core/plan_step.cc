// Scheduler::Impl: the next batch, and the plan that tells it to the workers.
#include <algorithm>

#include "common/base/check.h"
#include "scheduler_proc/core/scheduler_impl.h"

namespace flotilla {
namespace {

WaitReason ReasonOf(AddReqResult refused) {
  return refused == AddReqResult::kNoToken ? WaitReason::kPages : WaitReason::kTokens;
}

}  // namespace

bool Scheduler::Impl::PlanStep(int64_t now_ns, StepPlan* plan) {
  if (num_in_flight == config.max_plans_in_flight || WaitsForDrafts()) return false;
  ScheduleBatch& cur_batch = result_queue[num_in_flight];
  wait_reason = WaitReason::kNextStep;
  BeginPlan(plan);
  GetNextBatchToRun(now_ns, &cur_batch, plan);
  wait_clock.Set(wait_reason, now_ns);
  if (cur_batch.empty()) return false;
  if (WaitsForGrammars(cur_batch)) {
    TakeBack(cur_batch, *plan);
    return false;
  }
  if (!cur_batch.retracted && !cur_batch.rows.front().extend) new_token_ratio.OnDecode();
  cur_batch.step_id = plan->step_id = ++last_step_id;
  FillRows(cur_batch, plan);
  slots.MoveClosesTo(&plan->closes);
  if (num_in_flight++ == 0) step_begin_ns = now_ns;
  ++stats.steps;
  last_batch_mode = cur_batch.forward_mode();
  prefill_steps_in_a_row = last_batch_mode == ForwardMode::kExtend ? prefill_steps_in_a_row + 1 : 0;
  return true;
}

// Mixed: what decodes, and as much prefill as the budget allows beside it. Otherwise prefill goes
// first (time to first token), with a decode step now and then. Who must be retracted may be in
// flight: then the batch stays empty until the result is there.
void Scheduler::Impl::GetNextBatchToRun(int64_t now_ns, ScheduleBatch* batch, StepPlan* plan) {
  batch->Clear();
  running_summary.reset();
  if (running_batch.empty() && waiting_queue.empty()) new_token_ratio.Reset();
  batch->new_token_ratio = new_token_ratio.value();
  if (!PreemptRunning(batch)) return;
  const bool decode_turn = prefill_steps_in_a_row >= kMaxPrefillStepsInARow;
  if ((config.enable_mixed_chunk || decode_turn) && !UpdateRunningBatch(batch, plan)) return;
  if (config.enable_mixed_chunk || batch->empty()) GetNewBatchPrefill(now_ns, batch);
  if (batch->empty() && !UpdateRunningBatch(batch, plan)) return;
  // That may have retracted all who decode: what they gave back serves the prompts before them.
  if (batch->empty() && batch->retracted) GetNewBatchPrefill(now_ns, batch);
  // Prompts hold each other's pages: the last to come gives way. One alone always fits.
  while (batch->empty() && num_in_flight == 0 && running_batch.size() > 1) {
    Retract(running_batch.back());
    batch->retracted = true;
    UpdateRunningBatch(batch, plan);
    GetNewBatchPrefill(now_ns, batch);
  }
  CHECK(!batch->empty() || num_in_flight > 0 || (running_batch.empty() && waiting_queue.empty()));
}

// Prompts must not make those who decode wait for long, and one long prompt less than several. But
// their own first tokens are waited for too: where far more wait for their first than for their
// next, or several do and one for long (of those that are not in the background), there is no
// limit.
StepBudget Scheduler::Impl::ChunkBudget(const ScheduleBatch& decodes, bool admits,
                                        int64_t now_ns) const {
  StepBudget budget{&step_cost};
  if (decodes.empty() || !step_cost.known()) return budget;
  const int64_t decode_ns = step_cost.Predict(decodes.work);
  if (config.max_step_ns > 0) {
    budget.ns = std::max<int64_t>(0, config.max_step_ns - decode_ns);
    return budget;
  }
  int64_t prompts = running_summary->num_prefilling;
  if (admits) prompts += std::min<int64_t>(slots.num_free(), std::ssize(waiting_queue));
  if (prompts > kMostPromptsADecode * std::ssize(decodes.rows)) return budget;
  int64_t since_ns = running_summary->waits_since_ns;
  const Req* const oldest = admits ? waiting_queue.oldest() : nullptr;
  if (oldest != nullptr && oldest->spec.priority >= 0)
    since_ns = std::min(since_ns, oldest->queued_ns);
  if (prompts > 1 && since_ns < now_ns - kLongWaitNs) return budget;
  const auto beside = [decode_ns](double share, int64_t step_ns) {
    return std::max(static_cast<int64_t>(share * static_cast<double>(decode_ns)),
                    step_ns - decode_ns);
  };
  budget.ns = beside(kPromptShare, kPromptStepNs);
  budget.long_ns = beside(kLongPromptShare, std::min(kPromptStepNs, prompts * kLongPromptStepNs));
  return budget;
}

// Chunks of prompts that have begun, then waiting requests.
void Scheduler::Impl::GetNewBatchPrefill(int64_t now_ns, ScheduleBatch* batch) {
  const bool pages_lack = no_pages() || batch->retracted;
  if (pages_lack || slots.full()) {
    wait_reason = pages_lack ? WaitReason::kPages : WaitReason::kSlots;
  }
  const bool admits = !batch->retracted && may_admit();
  if (!admits && batch->rows.size() == running_batch.size()) return;  // all decode
  if (!running_summary.has_value()) SummarizeRunning(*batch);
  PrefillAdder adder(config, &kv, *running_summary, std::span(result_queue).first(num_in_flight),
                     ChunkBudget(*batch, admits, now_ns), batch);
  uint32_t num_left = running_summary->num_prefilling;
  for (size_t i = 0; num_left > 0; ++i) {
    Req* req = running_batch[i];
    if (req->is_decode()) continue;
    --num_left;
    // Who runs comes before who waits, for tokens and for pages.
    const AddReqResult result =
        adder.budget_left() ? adder.AddChunkedReq(req) : AddReqResult::kOther;
    if (result == AddReqResult::kContinue) continue;
    // No time for this long prompt; shorter ones need none.
    if (result == AddReqResult::kOther && adder.budget_left()) continue;
    if (admits) wait_reason = ReasonOf(result);
    return;
  }
  if (admits) wait_reason = AdmitWaiting(now_ns, &adder);
}

// What whoever still waits then waits for.
WaitReason Scheduler::Impl::AdmitWaiting(int64_t now_ns, PrefillAdder* adder) {
  WaitReason reason = WaitReason::kNextStep;
  uint32_t held_back = 0;
  waiting_queue.BeginRound();
  // Who is held back has the next slot, before those of lower priority who pass it.
  const bool keeps_slots = waiting_queue.policy().preempts;
  while (adder->budget_left() && slots.num_free() > (keeps_slots ? held_back : 0)) {
    Req* req = waiting_queue.Next();
    if (req == nullptr) break;
    const AddReqResult result = adder->AddOneReq(req);
    batch_is_full = result == AddReqResult::kNoToken;
    if (batch_is_full) full_at_ratio = new_token_ratio.value();
    if (result == AddReqResult::kContinue) {
      Admit(req, now_ns);
      continue;
    }
    if (result != AddReqResult::kHeldBack) {
      reason = ReasonOf(result);
      break;
    }
    if (req->held_back_ns == 0) req->held_back_ns = now_ns;
    if (++held_back == kMaxHeldBackInAStep) break;
  }
  waiting_queue.EndRound();
  if (slots.full()) return WaitReason::kSlots;
  if (!adder->budget_left() && !waiting_queue.empty()) return WaitReason::kTokens;
  return reason;
}

// One token for everyone whose prompt is computed. If their pages run out, the last to come go
// back to the queue; false, and nothing done: they would, but a plan is in flight.
bool Scheduler::Impl::UpdateRunningBatch(ScheduleBatch* batch, StepPlan* plan) {
  const auto decodes = [](const Req& req) {
    return req.is_decode() && !req.ends_by_length() && !req.waits_for_grammar() &&
           !req.draft_in_flight();
  };
  const auto needs_page = [&](const Req& req) {
    return decodes(req) && kv.PagesFor(req.planned_len()) > req.num_pages;
  };
  uint32_t needed = 0;  // counted only if it matters
  if (running_batch.size() > kv.available_pages()) {
    for (const Req* req : running_batch) needed += needs_page(*req);
  }
  if (needed > kv.available_pages() && num_in_flight > 0) {
    wait_reason = WaitReason::kPages;
    return false;
  }
  while (needed > kv.available_pages()) {
    CHECK(!running_batch.empty());
    Req* req = running_batch.back();
    needed -= needs_page(*req);
    Retract(req);
    batch->retracted = true;
  }
  if (batch->retracted) new_token_ratio.OnRetract(running_batch);
  running_summary.reset();
  RunningSummary summary;
  const bool summarizes = may_admit();
  const double least_right = LeastDraftRate();
  // All that is done to a request is done while it is near.
  for (size_t i = 0; i < running_batch.size(); ++i) {
    Req* req = running_batch[i];
    if (i + kPrefetchDistance < running_batch.size()) {
      running_batch[i + kPrefetchDistance]->Prefetch();
    }
    const bool goes = decodes(*req);
    if (goes) CHECK(kv.Grow(req, req->planned_len()));
    if (summarizes) summary.Add(*req, ReservedPages(config, kv, batch->new_token_ratio, *req));
    if (goes) {
      batch->AddRow(req, 1 + TakeDraft(req, least_right, *batch), /*extend=*/false);
      FillRow(batch->rows.back(), plan);
    } else if (req->waits_for_grammar() && !req->ends_by_length()) {
      batch->leaves_masked = true;
    }
  }
  if (summarizes) running_summary = summary;
  return true;
}

void Scheduler::Impl::SummarizeRunning(const ScheduleBatch& batch) {
  running_summary.emplace();
  for (const Req* req : running_batch) {
    running_summary->Add(*req, ReservedPages(config, kv, batch.new_token_ratio, *req));
  }
}

void Scheduler::Impl::Admit(Req* req, int64_t now_ns) {
  waiting_queue.OnAdmitted(*req);
  token_buffers.Take(req->max_total, &req->token_ids);
  req->state = ReqState::kRunning;
  req->retracted = false;
  req->draft_at = 0;
  req->slot = slots.Take();
  req->prefill_len = req->len();
  stats.prefix_queries += req->len();
  stats.prefix_hits += req->num_computed;
  if (!req->was_scheduled) {
    req->was_scheduled = true;
    req->first_scheduled_ns = now_ns;
    req->wait_reason = wait_clock.MainReason(req->waits_before, now_ns);
    if (req->held_back_ns != 0 &&
        now_ns - req->held_back_ns >= req->held_back_ns - req->queued_ns) {
      req->wait_reason = WaitReason::kPrefix;
    }
    req->cached_tokens = std::min(req->num_computed, req->prompt_len);
    stats.prompt_tokens += req->prompt_len;
    stats.cached_tokens += req->cached_tokens;
  }
  const auto before = [this](const Req* a, const Req* b) { return RunsBefore(*a, *b); };
  running_batch.insert(std::upper_bound(running_batch.begin(), running_batch.end(), req, before),
                       req);
}

void Scheduler::Impl::Retract(Req* req) {
  CHECK(req->plans_in_flight == 0);
  std::erase(running_batch, req);
  ReleaseSlotAndPages(req);
  req->state = ReqState::kWaiting;
  req->retracted = true;
  waiting_queue.Add(req);
  ++stats.retractions;
}

void Scheduler::Impl::BeginPlan(StepPlan* plan) const {
  plan->epoch = epoch;
  plan->command = StepCommand::kForward;
  plan->num_pages = 0;
  plan->opens.clear();
  plan->rows.clear();
  plan->input_ids.clear();
  plan->new_pages.clear();
  plan->closes.clear();
  plan->logit_bias.clear();
  plan->history.clear();
  plan->stop_ids.clear();
  plan->masks.clear();
}

// Those that decode, which come first, are in it.
void Scheduler::Impl::FillRows(const ScheduleBatch& batch, StepPlan* plan) {
  for (size_t i = plan->rows.size(); i < batch.rows.size(); ++i) FillRow(batch.rows[i], plan);
}

// The plan of rows that decode is not sent.
void Scheduler::Impl::TakeBack(const ScheduleBatch& batch, const StepPlan& plan) {
  for (size_t i = 0; i < batch.rows.size(); ++i) {
    const BatchRow& row = batch.rows[i];
    row.req->pages_sent -= plan.rows[i].num_new_pages;
    row.req->num_scheduled -= row.num_tokens;
    row.req->num_unknown -= row.num_sampled();
    --row.req->plans_in_flight;
  }
}

void Scheduler::Impl::FillOpen(const Req& req, uint32_t start, StepPlan* plan) {
  const ReqSpec& spec = req.spec;
  PlanOpen& open = plan->opens.emplace_back();
  open.slot = req.slot;
  open.output_start = req.prompt_len;
  open.sampling = spec.sampling;
  open.num_logit_bias = static_cast<uint32_t>(spec.logit_bias.size());
  plan->logit_bias.insert(plan->logit_bias.end(), spec.logit_bias.begin(), spec.logit_bias.end());
  const std::span<const int32_t> stop_ids = spec.banned_stop_ids();
  open.num_stop_ids = static_cast<uint32_t>(stop_ids.size());
  plan->stop_ids.insert(plan->stop_ids.end(), stop_ids.begin(), stop_ids.end());
  if (!spec.sampling.has_penalties()) return;
  // The workers see the rest in the rows.
  open.num_history = start;
  plan->history.insert(plan->history.end(), req.token_ids.begin(), req.token_ids.begin() + start);
}

// And what the row changes of its request: a thousand of them are not gone through twice.
void Scheduler::Impl::FillRow(const BatchRow& row, StepPlan* plan) {
  Req* req = row.req;
  if (!req->opened) {
    FillOpen(*req, row.start, plan);
    req->opened = true;
    slots.MarkOpened(req->slot);
  }
  const uint32_t end = row.start + row.num_tokens;
  PlanRow& out = plan->rows.emplace_back();
  out.slot = req->slot;
  out.start_pos = row.start;
  out.num_tokens = row.num_tokens;
  out.num_new_pages = req->num_pages - req->pages_sent;
  if (row.samples) out.flags |= kRowSample;
  if (row.samples && req->is_masked) {
    out.flags |= kRowMask;
    const std::vector<uint32_t>& masks = row.num_draft() > 0 ? draft_masks : req->mask;
    plan->masks.insert(plan->masks.end(), masks.begin(),
                       masks.begin() + row.num_sampled() * req->mask.size());
  }
  if (row.embeds) out.flags |= kRowEmbed;
  if (req->is_mean()) out.flags |= kRowPoolMean;
  // Positions start + 1 … end have their logprobs in this row, as far as they are prompt and new.
  if (row.start + 1 < req->prompt_len && req->has_prompt_logprobs_left() &&
      end >= req->next_prompt_logprob) {
    out.flags |= kRowPromptLogprobs;
    if (end < req->prompt_len) out.next_token = req->token_ids[end];
  }
  if (row.extend) {
    plan->input_ids.insert(plan->input_ids.end(), req->token_ids.begin() + row.start,
                           req->token_ids.begin() + end);
  } else {
    plan->input_ids.push_back(row.start < req->len() ? req->last_token : kLastToken);
    if (row.num_draft() > 0) {
      out.flags |= kRowVerify;
      AppendDraft(*req, row.num_draft(), &plan->input_ids);
    }
  }
  if (out.num_new_pages > 0) {
    plan->new_pages.insert(plan->new_pages.end(), req->pages.begin() + req->pages_sent,
                           req->pages.end());
    req->pages_sent = req->num_pages;
  }
  req->num_scheduled += row.num_tokens;
  req->num_unknown += row.num_sampled();
  ++req->plans_in_flight;
}

}  // namespace flotilla
