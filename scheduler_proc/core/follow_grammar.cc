// Scheduler::Impl: requests whose output follows a grammar.
//
// A request's mask is always that of its next token: made when it comes in, and again as soon as
// its next token is known, not when its row is planned. So a plan only copies it, and what can go
// wrong in it becomes the request's end at once.
#include <algorithm>

#include "scheduler_proc/core/scheduler_impl.h"

namespace flotilla {

// output: what a resumed request comes with.
Status Scheduler::Impl::StartGrammar(const Grammar& grammar, std::span<const int32_t> output,
                                     std::unique_ptr<GrammarMatcher>* matcher,
                                     std::vector<uint32_t>* mask) const {
  ASSIGN_OR_RETURN(*matcher, grammar.NewMatcher());
  for (size_t i = 0; i < output.size(); ++i) {
    const Status accepted = (*matcher)->Accept(output[i]);
    if (!accepted.ok()) {
      return absl::InvalidArgumentError(absl::StrCat("resumed_ids[", i, "]: ", accepted.message()));
    }
    if ((*matcher)->IsTerminated()) {
      return absl::InvalidArgumentError(
          absl::StrCat("resumed_ids[", i, "]: the output has ended with it"));
    }
  }
  mask->resize(MaskWords(config.vocab_size));
  return (*matcher)->FillMask(*mask);
}

// Called with every token that does not end the request as a stop token. The grammar's end is the
// output's end, whatever ignore_eos and min_new_tokens say: nothing could follow.
Finish Scheduler::Impl::FollowGrammar(Req* req, int32_t token, ReqOutput* output) const {
  Status status = req->matcher->Accept(token);
  if (status.ok() && req->matcher->IsTerminated()) return Finish::kStop;
  const bool goes_on = req->len() < req->max_total;
  if (status.ok() && goes_on) status = req->matcher->FillMask(req->mask);
  if (status.ok()) return Finish::kNone;
  output->error = absl::StrCat("structured: ", status.message());
  output->error_code = status.code();
  return Finish::kError;
}

// How many of its draft's first tokens the grammar allows; the row's masks are in draft_masks then.
uint32_t Scheduler::Impl::FollowDraft(const Req& req, uint32_t num_tokens) {
  if (num_tokens == 0) return 0;
  draft.clear();
  AppendDraft(req, num_tokens, &draft);
  draft_masks.resize((1 + num_tokens) * req.mask.size());
  std::ranges::copy(req.mask, draft_masks.begin());
  return req.matcher->FollowGuess(draft, draft_masks);
}

// Whether a batch of nothing but rows with masks had better wait for the plan in flight, and go
// with those that are in it and can't be planned yet. Else the two groups would take turns for
// ever, and each would have half of what a step can do.
bool Scheduler::Impl::WaitsForGrammars(const ScheduleBatch& batch) const {
  const auto masked_decode = [](const BatchRow& row) { return !row.extend && row.req->is_masked; };
  return num_in_flight > 0 && batch.leaves_masked && std::ranges::all_of(batch.rows, masked_decode);
}

}  // namespace flotilla
