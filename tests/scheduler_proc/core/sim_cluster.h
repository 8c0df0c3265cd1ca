// Scheduler, workers and clients in one object, for tests: checks every output against what was
// foretold, and the ledger after each call.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "tests/scheduler_proc/core/sim_worker.h"
#include "tests/scheduler_proc/core/step_promises.h"

namespace flotilla::testing {

class SimCluster {
 public:
  explicit SimCluster(const SchedulerConfig& config, bool check_ledger = true,
                      const SimModel& model = {})
      : config_(config),
        check_ledger_(check_ledger),
        model_(model),
        scheduler_(std::make_unique<Scheduler>(config)),
        worker_(model_, &requests_, config.max_running_requests, config.num_pages,
                config.page_size),
        promises_(config, &live_, [this](ReqId id) { return KnownOf(id); }) {}

  static SchedulerConfig SmallConfig() {
    SchedulerConfig config;
    config.num_pages = 256;
    config.page_size = 4;
    config.max_running_requests = 8;
    config.chunked_prefill_size = 64;
    config.context_length = 512;
    config.max_plans_in_flight = 1;
    config.vocab_size = SimModel().vocab_size;
    config.eos_ids = {SimModel().eos};
    return config;
  }

  Scheduler& scheduler() { return *scheduler_; }
  const SimModel& model() const { return model_; }
  const StepPlan& plan() const { return plan_; }
  int64_t now() const { return now_; }
  const std::set<ReqId>& live() const { return live_; }
  const Expected& expected(ReqId id) const { return requests_.at(id); }
  const std::vector<int32_t>& tokens(ReqId id) const { return got_.at(id).tokens; }
  const ReqOutput& last(ReqId id) const { return got_.at(id).final; }
  bool finished(ReqId id) const { return got_.at(id).finished; }
  uint32_t longest_wait() const { return longest_wait_; }
  SimWorker& worker() { return worker_; }
  const StepPromises& promises() const { return promises_; }

  Status Add(ReqSpec spec) {
    spec.sampling.seed = spec.id;
    spec.arrival_ns = now_;
    const Status status = scheduler_->Add(spec, now_);
    if (twin_ != nullptr) {
      EXPECT_EQ(twin_->Add(spec, now_), status);
    }
    if (!status.ok()) return status;
    Expected expected = Foretell(model_, config_, spec);
    got_[spec.id].tokens = spec.resumed_ids;
    requests_[spec.id] = std::move(expected);
    live_.insert(spec.id);
    return status;
  }

  void Abort(ReqId id, std::vector<ReqOutput>* outputs = nullptr) {
    ASSERT_TRUE(scheduler_->Abort(id, Finish::kAbort, outputs));
    if (twin_ != nullptr) {
      ASSERT_TRUE(twin_->Abort(id, Finish::kAbort));
    }
    live_.erase(id);
    CheckLedger();
  }

  void Truncate(ReqId id, uint32_t num_tokens) {
    std::vector<ReqOutput> outputs;
    Both(&outputs, [&](Scheduler* scheduler, std::vector<ReqOutput>* out) {
      ASSERT_TRUE(scheduler->Truncate(id, num_tokens, now_, out));
    });
    ASSERT_EQ(outputs.size(), 1u);
    EXPECT_EQ(outputs[0].finish, Finish::kStop);
    EXPECT_EQ(outputs[0].completion_tokens, num_tokens);
    End(outputs[0]);
    CheckLedger();
  }

  void Pass(int64_t ns) { now_ += ns; }

  void Expire() {
    std::vector<ReqOutput> outputs;
    Both(&outputs, [&](Scheduler* scheduler, std::vector<ReqOutput>* out) {
      scheduler->ExpireDeadlines(now_, out);
    });
    for (const ReqOutput& output : outputs) {
      ASSERT_EQ(output.finish, Finish::kDeadline);
      ASSERT_TRUE(live_.contains(output.id));
      ASSERT_LE(requests_.at(output.id).spec.deadline_ns, now_);
      End(output);
    }
    for (const ReqId id : live_) ASSERT_GT(requests_.at(id).spec.deadline_ns, now_);
    CheckLedger();
  }

  // A rank died: with plans in flight or without.
  void NewEpoch() {
    worker_.Reset();
    in_flight_.clear();
    scheduler_->BeginEpoch(++epoch_, config_.num_pages);
    if (twin_ != nullptr) twin_->BeginEpoch(epoch_, config_.num_pages);
    EXPECT_EQ(scheduler_->plans_in_flight(), 0u);
    EXPECT_EQ(scheduler_->stats().free_pages, config_.num_pages);
    promises_.OnEpoch(scheduler_->stats());
    CheckLedger();
  }

  // False: nothing to do. The workers have run the plan; its result waits for FinishPlan.
  bool Plan() {
    now_ += 1000;
    const SchedulerStats before = scheduler_->stats();
    const bool planned = scheduler_->PlanStep(now_, &plan_);
    PlanTwin(planned);
    if (!planned) {
      EXPECT_TRUE(scheduler_->plans_in_flight() > 0 || !scheduler_->HasWork());
      return false;
    }
    promises_.OnPlan(plan_, before, scheduler_->stats(), now_);
    InFlight& run = in_flight_.emplace_back();
    run.rows = plan_.rows;
    worker_.Run(plan_, &run.result);
    CheckLedger();
    NoteOldest();
    return !::testing::Test::HasFatalFailure();
  }

  // The oldest plan in flight.
  void FinishPlan() {
    std::vector<ReqOutput> outputs;
    Both(&outputs, [&](Scheduler* scheduler, std::vector<ReqOutput>* out) {
      scheduler->OnResult(in_flight_.front().result, now_, out);
    });
    in_flight_.pop_front();
    for (const ReqOutput& output : outputs) ASSERT_NO_FATAL_FAILURE(Check(output));
    promises_.OnResult(scheduler_->stats());
    CheckLedger();
  }

  // The oldest plan in flight fails, or its result is none: those that it ran end with an error,
  // all at once, and what it wrote is not to be read. False: no such result can be of this plan.
  enum class Failure : uint32_t {
    kCode,
    kFewRows,
    kManyRows,
    kSlot,
    kToken,
    kDraft,
    kDraftToken,
    kEmbedding,
    kNum
  };
  bool FailPlan(Failure failure) {
    InFlight& run = in_flight_.front();
    if (!Spoil(failure, run.rows, &run.result)) return false;
    std::set<ReqId> wanted, ended;
    for (const PlanRow& row : run.rows) {
      const ReqId id = worker_.RequestOf(row.slot).spec.id;
      if (live_.contains(id)) wanted.insert(id);
    }
    for (const PlanRow& row : run.rows) worker_.Garble(row);
    std::vector<ReqOutput> outputs;
    Both(&outputs, [&](Scheduler* scheduler, std::vector<ReqOutput>* out) {
      scheduler->OnResult(run.result, now_, out);
    });
    in_flight_.pop_front();
    for (const ReqOutput& output : outputs) {
      EXPECT_TRUE(output.finish == Finish::kError && !output.error.empty());
      EXPECT_TRUE(!output.token.has_value() && output.prompt_logprobs.empty());
      EXPECT_TRUE(output.embedding.empty());
      EXPECT_TRUE(ended.insert(output.id).second) << output.id << " ends twice";
      if (live_.contains(output.id)) End(output);
    }
    EXPECT_EQ(ended, wanted);
    promises_.OnFailure(scheduler_->stats());
    CheckLedger();
    return true;
  }

  // As the loop does it: a plan if there can be one, then a result if nothing more can be planned.
  bool Step() {
    const bool planned = Plan();
    if (::testing::Test::HasFatalFailure() || in_flight_.empty()) return false;
    if (!planned || in_flight_.size() == config_.max_plans_in_flight) FinishPlan();
    return !::testing::Test::HasFatalFailure();
  }
  // Until nothing is left; the number of steps.
  uint32_t Drain(uint32_t max_steps = 1u << 20) {
    uint32_t steps = 0;
    while (steps < max_steps && Step()) ++steps;
    EXPECT_FALSE(scheduler_->HasWork());
    EXPECT_TRUE(live_.empty());
    EXPECT_EQ(scheduler_->stats().locked_pages, 0u);
    return steps;
  }

  // From now on a twin, restored from what the scheduler saves, is asked all that the scheduler is,
  // and must answer the same. The scheduler is what was the twin before, if there was one.
  void MakeTwin() {
    std::string saved, other;
    scheduler_->Save(&saved);
    if (twin_ != nullptr) {
      twin_->Save(&other);
      ASSERT_TRUE(other == saved) << "the twin saves something else";
      scheduler_ = std::move(twin_);
    }
    auto restored = Scheduler::Restore(
        config_, saved, [this](const ReqSpec& spec) { return requests_.at(spec.id).spec.grammar; });
    ASSERT_TRUE(restored.ok()) << restored.status();
    twin_ = *std::move(restored);
    other.clear();
    twin_->Save(&other);
    ASSERT_TRUE(other == saved) << "restored, it saves something else";
  }

  void CheckLedger() {
    if (!check_ledger_) return;
    const Status status = scheduler_->CheckLedger();
    ASSERT_TRUE(status.ok()) << status;
    const SchedulerStats& stats = scheduler_->stats();
    ASSERT_EQ(stats.free_pages + stats.evictable_pages + stats.locked_pages, stats.total_pages);
    ASSERT_LE(stats.running, config_.max_running_requests);
    promises_.JudgeEnded(stats);
  }

 private:
  struct InFlight {
    std::vector<PlanRow> rows;
    StepResult result;
  };
  struct Got {
    std::vector<int32_t> tokens;
    uint32_t prompt_logprobs = 0;
    bool finished = false;
    ReqOutput final;
  };

  StepPromises::Known KnownOf(ReqId id) const {
    const ReqSpec& spec = requests_.at(id).spec;
    return {&spec, static_cast<uint32_t>(spec.prompt_ids.size() + got_.at(id).tokens.size())};
  }
  // False, and nothing done: the plan has no row for which that would be wrong.
  bool Spoil(Failure failure, std::span<const PlanRow> rows, StepResult* result) const {
    const auto first_with = [&](uint32_t flag) -> RowResult* {
      for (size_t i = 0; i < rows.size(); ++i) {
        if (rows[i].flags & flag) return &result->rows[i];
      }
      return nullptr;
    };
    RowResult* sampled = first_with(kRowSample);
    RowResult* embedded = first_with(kRowEmbed);
    switch (failure) {
      case Failure::kFewRows:
        return result->rows.pop_back(), true;
      case Failure::kManyRows:
        return result->rows.emplace_back(), true;
      case Failure::kSlot:
        return ++result->rows.back().slot, true;
      case Failure::kToken:
        if (sampled == nullptr) return false;
        sampled->token = sampled->token % 2 == 0 ? -1 : static_cast<int32_t>(config_.vocab_size);
        return true;
      case Failure::kDraft:
        if (sampled == nullptr) return false;
        return sampled->accepted.resize(kMaxDraftTokens + 1), true;
      case Failure::kDraftToken: {
        RowResult* const verified = first_with(kRowVerify);
        if (verified == nullptr || verified->accepted.empty()) return false;
        int32_t& token = verified->accepted.back();
        return token = (token + 1) % static_cast<int32_t>(config_.vocab_size), true;
      }
      case Failure::kEmbedding:
        return embedded != nullptr && (embedded->embedding.clear(), true);
      default:
        return result->code = 13, true;
    }
  }
  // All of a position's logprobs.
  static auto TellAll(const PositionLogprobs& p) {
    std::vector<std::pair<int32_t, float>> top;
    for (const TokenLogprob& entry : p.top) top.emplace_back(entry.token, entry.logprob);
    return std::tuple(p.token, p.logprob, p.rank, top);
  }
  static auto Told(const ReqOutput& o) {
    std::vector<decltype(TellAll(o.logprobs))> logprobs = {TellAll(o.logprobs)};
    for (const PositionLogprobs& position : o.prompt_logprobs) {
      logprobs.push_back(TellAll(position));
    }
    return std::tuple(o.id, o.token, o.has_logprobs, logprobs, o.embedding, o.finish, o.stop_token,
                      o.error, o.error_code, o.prompt_tokens, o.cached_tokens, o.completion_tokens,
                      o.computed_tokens, o.queued_ns, o.first_scheduled_ns, o.first_token_ns,
                      o.wait_reason);
  }
  template <typename Call>
  void Both(std::vector<ReqOutput>* outputs, const Call& call) {
    call(scheduler_.get(), outputs);
    if (twin_ == nullptr) return;
    std::vector<ReqOutput> others;
    call(twin_.get(), &others);
    ASSERT_EQ(others.size(), outputs->size());
    for (size_t i = 0; i < others.size(); ++i) {
      ASSERT_TRUE(Told(others[i]) == Told((*outputs)[i])) << "the twin says something else";
    }
  }
  void PlanTwin(bool planned) {
    if (twin_ == nullptr) return;
    ASSERT_EQ(twin_->PlanStep(now_, &twins_plan_), planned);
    ASSERT_EQ(twin_->PlanDueNs(), scheduler_->PlanDueNs());
    ASSERT_TRUE(twin_->stats() == scheduler_->stats());
    if (!planned) return;
    const auto same = [](const auto& a, const auto& b) {
      return a.size() == b.size() &&
             (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(a[0])) == 0);
    };
    const StepPlan &a = plan_, &b = twins_plan_;
    ASSERT_EQ(b.step_id, a.step_id);
    ASSERT_EQ(b.epoch, a.epoch);
    ASSERT_TRUE(same(a.opens, b.opens)) << "the twin opens other slots";
    ASSERT_TRUE(same(a.rows, b.rows)) << "the twin plans other rows";
    ASSERT_TRUE(same(a.input_ids, b.input_ids) && same(a.new_pages, b.new_pages) &&
                same(a.closes, b.closes) && same(a.logit_bias, b.logit_bias) &&
                same(a.history, b.history) && same(a.stop_ids, b.stop_ids))
        << "the twin plans otherwise";
    ASSERT_TRUE(same(a.masks, b.masks)) << "the twin has other masks";
  }

  // How many plans in a row serve neither the oldest request nor what goes before it, since it had
  // begun elsewhere?
  void NoteOldest() {
    if (live_.empty()) return;
    const ReqId oldest = *live_.begin();
    bool served = false;
    for (const PlanRow& row : plan_.rows) {
      const ReqSpec& spec = worker_.RequestOf(row.slot).spec;
      served |= spec.id == oldest || !spec.resumed_ids.empty();
    }
    wait_ = served || oldest != waiting_for_ ? 0 : wait_ + 1;
    waiting_for_ = oldest;
    longest_wait_ = std::max(longest_wait_, wait_);
  }

  void Check(const ReqOutput& output) {
    ASSERT_TRUE(live_.contains(output.id)) << "output for " << output.id << ", which has ended";
    const Expected& expected = requests_.at(output.id);
    Got& got = got_.at(output.id);
    for (const PositionLogprobs& logprobs : output.prompt_logprobs) {
      const uint32_t position = ++got.prompt_logprobs;
      ASSERT_LT(position, expected.spec.prompt_ids.size());
      ASSERT_EQ(logprobs.token, expected.sequence[position]);
      ASSERT_EQ(logprobs.logprob,
                SimModel::Logprobs(expected.chains[position], logprobs.token).logprob);
    }
    if (output.token.has_value()) {
      const size_t position = expected.spec.prompt_ids.size() + got.tokens.size();
      ASSERT_LT(position, expected.sequence.size()) << "went on after its end";
      ASSERT_EQ(*output.token, expected.sequence[position]) << "output changed";
      if (output.has_logprobs) {
        ASSERT_EQ(output.logprobs.logprob,
                  SimModel::Logprobs(expected.chains[position], *output.token).logprob);
      }
      ASSERT_EQ(output.has_logprobs, expected.spec.sampling.num_logprobs != kNoLogprobs);
      got.tokens.push_back(*output.token);
    }
    if (output.finish == Finish::kNone) {
      ASSERT_LT(got.tokens.size(), expected.num_output) << "did not end";
      return;
    }
    ASSERT_EQ(output.finish, expected.finish);
    if (expected.spec.pooling != Pooling::kNone) {
      ASSERT_EQ(output.embedding, SimModel::Embedding(expected.chains.back(),
                                                      expected.spec.pooling == Pooling::kMean));
    }
    ASSERT_EQ(got.tokens.size(), expected.num_output);
    ASSERT_EQ(output.completion_tokens, expected.num_output);
    if (expected.spec.sampling.num_prompt_logprobs != kNoLogprobs) {
      ASSERT_EQ(got.prompt_logprobs + 1, expected.spec.prompt_ids.size());
    }
    End(output);
  }

  void End(const ReqOutput& output) {
    const Expected& expected = requests_.at(output.id);
    ASSERT_EQ(output.prompt_tokens, expected.spec.prompt_ids.size());
    ASSERT_LE(output.cached_tokens, output.prompt_tokens);
    const uint32_t all = output.prompt_tokens + output.completion_tokens;
    ASSERT_LE(output.computed_tokens, all);
    if (output.completion_tokens > 0) {
      ASSERT_EQ(output.computed_tokens, all);
    }
    if (!config_.enable_prefix_cache || expected.spec.pooling == Pooling::kMean ||
        (expected.spec.sampling.num_prompt_logprobs != kNoLogprobs && output.prompt_tokens > 1)) {
      ASSERT_EQ(output.cached_tokens, 0u);
    }
    got_.at(output.id).final = output;
    got_.at(output.id).finished = true;
    live_.erase(output.id);
  }

  const SchedulerConfig config_;
  const bool check_ledger_;
  const SimModel model_;
  std::map<ReqId, Expected> requests_;
  std::map<ReqId, Got> got_;
  std::set<ReqId> live_;
  std::unique_ptr<Scheduler> scheduler_;
  std::unique_ptr<Scheduler> twin_;  // does what scheduler_ does, or the test fails
  SimWorker worker_;
  StepPromises promises_;
  StepPlan plan_, twins_plan_;
  std::deque<InFlight> in_flight_;
  uint32_t epoch_ = 0;
  int64_t now_ = 1;
  ReqId waiting_for_ = 0;
  uint32_t wait_ = 0, longest_wait_ = 0;
};

}  // namespace flotilla::testing
