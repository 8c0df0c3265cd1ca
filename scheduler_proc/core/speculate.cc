// Scheduler::Impl: drafts (draft.h) of requests that decode.
//
// A draft goes on from the last token, so that must be known: while somebody's draft is in flight,
// or is to be, the next step waits for the result of the one that runs instead of being planned
// beside it. All wait, since who went on alone would have half of each step for itself.
#include <algorithm>

#include "scheduler_proc/core/scheduler_impl.h"

namespace flotilla {
namespace {

// What a token more in a step must at least be worth: it is not sure what it takes.
constexpr double kLeastGain = 1.2;
// Nor is a token that is hardly ever right worth that nothing is planned ahead.
constexpr double kLeastRate = 0.1;
// How likely right it must be while nothing is known of that.
constexpr double kTryAtRate = 0.5;
// Of a step's prompt tokens, the share that drafts may take.
constexpr uint32_t kDraftShare = 2;

}  // namespace

bool Scheduler::Impl::WaitsForDrafts() const {
  if (num_in_flight == 0 || !drafts()) return false;
  double least_right = -1;
  for (const Req* req : running_batch) {
    if (!req->is_decode()) continue;
    if (req->draft_in_flight()) return true;
    if (req->num_unknown == 0 || req->draft_at == 0) continue;
    if (least_right < 0) least_right = LeastDraftRate();
    if (DraftLength(req->draft_rate, 1, least_right) > 0) return true;
  }
  return false;
}

// How likely right a token must be that it is worth its time: a step brings a token for each who
// decodes, and takes so long.
double Scheduler::Impl::LeastDraftRate() const {
  if (!drafts() || !step_cost.known()) return 1;
  StepWork work;
  for (const Req* req : running_batch) {
    if (req->is_decode()) work.AddDecode(req->num_scheduled);
  }
  if (work.decode_tokens == 0) return 1;
  const auto step_ns = static_cast<double>(step_cost.Predict(work));
  const auto tokens = static_cast<double>(work.decode_tokens);
  work.AddDecode(static_cast<uint32_t>(work.decode_reads / work.decode_tokens));
  if (!step_cost.IsFamiliar(work)) return kTryAtRate;
  const double more_ns = static_cast<double>(step_cost.Predict(work)) - step_ns;
  return step_ns > 0 ? std::max(kLeastRate, kLeastGain * tokens * more_ns / step_ns) : 1;
}

// How many tokens of its draft go with its row, whose own token has its page. A page more for them
// is taken only where all who decode find theirs.
uint32_t Scheduler::Impl::TakeDraft(Req* req, double least_right, const ScheduleBatch& batch) {
  if (req->draft_at == 0 || req->num_unknown > 0 || !drafts()) return 0;
  const uint32_t budget = config.chunked_prefill_size / kDraftShare;
  const uint32_t most =
      std::min({config.speculative_num_draft_tokens, req->max_total - req->len() - 1,
                budget - std::min(budget, batch.num_draft_tokens)});
  const uint32_t length = DraftLength(req->draft_rate, most, least_right);
  const uint32_t end = req->len() + length;
  const uint32_t missing = kv.PagesFor(end) - std::min(kv.PagesFor(end), req->num_pages);
  if (kv.available_pages() >= running_batch.size() + missing && kv.Grow(req, end)) return length;
  return std::min(length, req->num_pages * kv.page_size() - req->len());
}

// Beyond the end of what is known a draft goes on with itself.
void Scheduler::Impl::AppendDraft(const Req& req, uint32_t num_tokens, std::vector<int32_t>* to) {
  const size_t begin = to->size();
  for (uint32_t i = 0; i < num_tokens; ++i) {
    const uint32_t at = req.draft_at + i;
    to->push_back(at < req.len() ? req.token_ids[at] : (*to)[begin + at - req.len()]);
  }
}

// Its tokens are not taken yet.
void Scheduler::Impl::OnDraftResult(const BatchRow& row, const RowResult& result) {
  if (row.num_draft() == 0) {
    if (row.req->draft_at != 0) row.req->draft_rate.OnLeft();
    return;
  }
  const auto accepted = static_cast<uint32_t>(result.accepted.size());
  row.req->draft_rate.OnVerified(row.num_draft(), accepted);
  stats.draft_tokens += row.num_draft();
  stats.accepted_draft_tokens += accepted;
}

// Penalties and grammars make of a token what those before it were.
void Scheduler::Impl::LookForDraft(Req* req) const {
  req->draft_at = 0;
  if (!drafts() || req->is_masked || req->spec.sampling.has_penalties()) return;
  req->draft_at = FindDraft(req->token_ids);
}

}  // namespace flotilla
