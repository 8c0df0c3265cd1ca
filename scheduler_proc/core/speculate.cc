// Scheduler::Impl: drafts (draft.h) of requests that decode.
//
// A draft goes on from the last token, so that must be known: while somebody's draft is in flight,
// or is to be, the next step waits for the result of the one that runs instead of being planned
// beside it. All wait, since who went on alone would have half of each step for itself. So drafts
// must bring enough for all that it is worth that.
#include <algorithm>

#include "scheduler_proc/core/scheduler_impl.h"

namespace flotilla {
namespace {

// What a token more in a step must at least be worth: it is not sure what it takes.
constexpr double kLeastGain = 1.2;
// However little it takes, it must be right so often.
constexpr double kLeastRate = 0.1;
// How likely right it must be while nothing is known of that.
constexpr double kTryAtRate = 0.5;
// What drafts must bring, of the tokens that a step brings anyway, that it waits for them: the time
// between two steps of which none is planned beside the other is less.
constexpr double kWorthWaiting = 0.1;
// Of a step's prompt tokens, the share that drafts may take.
constexpr uint32_t kDraftShare = 2;

}  // namespace

bool Scheduler::Impl::WaitsForDrafts() const {
  if (num_in_flight == 0 || !drafts()) return false;
  double least_right = -1;
  for (const Req* req : running_batch) {
    if (!req->is_decode()) continue;
    if (req->draft_in_flight()) return true;
    if (req->num_unknown == 0 || MostDraftTokens(*req, 0) == 0) continue;
    if (least_right < 0) least_right = LeastDraftRate();
    if (DraftLength(req->draft_rate, 1, least_right) > 0) return true;
  }
  return false;
}

// How likely right a token must be that it is worth its time: a step brings a token for each who
// decodes, and takes so long. 1: what could be drafted is not worth that nothing is planned ahead.
double Scheduler::Impl::LeastDraftRate() const {
  if (!drafts() || !step_cost.known()) return 1;
  StepWork work;
  for (const Req* req : running_batch) {
    if (req->is_decode()) work.AddDecode(req->num_scheduled);
  }
  if (work.decode_tokens == 0) return 1;
  const auto step_ns = static_cast<double>(step_cost.Predict(work));
  const auto tokens = static_cast<double>(work.decode_tokens);
  work.AddDraft(static_cast<uint32_t>(work.decode_reads / work.decode_tokens), 1);
  double least_right = kTryAtRate;
  if (step_cost.IsFamiliar(work)) {
    const double more_ns = static_cast<double>(step_cost.Predict(work)) - step_ns;
    least_right = step_ns > 0 ? std::max(kLeastRate, kLeastGain * tokens * more_ns / step_ns) : 1;
  }
  double gain = 0;
  uint32_t num_drafted = 0;
  for (const Req* req : running_batch) {
    if (!req->is_decode()) continue;
    const uint32_t most = MostDraftTokens(*req, num_drafted);
    const uint32_t length = DraftLength(req->draft_rate, most, least_right);
    gain += DraftGain(req->draft_rate, length);
    num_drafted += length;
  }
  return gain > kWorthWaiting * tokens ? least_right : 1;
}

// How many tokens of its draft may go with the row of its next token, in a step that has
// `num_drafted` of others.
uint32_t Scheduler::Impl::MostDraftTokens(const Req& req, uint32_t num_drafted) const {
  const uint32_t len = req.planned_len();
  if (req.draft_at == 0 || !drafts() || len >= req.max_total) return 0;
  uint32_t budget = config.chunked_prefill_size / kDraftShare;
  const auto num_running = static_cast<uint32_t>(running_batch.size());
  if (req.is_masked) {
    // All others may have a mask too, and those whose prompts this step may admit.
    const uint32_t room = config.max_running_requests + kSpareMasks - num_running;
    const auto admitted = std::min<size_t>(slots.num_free(), waiting_queue.size());
    budget = std::min(budget, room - static_cast<uint32_t>(admitted));
  }
  uint32_t most = std::min({config.speculative_num_draft_tokens, req.max_total - len - 1,
                            budget - std::min(budget, num_drafted)});
  if (kv.available_pages() <= num_running) {
    const uint32_t room = req.num_pages * kv.page_size();
    most = std::min(most, room - std::min(room, len));
  }
  return most;
}

// How many do, where its own token has its page. A page more for them is taken only where all who
// decode find theirs.
uint32_t Scheduler::Impl::TakeDraft(Req* req, double least_right, const ScheduleBatch& batch) {
  if (req->num_unknown > 0) return 0;
  const uint32_t most = MostDraftTokens(*req, batch.num_draft_tokens);
  uint32_t length = DraftLength(req->draft_rate, most, least_right);
  if (req->is_masked) length = FollowDraft(*req, length);
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
  Req* const req = row.req;
  if (row.num_draft() == 0) {
    if (req->draft_at != 0)
      req->draft_rate.OnVerified(1, req->token_ids[req->draft_at] == result.token ? 1 : 0);
    return;
  }
  const auto accepted = static_cast<uint32_t>(result.accepted.size());
  req->draft_rate.OnVerified(row.num_draft(), accepted);
  stats.draft_tokens += row.num_draft();
  stats.accepted_draft_tokens += accepted;
}

bool Scheduler::Impl::MayDraft(const Req& req) const {
  return config.speculative_num_draft_tokens > 0 && !req.is_pooled;
}

void Scheduler::Impl::LookForDraft(Req* req) const {
  req->draft_at = 0;
  if (!drafts() || !MayDraft(*req)) return;
  const auto num_running = std::max(1u, static_cast<uint32_t>(running_batch.size()));
  req->draft_at =
      FindDraft(req->token_ids, std::min(kMaxDraftDistance, kMaxDraftDistanceOfAll / num_running));
}

}  // namespace flotilla
