#include "scheduler_proc/loop/loop_metrics.h"

#include <algorithm>
#include <utility>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "shm/ring_metrics.h"

namespace flotilla {
namespace {

const std::vector<double> kTtft = {.001, .005, .01, .02, .04, .06, .08, .1, .25, .5,  .75,
                                   1,    2.5,  5,   7.5, 10,  20,  40,  80, 160, 640, 2560};
const std::vector<double> kInterToken = {.001, .002, .004, .006, .008, .01, .025, .05,
                                         .075, .1,   .15,  .2,   .3,   .4,  .5,   .75,
                                         1,    2.5,  5,    7.5,  10,   20,  40,   80};
const std::vector<double> kTokens = {1,   2,   5,    10,   20,   50,    100,
                                     200, 500, 1000, 2000, 5000, 10000, 20000};
const std::vector<double> kStep = {.00025, .0005, .001, .0025, .005, .01, .025,
                                   .05,    .1,    .25,  .5,    1,    2.5, 5};

double Seconds(int64_t ns) { return static_cast<double>(std::max<int64_t>(0, ns)) * 1e-9; }

uint64_t UsedPages(const SchedulerStats& s) {
  return s.total_pages - std::min(s.total_pages, s.free_pages + s.evictable_pages);
}

double Usage(const SchedulerStats& s) {
  return s.total_pages == 0
             ? 0
             : static_cast<double>(UsedPages(s)) / static_cast<double>(s.total_pages);
}

// Prompt tokens of the plan: all but those of rows of one token, or of one and a draft, that go on
// sampling.
uint64_t PrefillTokens(const StepPlan& plan) {
  uint64_t decode = 0;
  for (const PlanRow& row : plan.rows) {
    const bool opened = std::any_of(plan.opens.begin(), plan.opens.end(),
                                    [&](const PlanOpen& open) { return open.slot == row.slot; });
    const bool goes_on = row.num_tokens == 1 || (row.flags & kRowVerify) != 0;
    if (goes_on && (row.flags & kRowSample) != 0 && !opened) decode += row.num_tokens;
  }
  return plan.input_ids.size() - decode;
}

}  // namespace

LoopMetrics::LoopMetrics(const Options& options, prometheus::Registry* registry)
    : options_(options),
      registry_(registry),
      running_(Gauge("requests_running", "Requests in the running batch.")),
      waiting_(Gauge("requests_waiting", "Requests in the waiting queue.")),
      usage_(Gauge("kv_cache_usage_ratio", "Share of KV pages that running requests hold.")),
      unaccounted_(
          Gauge("kv_pages_unaccounted", "KV pages neither free, evictable nor locked; always 0.")),
      flight_(Gauge("flight_recorder_seconds",
                    "How far back the flight recording can be replayed, from the last step.")),
      prompt_tokens_(Counter("prompt_tokens_total", "Prompt tokens of admitted requests.")),
      generated_(Counter("generation_tokens_total", "Tokens generated.")),
      cached_(Counter("cached_tokens_total", "Prompt tokens read from the prefix cache.")),
      queries_(Counter("prefix_cache_queries_total", "Tokens looked up in the prefix cache.")),
      hits_(Counter("prefix_cache_hits_total", "Tokens found in the prefix cache.")),
      draft_tokens_(
          Counter("spec_decode_draft_tokens_total", "Drafted tokens that were verified.")),
      accepted_(
          Counter("spec_decode_accepted_tokens_total", "Of those, the ones that were right.")),
      retractions_(Counter("retractions_total", "Requests put back for lack of KV pages.")),
      rejected_results_(AddCounter(registry, RejectedFramesSpec("result"))),
      ttft_(Histogram("time_to_first_token_seconds", "Arrival to first token.", kTtft)),
      inter_token_(Histogram("inter_token_latency_seconds",
                             "Between tokens; several of a step, by drafts, came evenly.",
                             kInterToken)),
      e2e_(Histogram("e2e_request_latency_seconds", "Arrival to last token.", kTtft)),
      queue_time_(Histogram("request_queue_time_seconds", "Arrival to first scheduled.", kTtft)),
      prefill_time_(
          Histogram("request_prefill_time_seconds", "First scheduled to first token.", kTtft)),
      decode_time_(Histogram("request_decode_time_seconds", "First token to last.", kTtft)),
      request_prompt_(Histogram("request_prompt_tokens", "Prompt tokens a request.", kTokens)),
      request_generated_(
          Histogram("request_generation_tokens", "Output tokens a request.", kTokens)),
      gap_(Histogram("step_gap_seconds", "Between the end of a step and the next one's start.",
                     kStep)),
      batch_tokens_(Histogram("batch_tokens", "Tokens a step.", kTokens)) {
  for (const char* mode : {"prefill", "decode", "mixed"})
    step_seconds_[mode] =
        &Histogram("step_seconds", "A step on the workers.", kStep, {{"mode", mode}});
  for (size_t i = 0; i < wait_time_.size(); ++i) {
    wait_time_[i] = &Histogram(
        "request_wait_time_seconds",
        "In the queue until first scheduled, by what kept the request there the longest.", kTtft,
        {{"reason", WaitReasonName(static_cast<WaitReason>(i))}});
  }
  for (const char* reason : {"queue_full", "invalid", "unavailable", "unimplemented"})
    Rejections(reason);
  for (const Finish finish :
       {Finish::kStop, Finish::kLength, Finish::kAbort, Finish::kDeadline, Finish::kError})
    Finished(finish);
}

prometheus::Counter& LoopMetrics::Rejections(const char* reason) {
  return Counter("rejections_total", "Requests the scheduler refused.", {{"reason", reason}});
}

prometheus::Counter& LoopMetrics::Finished(Finish finish) {
  return Counter("request_success_total", "Requests that ended, by how.",
                 {{"finished_reason", FinishName(finish)}});
}

void LoopMetrics::OnServing(bool serving, uint32_t num_pages) {
  if (serving_ == nullptr) {
    if (!serving) return;  // it loads
    serving_ =
        &Gauge("serving", "1 while every rank of the epoch is ready; absent until the first time.");
  }
  serving_->Set(serving ? 1 : 0);
  last_end_ns_ = 0;  // what lies between is no gap between steps
  Gauge(
      "cache_config_info", "The KV cache's shape.",
      {{"num_pages", std::to_string(num_pages)}, {"page_size", std::to_string(options_.page_size)}})
      .Set(1);
}

void LoopMetrics::OnPlan(const StepPlan& plan, const SchedulerStats& before,
                         const SchedulerStats& after, int64_t now_ns) {
  const uint64_t prefill = PrefillTokens(plan);
  batch_tokens_.Observe(static_cast<double>(plan.input_ids.size()));
  modes_[plan.step_id % modes_.size()] = prefill == 0                       ? "decode"
                                         : prefill == plan.input_ids.size() ? "prefill"
                                                                            : "mixed";
  if (prefill > 0) LogPrefill(plan, prefill, after.cached_tokens - before.cached_tokens, after);
  if (prefill == plan.input_ids.size()) return;
  if (options_.decode_log_interval != 0 && ++decode_steps_ % options_.decode_log_interval == 0)
    LogDecode(after, now_ns);
}

void LoopMetrics::LogPrefill(const StepPlan& plan, uint64_t new_tokens, uint64_t cached,
                             const SchedulerStats& stats) {
  Log().info("prefill {} {} {} {} {}", Kv("num_new_seq", plan.opens.size()),
             Kv("new_token", new_tokens), Kv("cached_token", cached),
             Kv("token_usage", Usage(stats)), Kv("queue_req", stats.waiting));
}

void LoopMetrics::LogDecode(const SchedulerStats& stats, int64_t now_ns) {
  const double seconds = Seconds(now_ns - last_decode_log_ns_);
  const uint64_t tokens = stats.generated_tokens - last_decode_log_tokens_;
  const double throughput =
      last_decode_log_ns_ == 0 || seconds == 0 ? 0 : static_cast<double>(tokens) / seconds;
  Log().info("decode {} {} {} {} {} {}", Kv("running_req", stats.running),
             Kv("token", UsedPages(stats) * options_.page_size), Kv("token_usage", Usage(stats)),
             Kv("cuda_graph", cuda_graph_), Kv("gen_throughput", throughput),
             Kv("queue_req", stats.waiting));
  last_decode_log_ns_ = now_ns;
  last_decode_log_tokens_ = stats.generated_tokens;
}

void LoopMetrics::OnResult(const StepResult& result, const SchedulerStats& stats) {
  cuda_graph_ = result.cuda_graph;
  step_seconds_[modes_[result.step_id % modes_.size()]]->Observe(
      Seconds(result.end_ns - result.start_ns));
  if (last_end_ns_ != 0) gap_.Observe(Seconds(result.start_ns - last_end_ns_));
  const bool more = stats.running > 0 || stats.waiting > 0;
  last_end_ns_ = more ? result.end_ns : 0;
}

void LoopMetrics::OnToken(int64_t arrival_ns, int64_t last_token_ns, int64_t now_ns) {
  if (last_token_ns == 0)
    ttft_.Observe(Seconds(now_ns - arrival_ns));
  else
    inter_token_.Observe(Seconds(now_ns - last_token_ns));
}

void LoopMetrics::OnFinished(const ReqOutput& output, int64_t arrival_ns, int64_t now_ns) {
  Finished(output.finish).Increment();
  if (output.finish != Finish::kStop && output.finish != Finish::kLength) return;
  e2e_.Observe(Seconds(now_ns - arrival_ns));
  // The three stages add up to the whole.
  queue_time_.Observe(Seconds(output.first_scheduled_ns - arrival_ns));
  wait_time_[static_cast<size_t>(output.wait_reason)]->Observe(
      Seconds(output.first_scheduled_ns - output.queued_ns));
  prefill_time_.Observe(Seconds(output.first_token_ns - output.first_scheduled_ns));
  decode_time_.Observe(Seconds(now_ns - output.first_token_ns));
  request_prompt_.Observe(output.prompt_tokens);
  request_generated_.Observe(output.completion_tokens);
}

void LoopMetrics::OnRejected(absl::StatusCode code) {
  const char* reason = "invalid";
  if (code == absl::StatusCode::kResourceExhausted) reason = "queue_full";
  if (code == absl::StatusCode::kUnavailable) reason = "unavailable";
  if (code == absl::StatusCode::kUnimplemented) reason = "unimplemented";
  Rejections(reason).Increment();
}

void LoopMetrics::OnStats(const SchedulerStats& stats) {
  running_.Set(stats.running);
  waiting_.Set(stats.waiting);
  usage_.Set(Usage(stats));
  unaccounted_.Set(
      static_cast<double>(stats.total_pages) -
      static_cast<double>(stats.free_pages + stats.evictable_pages + stats.locked_pages));
  auto add = [](prometheus::Counter& counter, uint64_t now, uint64_t before) {
    if (now > before) counter.Increment(static_cast<double>(now - before));
  };
  add(prompt_tokens_, stats.prompt_tokens, counted_.prompt_tokens);
  add(generated_, stats.generated_tokens, counted_.generated_tokens);
  add(cached_, stats.cached_tokens, counted_.cached_tokens);
  add(queries_, stats.prefix_queries, counted_.prefix_queries);
  add(hits_, stats.prefix_hits, counted_.prefix_hits);
  add(draft_tokens_, stats.draft_tokens, counted_.draft_tokens);
  add(accepted_, stats.accepted_draft_tokens, counted_.accepted_draft_tokens);
  add(retractions_, stats.retractions, counted_.retractions);
  counted_ = stats;
}

MetricSpec LoopMetrics::Spec(const char* name, const char* help, prometheus::Labels labels) const {
  labels["model"] = options_.model;
  labels["replica"] = options_.replica;
  return {std::string("flotilla_scheduler_") + name, help, std::move(labels)};
}

prometheus::Counter& LoopMetrics::Counter(const char* name, const char* help,
                                          prometheus::Labels extra) {
  return AddCounter(registry_, Spec(name, help, std::move(extra)));
}

prometheus::Gauge& LoopMetrics::Gauge(const char* name, const char* help,
                                      prometheus::Labels extra) {
  return AddGauge(registry_, Spec(name, help, std::move(extra)));
}

prometheus::Histogram& LoopMetrics::Histogram(const char* name, const char* help,
                                              const std::vector<double>& buckets,
                                              prometheus::Labels extra) {
  return AddHistogram(registry_, Spec(name, help, std::move(extra)), buckets);
}

}  // namespace flotilla
