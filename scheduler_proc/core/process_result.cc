// Scheduler::Impl: the result of a batch: tokens, logprobs, ends.
#include <algorithm>

#include "common/base/check.h"
#include "scheduler_proc/core/scheduler_impl.h"

namespace flotilla {

void Scheduler::Impl::OnResult(const StepResult& result, int64_t now_ns,
                               std::vector<ReqOutput>* outputs) {
  if (num_in_flight == 0 || result.epoch != epoch) return;
  const ScheduleBatch& batch = result_queue.front();
  if (result.step_id != batch.step_id) return;
  const std::string error = CheckResult(batch, result);
  if (error.empty() && !batch.many_logits)
    step_cost.Observe(batch.work, result.end_ns - result.start_ns);
  for (size_t i = 0; i < batch.rows.size(); ++i) {
    --batch.rows[i].req->plans_in_flight;
    if (error.empty()) {
      ProcessRow(batch.rows[i], result.rows[i], now_ns, outputs);
    } else {
      FailRow(batch.rows[i], error, outputs);
    }
  }
  std::rotate(result_queue.begin(), result_queue.begin() + 1, result_queue.end());
  --num_in_flight;
  step_begin_ns = now_ns;
}

// Empty: the result answers the batch row by row.
std::string Scheduler::Impl::CheckResult(const ScheduleBatch& batch, const StepResult& result) {
  if (result.code != 0) {
    return result.message.empty() ? absl::StrCat("the workers failed with code ", result.code)
                                  : result.message;
  }
  if (result.rows.size() != batch.rows.size()) {
    return absl::StrCat("the workers answered ", result.rows.size(), " of ", batch.rows.size(),
                        " rows");
  }
  for (size_t i = 0; i < batch.rows.size(); ++i) {
    const BatchRow& row = batch.rows[i];
    const RowResult& answer = result.rows[i];
    if (answer.slot != row.req->slot) return "the workers answered for another slot";
    const auto is_token = [&](int32_t token) {
      return token >= 0 && static_cast<uint32_t>(token) < config.vocab_size;
    };
    if (row.samples && !is_token(answer.token)) return "the workers sampled no valid token";
    if (!IsOfDraft(row, answer.accepted)) return "the workers accepted what was not drafted";
    if (row.embeds && answer.embedding.empty()) return "the workers answered no embedding";
  }
  return "";
}

bool Scheduler::Impl::IsOfDraft(const BatchRow& row, const std::vector<int32_t>& accepted) {
  if (accepted.size() > row.num_draft()) return false;
  draft.clear();
  AppendDraft(*row.req, static_cast<uint32_t>(accepted.size()), &draft);
  return accepted == draft;
}

// Once no plan runs it any more.
void Scheduler::Impl::ForgetEnded(Req* req) {
  if (req->plans_in_flight > 0) return;
  std::erase(ending, req);
  ReleaseSlotAndPages(req);
  Forget(req);
}

void Scheduler::Impl::ProcessRow(const BatchRow& row, const RowResult& result, int64_t now_ns,
                                 std::vector<ReqOutput>* outputs) {
  Req* req = row.req;
  // What is wrong of a draft is computed anew.
  const auto wrong = row.num_draft() - static_cast<uint32_t>(result.accepted.size());
  req->num_scheduled -= wrong;
  // Behind a failed batch there is a gap.
  if (row.start == req->num_computed) req->num_computed += row.num_tokens - wrong;
  req->num_unknown -= row.num_sampled();
  if (req->state == ReqState::kEnded) {
    ForgetEnded(req);
    return;
  }
  // Who is next may read it, and then needs fewer pages.
  if (row.extend && kv.CacheUnfinished(req)) batch_is_full = false;
  if (row.embeds) {
    req->first_token_ns = now_ns;
    ReqOutput& output = outputs->emplace_back();
    output.embedding = result.embedding;
    FillFinish(*req, Finish::kStop, &output);
    End(req);
    return;
  }
  if (!row.samples && result.prompt_logprobs.empty()) return;
  OnDraftResult(row, result);
  for (size_t i = 0; i <= result.accepted.size(); ++i) {
    const bool last = i == result.accepted.size();
    ReqOutput& output = outputs->emplace_back();
    output.id = req->spec.id;
    AppendPromptLogprobs(req, result, &output);
    if (!row.samples) return;
    output.has_logprobs = result.has_logprobs;
    if (result.has_logprobs) output.logprobs = last ? result.logprobs : result.accepted_logprobs[i];
    const int32_t token = last ? result.token : result.accepted[i];
    const Finish finish = TakeToken(req, token, now_ns, &output);
    if (finish == Finish::kNone) continue;
    FillFinish(*req, finish, &output);
    return End(req);
  }
  LookForDraft(req);
}

// The request's next; kNone: it goes on.
Finish Scheduler::Impl::TakeToken(Req* req, int32_t token, int64_t now_ns, ReqOutput* output) {
  req->AppendToken(token);
  // A plan will soon put a page there.
  if (kv.PagesFor(req->planned_len() + 1) > req->num_pages) req->PrefetchNextPage();
  ++stats.generated_tokens;
  waiting_queue.OnToken(*req);
  if (req->first_token_ns == 0) req->first_token_ns = now_ns;
  output->token = token;
  Finish finish = CheckFinished(*req, token);
  if (req->is_masked && finish != Finish::kStop) {
    const Finish followed = FollowGrammar(req, token, output);
    if (followed != Finish::kNone) finish = followed;
  }
  if (finish == Finish::kStop) output->stop_token = token;
  return finish;
}

void Scheduler::Impl::AppendPromptLogprobs(Req* req, const RowResult& result, ReqOutput* output) {
  for (size_t i = 0; i < result.prompt_logprobs.size(); ++i) {
    const uint64_t position = uint64_t{result.prompt_start} + i;
    // What was told before a retraction is not told again.
    if (position != req->next_prompt_logprob || position >= req->prompt_len) continue;
    output->prompt_logprobs.push_back(result.prompt_logprobs[i]);
    ++req->next_prompt_logprob;
  }
}

Finish Scheduler::Impl::CheckFinished(const Req& req, int32_t token) const {
  const auto is_in = [token](const std::vector<int32_t>& ids) {
    return std::find(ids.begin(), ids.end(), token) != ids.end();
  };
  const bool stops =
      (!req.spec.ignore_eos && is_in(config.eos_ids)) || is_in(req.spec.stop_token_ids);
  if (stops && req.num_output() > req.spec.min_new_tokens) return Finish::kStop;
  return req.len() >= req.max_total ? Finish::kLength : Finish::kNone;
}

// Nothing is known of the KV this batch should have written, so it is not counted as computed.
void Scheduler::Impl::FailRow(const BatchRow& row, const std::string& error,
                              std::vector<ReqOutput>* outputs) {
  Req* req = row.req;
  req->num_unknown -= row.num_sampled();
  if (req->state == ReqState::kEnded) {
    ForgetEnded(req);
    return;
  }
  ReqOutput& output = outputs->emplace_back();
  FillFinish(*req, Finish::kError, &output);
  output.error = error;
  End(req);
}

}  // namespace flotilla
