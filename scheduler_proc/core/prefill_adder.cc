#include "scheduler_proc/core/prefill_adder.h"

#include <algorithm>

#include "common/base/check.h"

namespace flotilla {

PrefillAdder::PrefillAdder(const SchedulerConfig& config, KvPool* kv, const RunningSummary& running,
                           std::span<const ScheduleBatch> in_flight, const StepBudget& budget,
                           ScheduleBatch* batch)
    : config_(config),
      kv_(*kv),
      in_flight_(in_flight),
      batch_(*batch),
      nothing_runs_(running.num_running == 0),
      budget_(budget),
      rem_chunk_tokens_(config.chunked_prefill_size - batch->num_draft_tokens),
      rem_input_tokens_(config.max_prefill_tokens),
      reserved_pages_(running.reserved_pages) {}

uint32_t PrefillAdder::ChunkLength(const Req& req) const {
  const uint32_t start = req.num_scheduled, end = req.len();
  const uint32_t most = std::min(end - start, rem_chunk_tokens_);
  uint32_t length = most;
  if (budget_.limits()) {
    length = budget_.cost->TokensWithin(start, most, budget_.For(req));
    if (batch_.num_extend_rows == 0) length = std::max(length, std::min(most, kMinChunkTokens));
  }
  if (length == end - start) return length;
  const uint32_t cut = start + length;
  const uint32_t aligned = cut - cut % kv_.page_size();
  if (aligned > start) return aligned - start;
  // Less than a page is worth a row only if the step would compute no prompt without it.
  return batch_.num_extend_rows == 0 ? cut - start : 0;
}

bool PrefillAdder::EndsBeyondEmbedRows(const Req& req, uint32_t num_tokens) const {
  return req.is_pooled && num_tokens == req.num_pending() && batch_.num_embed_rows == kMaxEmbedRows;
}

void PrefillAdder::AddRow(Req* req, uint32_t num_tokens) {
  if (budget_.limits()) budget_.Take(*req, budget_.cost->ChunkNs(req->num_scheduled, num_tokens));
  batch_.AddRow(req, num_tokens, /*extend=*/true);
  rem_chunk_tokens_ -= num_tokens;
}

AddReqResult PrefillAdder::AddChunkedReq(Req* req) {
  uint32_t num_tokens = ChunkLength(*req);
  if (num_tokens == 0 || EndsBeyondEmbedRows(*req, num_tokens)) return AddReqResult::kOther;
  const uint64_t room =
      (req->num_pages + kv_.available_pages()) * uint64_t{kv_.page_size()} - req->num_scheduled;
  const bool short_of_pages = room < num_tokens;
  if (short_of_pages) num_tokens = static_cast<uint32_t>(room);
  if (num_tokens == 0) return AddReqResult::kNoToken;
  const uint32_t reserved = Reserved(*req);
  CHECK(kv_.Grow(req, req->num_scheduled + num_tokens));
  reserved_pages_ -= reserved - Reserved(*req);
  AddRow(req, num_tokens);
  return short_of_pages ? AddReqResult::kNoToken : AddReqResult::kContinue;
}

bool ComputesPrefixOf(const KvPool& kv, const Req& computing, const Req& req) {
  if (computing.root != req.root || computing.first_page_hash != req.first_page_hash ||
      req.first_page_hash == 0 || !kv.prefix_cache_enabled() || !req.may_read_cache()) {
    return false;
  }
  const uint32_t least = kv.PeekPrefix(req) * kv.page_size() + kInBatchPrefixTokens;
  const uint32_t limit = std::min(req.len() - 1, computing.len());
  if (limit < least) return false;
  const auto [mine, theirs] = std::mismatch(req.token_ids.begin(), req.token_ids.begin() + limit,
                                            computing.token_ids.begin());
  const auto common = static_cast<uint32_t>(mine - req.token_ids.begin());
  return common - common % kv.page_size() >= least;
}

bool ComputesPrefixOf(const KvPool& kv, const ScheduleBatch& batch, const Req& req) {
  return std::ranges::any_of(batch.extend_rows(), [&](const BatchRow& row) {
    return ComputesPrefixOf(kv, *row.req, req);
  });
}

bool PrefillAdder::HeldBack(const Req& req) const {
  const auto computes_prefix = [&](const ScheduleBatch& batch) {
    return ComputesPrefixOf(kv_, batch, req);
  };
  return computes_prefix(batch_) || std::ranges::any_of(in_flight_, computes_prefix);
}

uint32_t PrefillAdder::OpenWords(const Req& req) {
  const uint32_t history = req.spec.sampling.has_penalties() ? req.num_computed : 0;
  return history + req.num_pages + 2 * static_cast<uint32_t>(req.spec.logit_bias.size()) +
         static_cast<uint32_t>(req.spec.banned_stop_ids().size());
}

AddReqResult PrefillAdder::AddOneReq(Req* req) {
  if (HeldBack(*req)) return AddReqResult::kHeldBack;
  // Locked first: what it matches must not be counted as evictable too.
  kv_.TakePrefix(req);
  req->long_prompt = req->num_pending() > config_.chunked_prefill_size;
  const uint32_t num_tokens = ChunkLength(*req);
  const int64_t input_tokens = int64_t{kv_.PagesFor(req->num_pending())} * int64_t{kv_.page_size()};
  const uint32_t open_words = OpenWords(*req);
  const bool over_budget = input_tokens > rem_input_tokens_ ||
                           (open_words > 0 && open_words_ + open_words > kMaxOpenWords);
  AddReqResult refused = AddReqResult::kContinue;
  if (num_tokens == 0 || (over_budget && num_admitted_ > 0) ||
      EndsBeyondEmbedRows(*req, num_tokens)) {
    refused = AddReqResult::kOther;
  } else {
    const bool is_first = nothing_runs_ && num_admitted_ == 0;
    const bool fits = is_first || reserved_pages_ + Reserved(*req) <= kv_.available_pages();
    if (!fits || !kv_.Grow(req, req->num_scheduled + num_tokens)) refused = AddReqResult::kNoToken;
  }
  if (refused != AddReqResult::kContinue) {
    kv_.ReturnPrefix(req);
    return refused;
  }
  reserved_pages_ += Reserved(*req);
  rem_input_tokens_ -= input_tokens;
  open_words_ += open_words;
  ++num_admitted_;
  AddRow(req, num_tokens);
  return AddReqResult::kContinue;
}

}  // namespace flotilla
