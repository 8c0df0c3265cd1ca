// Ranks that begin steps behind each other, as WorkerLoop lets them: rank 0 on the caller's thread,
// each other on one of its own, which ends its steps whenever it likes. So they know what was
// sampled at different times.
//
// Threads: the caller's. Ownership: the ranks outlive it. Errors: CHECK; ranks that do not agree
// whether a step is begun wait for each other until their exchange gives up.
#pragma once

#include <condition_variable>
#include <deque>
#include <mutex>
#include <optional>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "tests/worker_proc/rank_threads.h"

namespace flotilla::testing {

class AheadRanks {
 public:
  AheadRanks(RankThreads* ranks, uint32_t tp) : ranks_(*ranks), others_(tp - 1) {
    for (uint32_t r = 1; r < tp; ++r) {
      others_[r - 1].thread = std::thread([this, r] { Follow(r); });
    }
  }
  ~AheadRanks() {
    for (Other& other : others_) Give(&other, std::nullopt);
    for (Other& other : others_) other.thread.join();
  }

  // As ModelRunner's. If it is false, Execute must be next, once all that is begun has ended.
  StatusOr<bool> Begin(StepPlan* plan, StepResult* result) {
    for (Other& other : others_) Give(&other, *plan);
    return ranks_.runner().Begin(plan, result);
  }
  Status End() { return EndOf(ranks_.runner()); }
  StepResult Execute(StepPlan plan) {
    StepResult result;
    CHECK_OK(ranks_.runner().Execute(&plan, &result));
    return result;
  }

 private:
  struct Step {
    StepPlan plan;
    StepResult result;
  };
  struct Other {
    std::thread thread;
    std::mutex mutex;
    std::condition_variable given;
    std::deque<std::optional<StepPlan>> plans;  // nothing: the last one is over
  };

  static void Give(Other* other, std::optional<StepPlan> plan) {
    const std::lock_guard lock(other->mutex);
    other->plans.push_back(std::move(plan));
    other->given.notify_one();
  }
  static Status EndOf(ModelRunner& runner) {
    while (!*runner.Done()) std::this_thread::yield();
    return runner.End();
  }
  // Bad logits are the plan's business.
  static void EndAll(ModelRunner& runner, size_t but = 0) {
    while (runner.num_begun() > but) {
      const Status ended = EndOf(runner);
      CHECK(ended.ok() || absl::IsDataLoss(ended));
    }
  }

  // The emulated device works while it is asked whether its oldest step is done.
  static std::optional<StepPlan> Next(ModelRunner& runner, Other* other) {
    for (;;) {
      {
        const auto is_given = [other] { return !other->plans.empty(); };
        std::unique_lock lock(other->mutex);
        if (runner.num_begun() == 0) other->given.wait(lock, is_given);
        if (is_given()) {
          std::optional<StepPlan> plan = std::move(other->plans.front());
          other->plans.pop_front();
          return plan;
        }
      }
      if (*runner.Done()) EndAll(runner, runner.num_begun() - 1);
      std::this_thread::yield();
    }
  }

  void Follow(uint32_t rank) {
    ModelRunner& runner = ranks_.runner(rank);
    Other& other = others_[rank - 1];
    std::mt19937 random(rank);
    std::deque<Step> steps;
    for (;;) {
      if (random() % 2 == 0 && runner.num_begun() > 0) EndAll(runner, runner.num_begun() - 1);
      const std::optional<StepPlan> plan = Next(runner, &other);
      if (!plan.has_value()) break;
      EndAll(runner, ModelRunner::kMaxBegun - 1);
      if (steps.size() > ModelRunner::kMaxBegun) steps.pop_front();
      Step& step = steps.emplace_back();
      step.plan = *plan;
      const StatusOr<bool> begun = runner.Begin(&step.plan, &step.result);
      CHECK_OK(begun.status());
      if (*begun) continue;
      EndAll(runner);
      CHECK_OK(runner.Execute(&step.plan, &step.result));
    }
    EndAll(runner);
  }

  RankThreads& ranks_;
  std::deque<Other> others_;
};

}  // namespace flotilla::testing
