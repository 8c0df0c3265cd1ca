// Scheduler::Restore. The bytes may be anything (`flotilla replay` reads files), so what follows is
// believed only where it is what a core can be: later calls rely on it.
#include <algorithm>

#include "absl/container/flat_hash_set.h"
#include "scheduler_proc/core/snapshot.h"

namespace flotilla {
namespace {

constexpr uint64_t kMaxCount = uint64_t{1} << 62;
constexpr uint32_t kMaxQueued = 1u << 20;
constexpr uint64_t kMaxCacheTokens = uint64_t{1} << 31;

Status Broken(const char* what) { return absl::DataLossError(what); }

bool AreTimes(const WaitClock::Totals& totals) {
  return std::all_of(totals.begin(), totals.end(), IsTime);
}

template <size_t kBytes>
bool UnpackTokens(std::string_view bytes, uint32_t vocab_size, std::vector<int32_t>* tokens) {
  bool good = true;
  for (; !bytes.empty(); bytes.remove_prefix(kBytes)) {
    uint32_t token = 0;
    for (size_t i = 0; i < kBytes; ++i) token |= uint32_t{static_cast<uint8_t>(bytes[i])} << 8 * i;
    good &= token < vocab_size && token <= INT32_MAX;
    tokens->push_back(static_cast<int32_t>(token));
  }
  return good;
}

}  // namespace

bool GetTokens(WireReader* in, uint32_t vocab_size, std::vector<int32_t>* tokens) {
  const uint32_t width = TokenBytes(vocab_size);
  const std::string_view bytes = in->GetBytes();
  if (!in->ok() || bytes.size() % width != 0) return false;
  tokens->reserve(tokens->size() + bytes.size() / width);
  if (width == 1) return UnpackTokens<1>(bytes, vocab_size, tokens);
  if (width == 2) return UnpackTokens<2>(bytes, vocab_size, tokens);
  if (width == 3) return UnpackTokens<3>(bytes, vocab_size, tokens);
  return UnpackTokens<4>(bytes, vocab_size, tokens);
}

class Scheduler::Impl::Loader {
 public:
  Loader(Impl* impl, std::string_view bytes, const GrammarSource& grammars)
      : impl_(*impl), grammars_(grammars), in_(bytes), field_(&in_) {}

  Status Load() {
    RETURN_IF_ERROR(LoadState());
    RETURN_IF_ERROR(LoadCache());
    RETURN_IF_ERROR(LoadHolders(ReqState::kEnded, &impl_.ending));
    RETURN_IF_ERROR(LoadHolders(ReqState::kRunning, &impl_.running_batch));
    if (!impl_.slots.Settle(used_slots_)) return Broken("slots");
    RETURN_IF_ERROR(LoadWaiting());
    RETURN_IF_ERROR(LoadPlans());
    for (const Req* req : impl_.ending) {
      if (req->plans_in_flight == 0) return Broken("a request that should be gone");
    }
    for (const Req* req : impl_.running_batch) RETURN_IF_ERROR(CheckRunning(*req));
    // Who is next waits for pages that are given back.
    if (impl_.batch_is_full && holders_.empty()) return Broken("full");
    return in_.AtEnd() ? OkStatus() : Broken("its length");
  }

 private:
  Status LoadState() {
    uint32_t num_pages = 0;
    field_(num_pages);  // read by Scheduler::Restore too
    StateFields(field_, impl_);
    const bool good = field_.good() && impl_.new_token_ratio.valid() && impl_.step_cost.valid() &&
                      impl_.full_at_ratio >= 0 && impl_.full_at_ratio <= 1 &&
                      impl_.wait_clock.valid(kMaxTimeNs) && impl_.last_step_id < kMaxCount &&
                      impl_.next_seq < kMaxCount && IsTime(impl_.step_begin_ns);
    return good ? OkStatus() : Broken("state");
  }

  Status LoadCache() {
    std::vector<PageId> free_pages;
    RadixSnapshot tree;
    field_(free_pages);
    TreeFields(field_, tree);
    if (!field_.good()) return Broken("tree");
    for (size_t i = 0; i < tree.root_born.size() && in_.ok(); ++i) {
      tree.salts.emplace_back(in_.GetBytes());
    }
    if (!GetTokens(&in_, impl_.config.vocab_size, &tree.tokens)) return Broken("tokens");
    RETURN_IF_ERROR(impl_.kv.Restore(free_pages, tree));
    num_nodes_ = tree.num_nodes();
    FreeSlots::Fields(field_, impl_.slots);
    if (!field_.good()) return Broken("slots");
    used_slots_.assign(impl_.config.max_running_requests, 0);
    return OkStatus();
  }

  // Its tokens are there. Those that live are in reqs by now.
  Status CheckReq(Req* req) {
    ReqSpec& spec = req->spec;
    req->CountTokens();
    if (req->prompt_len == 0 || req->prompt_len > req->len()) return Broken("prompt_len");
    if (spec.pooling > Pooling::kMean || (req->is_pooled && req->len() != req->prompt_len)) {
      return Broken("pooling");
    }
    spec.prompt_ids.assign(req->token_ids.begin(), req->token_ids.begin() + req->prompt_len);
    RETURN_IF_ERROR(impl_.Validate(spec));
    spec.prompt_ids = {};
    const bool times = IsTime(spec.arrival_ns) && IsTime(req->queued_ns) &&
                       IsTime(req->held_back_ns) && IsTime(req->first_scheduled_ns) &&
                       IsTime(req->first_token_ns) && AreTimes(req->waits_before);
    const bool counts = req->next_prompt_logprob >= 1 &&
                        req->next_prompt_logprob <= req->prompt_len &&
                        req->cached_tokens <= req->prompt_len && req->draft_rate.valid();
    if (!times || !counts || req->wait_reason >= WaitReason::kNumReasons) return Broken("figures");
    if (req->seq >= impl_.next_seq || !seqs_.insert(req->seq).second) return Broken("arrivals");
    req->max_total = impl_.MaxTotal(req->prompt_len, spec.max_new_tokens);
    req->last_token = req->token_ids.back();
    return OkStatus();
  }

  // Its tokens are there.
  Status Attach(Req* req) {
    if (impl_.kv.cache().FindRoot(req->spec.cache_salt) == kNoNode) return Broken("tenant");
    const uint64_t first_page_hash = req->first_page_hash;  // 0 if it was shorter when it came
    impl_.kv.Attach(req);
    req->first_page_hash = first_page_hash;
    return OkStatus();
  }

  // Those that live follow their grammar from the beginning.
  Status Enlist(Req* req) {
    if (req->spec.grammar != nullptr) {
      const auto output = std::span<const int32_t>(req->token_ids).subspan(req->prompt_len);
      const Status started =
          impl_.StartGrammar(*req->spec.grammar, output, &req->matcher, &req->mask);
      if (!started.ok()) return Broken("grammar");
      req->is_masked = true;
    }
    impl_.reqs.emplace(req->spec.id, req);
    if (req->spec.deadline_ns == INT64_MAX) return OkStatus();
    impl_.deadlines.emplace_back(req->spec.deadline_ns, req->spec.id);
    std::push_heap(impl_.deadlines.begin(), impl_.deadlines.end(), std::greater<>());
    return OkStatus();
  }

  Status LoadReq(Req* req) {
    ReqFields(field_, *req);
    req->is_pooled = req->spec.pooling != Pooling::kNone;
    bool has_grammar = false;
    field_(has_grammar);
    if (!field_.good()) return Broken("request");
    if (!has_grammar) return OkStatus();
    if (grammars_ != nullptr) req->spec.grammar = grammars_(req->spec);
    return req->spec.grammar != nullptr ? OkStatus() : Broken("a grammar that is not known");
  }

  Status LoadHolders(ReqState state, std::vector<Req*>* list) {
    const auto count = in_.Get<uint32_t>();
    for (uint32_t i = 0; i < count; ++i) {
      Req* req = impl_.pool.New();
      RETURN_IF_ERROR(LoadReq(req));
      HolderFields(field_, *req);
      const auto node = in_.Get<NodeId>();
      if (!field_.good() || node >= num_nodes_) return Broken("request");
      impl_.kv.cache().AppendPathTokens(node, &req->token_ids);
      std::vector<PageId> own_pages;
      if (!GetTokens(&in_, impl_.config.vocab_size, &req->token_ids)) return Broken("tokens");
      field_(own_pages);
      const auto exists = [this](PageId page) { return page < impl_.kv.num_pages(); };
      if (!field_.good() || !std::all_of(own_pages.begin(), own_pages.end(), exists)) {
        return Broken("pages");
      }
      RETURN_IF_ERROR(CheckReq(req));
      RETURN_IF_ERROR(Attach(req));
      if (impl_.kv.cache().RootOf(node) != req->root) return Broken("another tenant's pages");
      impl_.kv.RestoreHolder(req, node, own_pages);
      RETURN_IF_ERROR(SettleHolder(state, req));
      if (state == ReqState::kRunning) {
        if (i > 0 && !impl_.RunsBefore(*list->back(), *req)) return Broken("order");
        RETURN_IF_ERROR(Enlist(req));
      }
      list->push_back(req);
      holders_.push_back(req);
    }
    return OkStatus();
  }

  // Between calls every request with a slot has been in a plan.
  Status SettleHolder(ReqState state, Req* req) {
    const bool ended = state == ReqState::kEnded;
    req->state = state;
    req->opened = true;
    req->num_scheduled = req->num_computed;
    const uint32_t page_size = impl_.config.page_size;
    if (req->slot >= used_slots_.size() || used_slots_[req->slot]++) return Broken("slot");
    if (req->num_computed < req->num_shared * page_size ||
        req->num_computed > req->num_pages * uint64_t{page_size} || req->prefill_len == 0 ||
        req->prefill_len > req->len() || !req->was_scheduled || req->pages_sent > req->num_pages ||
        req->draft_at >= req->len() || (req->draft_at > 0 && !impl_.MayDraft(*req)) ||
        !(ended ? req->kept_len >= req->prompt_len : req->kept_len == UINT32_MAX)) {
      return Broken("progress");
    }
    return OkStatus();
  }

  Status LoadWaiting() {
    const auto count = in_.Get<uint32_t>();
    std::vector<Req*> reqs;
    for (uint32_t i = 0; i < count; ++i) {
      Req* req = impl_.pool.New();
      RETURN_IF_ERROR(LoadReq(req));
      field_(req->retracted);
      if (!field_.good() || !GetTokens(&in_, impl_.config.vocab_size, &req->token_ids)) {
        return Broken("waiting request");
      }
      RETURN_IF_ERROR(CheckReq(req));
      const bool begun = req->was_scheduled || req->len() > req->prompt_len;
      if (!HasTokensLeft(*req) || (req->retracted && !begun)) {
        return Broken("progress");
      }
      RETURN_IF_ERROR(Attach(req));
      RETURN_IF_ERROR(Enlist(req));
      reqs.push_back(req);
    }
    RETURN_IF_ERROR(impl_.waiting_queue.Restore(&in_, reqs, holders_));
    return in_.ok() ? OkStatus() : Broken("waiting queue");
  }

  Status LoadPlans() {
    field_(impl_.num_in_flight);
    if (!field_.good() || impl_.num_in_flight > impl_.config.max_plans_in_flight ||
        impl_.num_in_flight > impl_.last_step_id) {
      return Broken("plans");
    }
    std::vector<RowSnapshot> rows;
    for (uint32_t i = 0; i < impl_.num_in_flight; ++i) {
      ScheduleBatch& batch = impl_.result_queue[i];
      batch.step_id = impl_.last_step_id - (impl_.num_in_flight - 1 - i);
      field_(batch.many_logits), field_(rows);
      if (!field_.good() || rows.empty()) return Broken("plans");
      std::vector<uint8_t> seen(holders_.size());
      for (const RowSnapshot& row : rows) {
        if (row.holder >= holders_.size() || seen[row.holder]++) return Broken("rows");
        RETURN_IF_ERROR(LoadRow(row, &batch));
      }
    }
    return OkStatus();
  }

  // What a row extends and whether it samples follows from where it lies.
  Status LoadRow(const RowSnapshot& row, ScheduleBatch* batch) {
    Req* req = holders_[row.holder];
    const uint64_t end = uint64_t{row.start} + row.num_tokens;
    const bool follows = req->state == ReqState::kEnded ? row.start >= req->num_scheduled
                                                        : row.start == req->num_scheduled;
    const bool extends = row.start < req->prefill_len;
    if (!follows || row.num_tokens == 0 ||
        end > req->num_pages * uint64_t{impl_.config.page_size} ||
        (extends ? end > req->prefill_len : req->is_pooled || !MayHaveDraft(*req, row))) {
      return Broken("row");
    }
    const bool is_last = end >= req->prefill_len;
    const bool samples = is_last && !req->is_pooled;
    batch->AddRow({.req = req,
                   .start = row.start,
                   .num_tokens = row.num_tokens,
                   .samples = samples,
                   .embeds = is_last && req->is_pooled,
                   .extend = extends});
    req->num_scheduled = static_cast<uint32_t>(end);
    req->num_unknown += batch->rows.back().num_sampled();
    ++req->plans_in_flight;
    return OkStatus();
  }

  // A draft goes on from a known token, and nothing goes on from it before its result.
  static bool MayHaveDraft(const Req& req, const RowSnapshot& row) {
    if (row.num_tokens == 1) return !req.draft_in_flight();
    return row.num_tokens <= 1 + kMaxDraftTokens && req.num_unknown == 0;
  }

  // It samples a token more, or ends in an embedding.
  static bool HasTokensLeft(const Req& req) { return req.is_pooled || req.len() < req.max_total; }

  // It computes its prompt, is one token behind, or waits for its embedding.
  static Status CheckRunning(const Req& req) {
    bool good = req.num_unknown == 0 && req.prefill_len == req.len();
    if (req.is_decode()) {
      good = req.is_pooled ? req.num_pending() == 0 && req.plans_in_flight > 0
                           : req.num_pending() == 1;
    }
    if (good && HasTokensLeft(req) && req.planned_len() <= req.max_total) return OkStatus();
    return Broken("progress");
  }

  Impl& impl_;
  const GrammarSource& grammars_;
  WireReader in_;
  FieldLoader field_;
  size_t num_nodes_ = 0;
  std::vector<Req*> holders_;  // ended ones first
  std::vector<uint8_t> used_slots_;
  absl::flat_hash_set<uint64_t> seqs_;
};

Status Scheduler::Impl::Restore(std::string_view bytes, const GrammarSource& grammars) {
  return Loader(this, bytes, grammars).Load();
}

StatusOr<std::unique_ptr<Scheduler>> Scheduler::Restore(const SchedulerConfig& config,
                                                        std::string_view bytes,
                                                        const GrammarSource& grammars) {
  const auto broken = [](const Status& status) {
    return absl::DataLossError(StrCat("snapshot: ", status.message()));
  };
  // The first epoch may have brought another number of pages. Each is listed, as is each slot.
  SchedulerConfig sized = config;
  sized.num_pages = WireReader(bytes).Get<uint32_t>();
  if (const Status valid = ValidateSchedulerConfig(sized); !valid.ok()) return broken(valid);
  if (sized.num_pages > bytes.size() / sizeof(PageId) ||
      sized.max_running_requests > bytes.size() / sizeof(uint32_t) ||
      sized.max_queued_requests > kMaxQueued ||
      uint64_t{sized.num_pages} * sized.page_size > kMaxCacheTokens) {
    return broken(Broken("sizes"));
  }
  auto scheduler = std::make_unique<Scheduler>(sized);
  if (const Status loaded = scheduler->impl_->Restore(bytes, grammars); !loaded.ok())
    return broken(loaded);
  if (const Status ledger = scheduler->CheckLedger(); !ledger.ok()) return broken(ledger);
  return scheduler;
}

}  // namespace flotilla
