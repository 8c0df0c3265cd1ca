#include "scheduler_proc/simulation/simulator.h"

#include <algorithm>
#include <deque>
#include <numeric>

#include "common/base/check.h"

namespace flotilla {
namespace {

constexpr int32_t kEnd = 0;  // the token that ends a request; MakePrompt makes none

class Simulation {
 public:
  Simulation(const SimOptions& options, const std::vector<SimRequest>& requests)
      : options_(options),
        requests_(requests),
        live_(requests.size()),
        slots_(options.config.max_running_requests),
        core_(WithEnd(options.config)) {
    core_.BeginEpoch(1, options.config.num_pages);
  }

  StatusOr<SimReport> Run() {
    while (next_ < requests_.size() || core_.HasWork()) {
      now_ns_ = std::max(now_ns_, NextEventNs());
      RETURN_IF_ERROR(TakeArrivals());
      TakeResults();
      while (core_.PlanDueNs() <= now_ns_ && Plan()) continue;
    }
    for (std::vector<int64_t>* list : {&report_.ttft_ns, &report_.token_gap_ns, &report_.e2e_ns}) {
      std::sort(list->begin(), list->end());
    }
    const SchedulerStats& stats = core_.stats();
    report_.cached_tokens = stats.cached_tokens;
    report_.prompt_tokens = stats.prompt_tokens;
    report_.steps = stats.steps;
    report_.retractions = stats.retractions;
    return std::move(report_);
  }

 private:
  struct Live {
    int64_t sent_ns = 0, last_token_ns = 0;
    uint32_t num_tokens = 0;
  };
  // What the workers know of a slot.
  struct Slot {
    uint32_t prompt_tokens = 0;
    size_t request = 0;
  };
  struct InFlight {
    StepResult result;
    int64_t answered_ns = 0;
  };

  static SchedulerConfig WithEnd(SchedulerConfig config) {
    config.eos_ids = {kEnd};
    return config;
  }

  int64_t NextEventNs() const {
    int64_t next = INT64_MAX;
    if (next_ < requests_.size() && HasPlace()) {
      next = options_.clients > 0 ? now_ns_ : requests_[next_].arrival_ns;
    }
    if (!in_flight_.empty()) next = std::min(next, in_flight_.front().answered_ns);
    const int64_t due_ns = core_.PlanDueNs();
    if (due_ns > now_ns_) next = std::min(next, due_ns);  // else there was nothing to plan
    CHECK(next != INT64_MAX);
    return next;
  }

  bool HasPlace() const { return options_.clients == 0 || num_live_ < options_.clients; }

  Status TakeArrivals() {
    for (; next_ < requests_.size() && HasPlace(); ++next_) {
      const SimRequest& request = requests_[next_];
      if (options_.clients == 0 && request.arrival_ns > now_ns_) break;
      ReqSpec spec;
      spec.id = next_ + 1;
      spec.prompt_ids = MakePrompt(request, next_, options_.config.vocab_size);
      spec.max_new_tokens = request.max_new_tokens;
      spec.cache_salt = request.tenant;
      spec.priority = request.priority;
      spec.sampling.seed = next_;  // by which the workers know it
      spec.arrival_ns = now_ns_;
      const Status added = core_.Add(std::move(spec), now_ns_);
      if (absl::IsResourceExhausted(added)) {
        ++report_.rejected;
        continue;
      }
      RETURN_IF_ERROR(Annotate(added, StrCat("request ", next_ + 1)));
      live_[next_].sent_ns = options_.clients > 0 ? now_ns_ : request.arrival_ns;
      if (first_ns_ < 0) first_ns_ = now_ns_;
      ++num_live_;
    }
    return OkStatus();
  }

  bool Plan() {
    if (!core_.PlanStep(now_ns_, &plan_)) return false;
    const int64_t start_ns =
        std::max(now_ns_ + options_.model.dispatch_ns, free_ns_ + options_.model.gap_ns);
    const int64_t end_ns = start_ns + std::max<int64_t>(1, options_.model.Predict(WorkOf(plan_)));
    free_ns_ = end_ns;
    InFlight& step = in_flight_.emplace_back();
    step.answered_ns = end_ns + options_.model.result_ns;
    step.result.step_id = plan_.step_id;
    step.result.epoch = plan_.epoch;
    step.result.start_ns = start_ns;
    step.result.end_ns = end_ns;
    for (const PlanOpen& open : plan_.opens) {
      slots_[open.slot] = {open.output_start, static_cast<size_t>(open.sampling.seed)};
    }
    for (const PlanRow& row : plan_.rows) {
      RowResult& out = step.result.rows.emplace_back();
      out.slot = row.slot;
      if (row.flags & kRowSample)
        out.token = Sample(slots_[row.slot], row.start_pos + row.num_tokens);
    }
    return true;
  }

  // The token at `position`.
  int32_t Sample(const Slot& slot, uint32_t position) const {
    const uint32_t number = position - slot.prompt_tokens + 1;  // of the output
    if (number >= requests_[slot.request].output_tokens) return kEnd;
    const uint64_t hash = (uint64_t{position} << 32 ^ slot.request) * 0x9E3779B97F4A7C15ull;
    return static_cast<int32_t>(1 + (hash >> 33) % (options_.config.vocab_size - 1));
  }

  void TakeResults() {
    while (!in_flight_.empty() && in_flight_.front().answered_ns <= now_ns_) {
      outputs_.clear();
      core_.OnResult(in_flight_.front().result, now_ns_, &outputs_);
      in_flight_.pop_front();
      for (const ReqOutput& output : outputs_) HandOut(output);
    }
  }

  void HandOut(const ReqOutput& output) {
    Live& live = live_[output.id - 1];
    if (output.token.has_value()) {
      if (live.num_tokens++ == 0) {
        report_.ttft_ns.push_back(now_ns_ - live.sent_ns);
      } else {
        report_.token_gap_ns.push_back(now_ns_ - live.last_token_ns);
      }
      live.last_token_ns = now_ns_;
    }
    if (output.finish == Finish::kNone) return;
    --num_live_;
    ++report_.finished;
    report_.output_tokens += output.completion_tokens;
    report_.e2e_ns.push_back(now_ns_ - live.sent_ns);
    report_.duration_ns = now_ns_ - first_ns_;
  }

  const SimOptions& options_;
  const std::vector<SimRequest>& requests_;
  std::vector<Live> live_;
  std::vector<Slot> slots_;
  Scheduler core_;
  StepPlan plan_;
  std::deque<InFlight> in_flight_;
  std::vector<ReqOutput> outputs_;
  size_t next_ = 0;
  uint64_t num_live_ = 0;
  int64_t now_ns_ = 0, free_ns_ = 0, first_ns_ = -1;
  SimReport report_;
};

}  // namespace

double SimReport::OutputRate() const {
  if (duration_ns == 0) return 0;
  return static_cast<double>(output_tokens) / (static_cast<double>(duration_ns) * 1e-9);
}

double MeanOf(const std::vector<int64_t>& values) {
  if (values.empty()) return 0;
  const double sum = std::accumulate(values.begin(), values.end(), 0.0);
  return sum / static_cast<double>(values.size());
}

int64_t Quantile(const std::vector<int64_t>& rising, double share) {
  if (rising.empty()) return 0;
  const auto index = static_cast<size_t>(share * static_cast<double>(rising.size()));
  return rising[std::min(index, rising.size() - 1)];
}

StatusOr<SimReport> Simulate(const SimOptions& options, const std::vector<SimRequest>& requests) {
  RETURN_IF_ERROR(ValidateSchedulerConfig(options.config));
  if (options.config.num_pages == 0 || options.config.vocab_size < 2) {
    return absl::InvalidArgumentError("num_pages and vocab_size must be known");
  }
  return Simulation(options, requests).Run();
}

}  // namespace flotilla
