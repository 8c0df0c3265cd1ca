// Scheduler::Impl: requests that come in, and the ways in which they end.
#include <algorithm>
#include <cmath>
#include <functional>

#include "common/base/check.h"
#include "scheduler_proc/core/scheduler_impl.h"

namespace flotilla {
namespace {

template <typename... Args>
Status Bad(const Args&... args) {
  return absl::InvalidArgumentError(absl::StrCat(args...));
}

Status CheckTokens(const char* field, const std::vector<int32_t>& tokens, uint32_t vocab_size) {
  for (size_t i = 0; i < tokens.size(); ++i) {
    if (tokens[i] < 0 || static_cast<uint32_t>(tokens[i]) >= vocab_size) {
      return Bad(field, "[", i, "]: ", tokens[i], " is outside the vocabulary of ", vocab_size);
    }
  }
  return OkStatus();
}

Status CheckSampling(const SamplingParams& sampling) {
  // Written so that NaN fails.
  if (!(sampling.temperature >= 0 && sampling.temperature <= 1e6f)) {
    return Bad("temperature: must be at least 0");
  }
  if (!(sampling.top_p > 0 && sampling.top_p <= 1)) return Bad("top_p: must be within (0, 1]");
  if (!(sampling.min_p >= 0 && sampling.min_p <= 1)) return Bad("min_p: must be within [0, 1]");
  if (sampling.num_logprobs != kNoLogprobs && sampling.num_logprobs > kMaxLogprobs) {
    return Bad("logprobs: at most ", kMaxLogprobs);
  }
  if (sampling.num_prompt_logprobs != kNoLogprobs && sampling.num_prompt_logprobs > kMaxLogprobs) {
    return Bad("prompt_logprobs: at most ", kMaxLogprobs);
  }
  const auto within = [](float value, float bound) { return std::abs(value) <= bound; };
  if (!within(sampling.presence_penalty, kMaxPenalty) ||
      !within(sampling.frequency_penalty, kMaxPenalty)) {
    return Bad("presence_penalty, frequency_penalty: must be within [-2, 2]");
  }
  if (!(sampling.repetition_penalty >= kMinRepetitionPenalty) ||
      !within(sampling.repetition_penalty, kMaxPenalty)) {
    return Bad("repetition_penalty: must be within [0.01, 2]");
  }
  return OkStatus();
}

Status CheckLogitBias(const std::vector<LogitBias>& entries, uint32_t vocab_size) {
  if (entries.size() > kMaxLogitBias) return Bad("logit_bias: at most ", kMaxLogitBias);
  int32_t before = -1;
  for (const LogitBias& entry : entries) {
    if (entry.token <= before || static_cast<uint32_t>(entry.token) >= vocab_size) {
      return Bad("logit_bias: token ", entry.token, " is out of order or of the vocabulary of ",
                 vocab_size);
    }
    if (!(std::abs(entry.bias) <= kMaxLogitBiasValue)) {
      return Bad("logit_bias: must be within [-100, 100]");
    }
    before = entry.token;
  }
  return OkStatus();
}

}  // namespace

void FreeSlots::Reset() {
  free_.clear();
  closes_.clear();
  closes_.reserve(close_pending_.size());  // as many as are freed between two plans
  std::fill(close_pending_.begin(), close_pending_.end(), 0);
  for (size_t slot = close_pending_.size(); slot > 0;) free_.push_back(--slot);
}

uint32_t FreeSlots::Take() {
  const uint32_t slot = free_.back();
  free_.pop_back();
  return slot;
}

void FreeSlots::Free(uint32_t slot, bool opened) {
  free_.push_back(slot);
  if (!opened) return;
  close_pending_[slot] = true;
  closes_.push_back(slot);
}

void FreeSlots::MoveClosesTo(std::vector<uint32_t>* closes) {
  for (const uint32_t slot : closes_) {
    if (close_pending_[slot]) closes->push_back(slot);
    close_pending_[slot] = false;
  }
  closes_.clear();
}

// A slot that waits to be closed is free, and no plan has opened it since: between calls that
// holds.
bool FreeSlots::Settle(const std::vector<uint8_t>& used) {
  std::vector<uint8_t> known = used;
  for (const uint32_t slot : free_) {
    if (slot >= known.size() || known[slot]++) return false;
  }
  std::fill(close_pending_.begin(), close_pending_.end(), 0);
  for (const uint32_t slot : closes_) {
    if (slot >= known.size() || used[slot] || close_pending_[slot]) return false;
    close_pending_[slot] = true;
  }
  return std::find(known.begin(), known.end(), 0) == known.end();
}

Status Scheduler::Impl::Validate(const ReqSpec& spec) const {
  if (reqs.contains(spec.id)) return Bad("id: ", spec.id, " is already in use");
  if (spec.prompt_ids.empty()) return Bad("prompt_ids: must not be empty");
  RETURN_IF_ERROR(CheckTokens("prompt_ids", spec.prompt_ids, config.vocab_size));
  RETURN_IF_ERROR(CheckTokens("resumed_ids", spec.resumed_ids, config.vocab_size));
  RETURN_IF_ERROR(CheckSampling(spec.sampling));
  RETURN_IF_ERROR(CheckLogitBias(spec.logit_bias, config.vocab_size));
  if (spec.stop_token_ids.size() > kMaxPlanStopIds) {
    return Bad("stop_token_ids: at most ", kMaxPlanStopIds);
  }
  RETURN_IF_ERROR(CheckTokens("stop_token_ids", spec.stop_token_ids, config.vocab_size));
  if (spec.pooling != Pooling::kNone) return ValidatePooled(spec);
  if (spec.max_new_tokens == 0) return Bad("max_new_tokens: must be at least 1");
  if (spec.min_new_tokens > spec.max_new_tokens) {
    return Bad("min_new_tokens: ", spec.min_new_tokens, " exceeds max_new_tokens ",
               spec.max_new_tokens);
  }
  if (spec.resumed_ids.size() >= spec.max_new_tokens) {
    return Bad("resumed_ids: ", spec.resumed_ids.size(), " tokens leave none of max_new_tokens ",
               spec.max_new_tokens);
  }
  const size_t tokens = spec.prompt_ids.size() + spec.resumed_ids.size();
  if (tokens >= config.context_length) {
    return Bad("prompt_ids: ", tokens, " tokens leave no room in the context of ",
               config.context_length);
  }
  const uint64_t total = MaxTotal(spec.prompt_ids.size(), spec.max_new_tokens);
  // The last token needs no KV.
  if (kv.PagesFor(total - 1) > kv.num_pages()) {
    return Bad("max_new_tokens: prompt and output of ", total, " tokens exceed the KV cache of ",
               uint64_t{kv.num_pages()} * config.page_size, " tokens");
  }
  return OkStatus();
}

Status Scheduler::Impl::ValidatePooled(const ReqSpec& spec) const {
  if (spec.max_new_tokens != 0 || !spec.resumed_ids.empty()) {
    return Bad("max_new_tokens: a pooled request has no output");
  }
  if (spec.grammar != nullptr) return Bad("structured: a pooled request has no output");
  if (spec.sampling.num_prompt_logprobs != kNoLogprobs) {
    return Bad("prompt_logprobs: a pooled request has none");
  }
  const size_t tokens = spec.prompt_ids.size();
  if (tokens > config.context_length) {
    return Bad("prompt_ids: ", tokens, " tokens exceed the context of ", config.context_length);
  }
  if (kv.PagesFor(tokens) > kv.num_pages()) {
    return Bad("prompt_ids: ", tokens, " tokens exceed the KV cache of ",
               uint64_t{kv.num_pages()} * config.page_size, " tokens");
  }
  return OkStatus();
}

uint32_t Scheduler::Impl::MaxTotal(size_t prompt_len, uint32_t max_new_tokens) const {
  return static_cast<uint32_t>(
      std::min<uint64_t>(config.context_length, uint64_t{prompt_len} + max_new_tokens));
}

Status Scheduler::Impl::Add(ReqSpec spec, int64_t now_ns) {
  if (kv.num_pages() == 0) return absl::UnavailableError("the workers are not ready yet");
  RETURN_IF_ERROR(Validate(spec));
  // What has begun elsewhere goes first, as if it had lost its slot here.
  const bool resumed = !spec.resumed_ids.empty();
  const uint64_t most =
      uint64_t{config.max_queued_requests} + (resumed ? config.max_running_requests : 0);
  if (waiting_queue.size() >= most) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the queue is full (max_queued_requests ", config.max_queued_requests, ")"));
  }
  std::unique_ptr<GrammarMatcher> matcher;
  std::vector<uint32_t> mask;
  if (spec.grammar != nullptr) {
    RETURN_IF_ERROR(StartGrammar(*spec.grammar, spec.resumed_ids, &matcher, &mask));
  }
  Req* req = pool.New();
  req->is_masked = matcher != nullptr;
  req->matcher = std::move(matcher);
  req->mask = std::move(mask);
  req->seq = next_seq++;
  req->prompt_len = static_cast<uint32_t>(spec.prompt_ids.size());
  req->max_total = MaxTotal(req->prompt_len, spec.max_new_tokens);
  spec.prompt_ids.insert(spec.prompt_ids.end(), spec.resumed_ids.begin(), spec.resumed_ids.end());
  req->SetTokens(std::move(spec.prompt_ids));
  if (spec.min_new_tokens > 0) {
    spec.sampling.min_tokens_until = req->prompt_len + spec.min_new_tokens;
  }
  if (spec.arrival_ns == 0) spec.arrival_ns = now_ns;
  req->spec = std::move(spec);
  req->retracted = resumed;
  req->is_pooled = req->spec.pooling != Pooling::kNone;
  req->queued_ns = now_ns;
  req->waits_before = wait_clock.At(now_ns);
  kv.Attach(req);
  reqs.emplace(req->spec.id, req);
  waiting_queue.Add(req);
  // It may go before the one that found no pages.
  if (resumed || !waiting_queue.policy().by_arrival) batch_is_full = false;
  if (req->spec.deadline_ns != INT64_MAX) {
    if (deadlines.size() >= 2 * reqs.size() + 64) ForgetOldDeadlines();
    deadlines.emplace_back(req->spec.deadline_ns, req->spec.id);
    std::push_heap(deadlines.begin(), deadlines.end(), std::greater<>());
  }
  return OkStatus();
}

void Scheduler::Impl::FillFinish(const Req& req, Finish finish, ReqOutput* output) const {
  output->id = req.spec.id;
  output->finish = finish;
  output->prompt_tokens = req.prompt_len;
  output->cached_tokens = req.cached_tokens;
  output->completion_tokens = std::min(req.len(), req.kept_len) - req.prompt_len;
  output->computed_tokens = req.num_output() > 0 ? req.prompt_len + output->completion_tokens
                                                 : std::min(req.num_scheduled, req.prompt_len);
  output->queued_ns = req.queued_ns;
  output->wait_reason = req.wait_reason;
  output->first_scheduled_ns = req.first_scheduled_ns;
  output->first_token_ns = req.first_token_ns;
}

bool Scheduler::Impl::Abort(ReqId id, Finish reason, std::vector<ReqOutput>* outputs) {
  const auto it = reqs.find(id);
  if (it == reqs.end()) return false;
  if (outputs != nullptr) FillFinish(*it->second, reason, &outputs->emplace_back());
  stats.aborts += reason == Finish::kAbort;
  End(it->second);
  return true;
}

bool Scheduler::Impl::Truncate(ReqId id, uint32_t num_tokens, int64_t /*now_ns*/,
                               std::vector<ReqOutput>* outputs) {
  const auto it = reqs.find(id);
  if (it == reqs.end()) return false;
  Req* req = it->second;
  const uint32_t kept = std::min(num_tokens, req->num_output());
  req->kept_len = req->prompt_len + kept;
  FillFinish(*req, Finish::kStop, &outputs->emplace_back());
  End(req);
  return true;
}

void Scheduler::Impl::ExpireDeadlines(int64_t now_ns, std::vector<ReqOutput>* outputs) {
  while (!deadlines.empty() && deadlines.front().first <= now_ns) {
    const auto [deadline_ns, id] = deadlines.front();
    std::pop_heap(deadlines.begin(), deadlines.end(), std::greater<>());
    deadlines.pop_back();
    const auto it = reqs.find(id);
    if (it == reqs.end() || it->second->spec.deadline_ns != deadline_ns) continue;
    const Req& req = *it->second;
    ReqOutput& output = outputs->emplace_back();
    FillFinish(req, Finish::kDeadline, &output);
    if (!req.was_scheduled) output.wait_reason = wait_clock.MainReason(req.waits_before, now_ns);
    End(it->second);
  }
}

// Mostly of requests that ended in time: there may be an hour between a request and its deadline.
void Scheduler::Impl::ForgetOldDeadlines() {
  std::erase_if(deadlines, [this](const auto& entry) {
    const auto it = reqs.find(entry.second);
    return it == reqs.end() || it->second->spec.deadline_ns != entry.first;
  });
  std::make_heap(deadlines.begin(), deadlines.end(), std::greater<>());
}

void Scheduler::Impl::End(Req* req) {
  reqs.erase(req->spec.id);
  if (req->state == ReqState::kWaiting) {
    waiting_queue.Remove(req);
    batch_is_full = false;
    Forget(req);
    return;
  }
  std::erase(running_batch, req);
  req->state = ReqState::kEnded;
  if (req->plans_in_flight > 0) {
    ending.push_back(req);
    return;
  }
  ReleaseSlotAndPages(req);
  Forget(req);
}

void Scheduler::Impl::ReleaseSlotAndPages(Req* req) {
  kv.Release(req, std::min(req->len(), req->kept_len));
  slots.Free(req->slot, req->opened);
  req->slot = kNoSlot;
  req->opened = false;
  batch_is_full = false;
}

void Scheduler::Impl::Forget(Req* req) {
  waiting_queue.OnForgotten(*req);
  token_buffers.GiveBack(&req->token_ids);
  kv.Detach(req);
  pool.Delete(req);
}

void Scheduler::Impl::BeginEpoch(uint32_t new_epoch, uint32_t num_pages) {
  CHECK(new_epoch > epoch || !epoch_begun);
  // Waiting requests were accepted for the number of pages there was.
  CHECK(num_pages == kv.num_pages() || (!epoch_begun && reqs.empty()));
  epoch = new_epoch;
  epoch_begun = true;
  num_in_flight = 0;
  batch_is_full = false;
  for (Req* req : ending) Forget(req);
  ending.clear();
  for (Req* req : running_batch) {
    KvPool::Forget(req);
    req->plans_in_flight = 0;
    req->slot = kNoSlot;
    req->opened = false;
    req->state = ReqState::kWaiting;
    req->retracted = true;
    waiting_queue.Add(req);
  }
  running_batch.clear();
  slots.Reset();
  kv.Reset(num_pages);
}

}  // namespace flotilla
