#include "scheduler_proc/core/scheduler.h"

#include <algorithm>

#include "common/base/check.h"
#include "scheduler_proc/core/scheduler_impl.h"

namespace flotilla {

Status ValidateSchedulerConfig(const SchedulerConfig& config) {
  const auto bad = [](const char* what) { return absl::InvalidArgumentError(what); };
  if (config.page_size == 0) return bad("page_size: must be at least 1");
  if (config.max_running_requests == 0) return bad("max_running_requests: must be at least 1");
  if (config.chunked_prefill_size == 0) return bad("chunked_prefill_size: must be at least 1");
  if (config.max_prefill_tokens == 0) return bad("max_prefill_tokens: must be at least 1");
  if (config.context_length < 2) return bad("context_length: must be at least 2");
  if (config.max_plans_in_flight == 0 || config.max_plans_in_flight > kMaxPlansInFlight) {
    return bad("max_plans_in_flight: must be 1 or 2");
  }
  if (config.speculative_num_draft_tokens > kMaxDraftTokens) {
    return bad("speculative_num_draft_tokens: must be at most 16");
  }
  if (config.max_step_ns < 0) return bad("max_step_ns: must be at least 0");
  if (config.vocab_size == 0) return bad("vocab_size: must be at least 1");
  const auto is_share = [](double share) { return share >= 0 && share <= 1; };
  if (!is_share(config.init_new_token_ratio)) {
    return bad("init_new_token_ratio: must be within [0, 1]");
  }
  if (!is_share(config.min_new_token_ratio_factor)) {
    return bad("min_new_token_ratio_factor: must be within [0, 1]");
  }
  if (config.new_token_ratio_decay_steps == 0) {
    return bad("new_token_ratio_decay_steps: must be at least 1");
  }
  if (!(config.schedule_conservativeness >= 0 && config.schedule_conservativeness <= 1e3)) {
    return bad("schedule_conservativeness: must be within [0, 1000]");
  }
  if (config.eviction_policy != "lru" && config.eviction_policy != "lfu") {
    return bad("eviction_policy: is neither lru nor lfu");
  }
  const auto is_weight = [](double weight) { return weight >= 0 && weight <= 1e6; };
  if (!is_weight(config.vtc_input_weight)) return bad("vtc_input_weight: must be within [0, 1e6]");
  if (!is_weight(config.vtc_output_weight)) {
    return bad("vtc_output_weight: must be within [0, 1e6]");
  }
  if (FindSchedulePolicy(config.schedule_policy) == nullptr) {
    std::string names;
    for (const auto name : SchedulePolicyNames()) names.append(" ").append(name);
    return absl::InvalidArgumentError(
        absl::StrCat("schedule_policy: \"", config.schedule_policy, "\" is not one of:", names));
  }
  return OkStatus();
}

Scheduler::Impl::Impl(const SchedulerConfig& config)
    : config(config),
      token_buffers(config.max_running_requests),
      kv(config.page_size, config.enable_prefix_cache,
         config.eviction_policy == "lfu" ? EvictionPolicy::kLfu : EvictionPolicy::kLru),
      slots(config.max_running_requests),
      waiting_queue(config, &kv),
      new_token_ratio(config) {
  kv.Reset(config.num_pages);
  running_batch.reserve(config.max_running_requests);
  ending.reserve(config.max_running_requests);
  for (ScheduleBatch& batch : result_queue) batch.rows.reserve(config.max_running_requests);
  preempting.reserve(config.max_queued_requests + 2 * size_t{config.max_running_requests});
}

Scheduler::Scheduler(const SchedulerConfig& config) {
  CHECK_OK(ValidateSchedulerConfig(config));
  impl_ = std::make_unique<Impl>(config);
}
Scheduler::~Scheduler() = default;

Status Scheduler::Add(ReqSpec spec, int64_t now_ns) { return impl_->Add(std::move(spec), now_ns); }

bool Scheduler::Abort(ReqId id, Finish reason, std::vector<ReqOutput>* outputs) {
  return impl_->Abort(id, reason, outputs);
}

bool Scheduler::Truncate(ReqId id, uint32_t num_tokens, int64_t now_ns,
                         std::vector<ReqOutput>* outputs) {
  return impl_->Truncate(id, num_tokens, now_ns, outputs);
}

void Scheduler::ExpireDeadlines(int64_t now_ns, std::vector<ReqOutput>* outputs) {
  impl_->ExpireDeadlines(now_ns, outputs);
}

bool Scheduler::PlanStep(int64_t now_ns, StepPlan* plan) { return impl_->PlanStep(now_ns, plan); }

void Scheduler::OnResult(const StepResult& result, int64_t now_ns,
                         std::vector<ReqOutput>* outputs) {
  impl_->OnResult(result, now_ns, outputs);
}

void Scheduler::BeginEpoch(uint32_t epoch, uint32_t num_pages) {
  impl_->BeginEpoch(epoch, num_pages);
}

int64_t Scheduler::PlanDueNs() const {
  if (impl_->num_in_flight == 0) return INT64_MIN;
  if (impl_->num_in_flight == impl_->config.max_plans_in_flight || impl_->WaitsForDrafts())
    return INT64_MAX;
  const int64_t step_ns = impl_->step_cost.Predict(impl_->result_queue.front().work);
  return impl_->step_begin_ns + step_ns - std::max(kMinPlanLeadNs, step_ns / kPlanLeadShare);
}

void Scheduler::SetPageLog(PageLog* log) { impl_->kv.set_page_log(log); }
WaitReason Scheduler::wait_reason() const { return impl_->wait_reason; }
bool Scheduler::HasWork() const {
  return !impl_->waiting_queue.empty() || !impl_->running_batch.empty();
}

uint32_t Scheduler::plans_in_flight() const { return impl_->num_in_flight; }

std::vector<Scheduler::PlannedReq> Scheduler::RequestsOfNextResult() const {
  std::vector<PlannedReq> planned;
  if (impl_->num_in_flight == 0) return planned;
  for (const BatchRow& row : impl_->result_queue.front().rows)
    planned.push_back({row.req->spec.id, row.req->slot});
  return planned;
}

const SchedulerStats& Scheduler::stats() const {
  SchedulerStats& stats = impl_->stats;
  stats.running = static_cast<uint32_t>(impl_->running_batch.size());
  stats.waiting = static_cast<uint32_t>(impl_->waiting_queue.size());
  stats.ending = static_cast<uint32_t>(impl_->ending.size());
  stats.total_pages = impl_->kv.num_pages();
  stats.free_pages = impl_->kv.allocator().num_free();
  stats.evictable_pages = impl_->kv.cache().evictable_pages();
  stats.queued_tokens = impl_->waiting_queue.num_tokens();
  const Req* const oldest = impl_->waiting_queue.oldest();
  stats.oldest_queued_ns = oldest == nullptr ? 0 : oldest->queued_ns;
  stats.new_token_ratio = impl_->new_token_ratio.value();
  stats.running_tokens = 0;
  // By who holds them, so that a lost page is missing in the sum.
  stats.locked_pages = impl_->kv.cache().total_pages() - stats.evictable_pages;
  for (const Req* req : impl_->running_batch) {
    stats.running_tokens += req->len();
    stats.locked_pages += req->num_pages - req->num_shared;
  }
  for (const Req* req : impl_->ending) stats.locked_pages += req->num_pages - req->num_shared;
  return stats;
}

Status Scheduler::CheckLedger() const {
  std::vector<Req*> holders = impl_->running_batch;
  holders.insert(holders.end(), impl_->ending.begin(), impl_->ending.end());
  Status status = OkStatus();
  impl_->waiting_queue.ForEach([&](const Req& req) {
    if (req.num_pages == 0 && req.slot == kNoSlot && req.last_node == kNoNode) return;
    status =
        absl::InternalError(absl::StrCat("ledger: waiting request ", req.spec.id, " holds pages"));
  });
  RETURN_IF_ERROR(status);
  if (impl_->pool.num_live() != holders.size() + impl_->waiting_queue.size()) {
    return absl::InternalError("ledger: a request is nowhere");
  }
  return impl_->kv.CheckLedger(holders);
}

}  // namespace flotilla
