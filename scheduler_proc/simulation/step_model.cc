#include "scheduler_proc/simulation/step_model.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "scheduler_proc/flight/replay.h"

namespace flotilla {
namespace {

using Terms = std::array<double, StepModel::kTerms>;

constexpr uint64_t kFewTokens = 8;
constexpr int kRounds = 5;                // of weighing outliers less
constexpr int kSweeps = 20000;            // of coordinate descent
constexpr double kOutlier = 0.2;          // relative error from which a step counts less
constexpr double kMaxStepNs = 1e12;       // a model's file may say anything; sums must not overflow
constexpr int64_t kMaxGapNs = 2'000'000;  // more, and the workers had nothing to do

Terms TermsOf(const StepWork& work) {
  const uint64_t tokens = work.decode_tokens + work.chunk_tokens;
  return {1,
          static_cast<double>(work.decode_tokens),
          static_cast<double>(work.chunk_tokens),
          static_cast<double>(work.decode_reads) / 1024,
          static_cast<double>(work.chunk_reads) / 1024,
          static_cast<double>(std::min(tokens, kFewTokens))};
}

double Dot(const Terms& a, const Terms& b) {
  return std::inner_product(a.begin(), a.end(), b.begin(), 0.0);
}

// Minimises |A c - b|² over c ≥ 0, given AᵀA and Aᵀb, one coefficient at a time.
void SolveNonNegative(const std::array<Terms, StepModel::kTerms>& products, const Terms& target,
                      Terms* c) {
  for (int sweep = 0; sweep < kSweeps; ++sweep) {
    for (size_t i = 0; i < c->size(); ++i) {
      if (products[i][i] == 0) continue;  // a term that never occurred
      const double slope = target[i] - Dot(products[i], *c);
      (*c)[i] = std::max(0.0, (*c)[i] + slope / products[i][i]);
    }
  }
}

int64_t Median(std::vector<int64_t>* values) {
  if (values->empty()) return 0;
  const auto middle = values->begin() + static_cast<ptrdiff_t>(values->size() / 2);
  std::nth_element(values->begin(), middle, values->end());
  return *middle;
}

int64_t Mean(const std::vector<int64_t>& values) {
  if (values.empty()) return 0;
  return std::accumulate(values.begin(), values.end(), int64_t{0}) /
         static_cast<int64_t>(values.size());
}

// What a recording tells of its steps, in the order of its calls.
class StepReader {
 public:
  void Look(const ReplayMoment& moment) {
    const FlightRecord& record = moment.record;
    if (moment.begins) config_ = record.config;
    if (moment.begins || record.kind == FlightKind::kBeginEpoch) {
      num_pages_ = static_cast<uint32_t>(moment.core.stats().total_pages);
      in_flight_.clear();
      last_end_ns_ = 0;
      num_unknown_ = moment.core.plans_in_flight();
    }
    if (record.kind == FlightKind::kPlan && record.ok) AddPlan(record, moment.plan);
    if (record.kind == FlightKind::kResult) AddResult(record);
  }

  StatusOr<StepModel> Take() {
    StepModel model;
    RETURN_IF_ERROR(FitSteps(samples_, &model));
    model.gap_ns = Mean(gaps_);
    model.dispatch_ns = Median(&dispatches_);
    model.result_ns = Median(&results_);
    model.num_pages = num_pages_;
    model.page_size = config_.page_size;
    model.context_length = config_.context_length;
    model.vocab_size = config_.vocab_size;
    return model;
  }

 private:
  struct Planned {
    uint64_t step_id = 0;
    int64_t planned_ns = 0;
    StepWork work;
    bool alone = false;  // no other plan was in flight
    bool many_logits = false;
  };

  void AddPlan(const FlightRecord& record, const StepPlan& plan) {
    Planned planned{record.step_id, record.now_ns, WorkOf(plan), num_in_flight() == 0};
    for (const PlanRow& row : plan.rows) {
      planned.many_logits |= (row.flags & kRowPromptLogprobs) != 0;
    }
    in_flight_.push_back(planned);
  }

  void AddResult(const FlightRecord& record) {
    const StepResult& result = record.result;
    if (num_unknown_ > 0) {
      --num_unknown_;
      last_end_ns_ = result.end_ns;
      return;
    }
    const auto planned =
        std::find_if(in_flight_.begin(), in_flight_.end(),
                     [&](const Planned& plan) { return plan.step_id == result.step_id; });
    if (planned == in_flight_.end() || result.code != 0) return;
    if (!planned->many_logits) {
      samples_.push_back({planned->work, result.end_ns - result.start_ns});
    }
    if (planned->alone) {
      dispatches_.push_back(result.start_ns - planned->planned_ns);
    } else if (last_end_ns_ != 0 && result.start_ns - last_end_ns_ < kMaxGapNs) {
      gaps_.push_back(result.start_ns - last_end_ns_);
    }
    results_.push_back(record.now_ns - result.end_ns);
    last_end_ns_ = result.end_ns;
    in_flight_.erase(planned);
  }

  size_t num_in_flight() const { return in_flight_.size() + num_unknown_; }

  SchedulerConfig config_;
  uint32_t num_pages_ = 0;
  uint32_t num_unknown_ = 0;  // plans in flight, the oldest, that were made before the recording
  std::vector<Planned> in_flight_;
  int64_t last_end_ns_ = 0;
  std::vector<StepSample> samples_;
  std::vector<int64_t> gaps_, dispatches_, results_;
};

}  // namespace

StepWork WorkOf(const StepPlan& plan) {
  StepWork work;
  for (const PlanRow& row : plan.rows) {
    const auto opens_slot = [&](const PlanOpen& open) { return open.slot == row.slot; };
    const bool verify = (row.flags & kRowVerify) != 0;
    const bool decodes = (row.num_tokens == 1 || verify) && (row.flags & kRowSample) != 0 &&
                         std::none_of(plan.opens.begin(), plan.opens.end(), opens_slot);
    if (decodes) {
      work.AddDecode(row.start_pos);
      work.AddDraft(row.start_pos + 1, row.num_tokens - 1);
    } else {
      work.AddChunk(row.start_pos, row.num_tokens);
    }
  }
  return work;
}

int64_t StepModel::Predict(const StepWork& work) const {
  return static_cast<int64_t>(std::min(Dot(ns, TermsOf(work)), kMaxStepNs));
}

Status FitSteps(const std::vector<StepSample>& samples, StepModel* model) {
  if (samples.size() < kMinSamples) {
    return absl::FailedPreconditionError(StrCat("the recording has ", samples.size(),
                                                " steps; at least ", kMinSamples, " are needed"));
  }
  Terms c = {};
  for (int round = 0; round < kRounds; ++round) {
    std::array<Terms, StepModel::kTerms> products = {};
    Terms target = {};
    for (const StepSample& sample : samples) {
      const Terms x = TermsOf(sample.work);
      const double y = static_cast<double>(std::max<int64_t>(1, sample.ns));
      double weight = 1 / (y * y);
      if (round > 0) weight *= std::min(1.0, kOutlier / (std::abs(Dot(c, x) - y) / y + 1e-9));
      for (size_t i = 0; i < c.size(); ++i) {
        target[i] += weight * x[i] * y;
        for (size_t j = 0; j < c.size(); ++j) products[i][j] += weight * x[i] * x[j];
      }
    }
    SolveNonNegative(products, target, &c);
  }
  // Outliers are part of the time too: the sum of all steps is as measured.
  double predicted = 0, measured = 0, error = 0;
  for (const StepSample& sample : samples) {
    predicted += Dot(c, TermsOf(sample.work));
    measured += static_cast<double>(sample.ns);
  }
  for (double& value : c) value *= measured / predicted;
  for (const StepSample& sample : samples) {
    const double y = static_cast<double>(std::max<int64_t>(1, sample.ns));
    error += std::abs(Dot(c, TermsOf(sample.work)) - y) / y;
  }
  model->ns = c;
  model->num_steps = samples.size();
  model->error = error / static_cast<double>(samples.size());
  return OkStatus();
}

StatusOr<StepModel> FitRecordings(const std::vector<std::vector<std::string>>& recordings) {
  StepReader reader;
  for (const std::vector<std::string>& records : recordings) {
    ASSIGN_OR_RETURN(const ReplayReport report,
                     Replay(records, [&](const ReplayMoment& moment) { reader.Look(moment); }));
    if (!report.difference.empty()) return absl::DataLossError(report.difference);
  }
  return reader.Take();
}

}  // namespace flotilla
