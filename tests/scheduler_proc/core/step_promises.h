// What the scheduler promises of its plans, judged from outside: by the plans, and by what the
// clients asked and got. Budgets of tokens, rows, pages and time; no row for who has ended; and who
// ends keeps its slot and pages until the plans it is in have come back, and no longer.
//
// Units: tokens, pages, nanoseconds. Threads: one. Errors: gtest's fatal failures.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <deque>
#include <functional>
#include <map>
#include <set>
#include <utility>

#include "scheduler_proc/core/scheduler_impl.h"
#include "tests/scheduler_proc/core/sim_worker.h"

namespace flotilla::testing {

class StepPromises {
 public:
  // Of a live request: what was asked, and how many tokens of it its client knows.
  struct Known {
    const ReqSpec* spec = nullptr;
    uint32_t num_tokens = 0;
  };
  using Lookup = std::function<Known(ReqId)>;

  StepPromises(const SchedulerConfig& config, const std::set<ReqId>* live, Lookup lookup)
      : config_(config), live_(*live), lookup_(std::move(lookup)) {}

  // How often a budget of pages, or of time, was there to be judged.
  uint64_t pages_judged() const { return pages_judged_; }
  uint64_t times_judged() const { return times_judged_; }

  // `before` is how things stood when the plan was made, `after` how they stand with it.
  void OnPlan(const StepPlan& plan, const SchedulerStats& before, const SchedulerStats& after,
              int64_t now_ns) {
    for (const uint32_t slot : plan.closes) holders_.erase(slot);
    std::erase_if(holders_, [this](const auto& entry) { return !live_.contains(entry.second.id); });
    const bool one_alone = holders_.empty() && plan.opens.size() == 1;
    std::set<uint32_t> opened;
    for (const PlanOpen& open : plan.opens) {
      holders_[open.slot] = {.id = open.sampling.seed};
      opened.insert(open.slot);
    }
    Tokens tokens;
    InFlight in_flight;
    for (const PlanRow& row : plan.rows) {
      ASSERT_TRUE(holders_.contains(row.slot)) << "a row for who has ended";
      Holder& holder = holders_[row.slot];
      if (opened.contains(row.slot)) Admit(row, &holder, &tokens);
      Count(row, &holder, &tokens);
      in_flight.samples.emplace(holder.id, (row.flags & kRowSample) != 0);
    }
    ASSERT_FALSE(plan.rows.empty());
    ASSERT_LE(plan.rows.size(), config_.max_running_requests);
    const uint32_t drafts = tokens.decodes - tokens.decode_rows;
    ASSERT_LE(tokens.chunks + drafts, config_.chunked_prefill_size);
    ASSERT_LE(tokens.embeds, kMaxEmbedRows);
    if (opened.size() > 1) {
      ASSERT_LE(tokens.admitted, config_.max_prefill_tokens);
    }
    ASSERT_NO_FATAL_FAILURE(JudgeTime(tokens, before, now_ns));
    if (!opened.empty() && !one_alone) ASSERT_NO_FATAL_FAILURE(JudgePages(before, after));
    in_flight.mixed = tokens.decodes > 0 && tokens.chunks > 0;
    in_flight.decodes_only = tokens.chunks == 0;
    in_flight_.push_back(std::move(in_flight));
    JudgeEnded(after);
  }

  // The oldest plan in flight has come back.
  void OnResult(const SchedulerStats& after) {
    ++results_;
    mixed_results_ += in_flight_.front().mixed;
    decode_results_ += in_flight_.front().decodes_only;
    in_flight_.pop_front();
    JudgeEnded(after);
  }

  // The same, but it failed: nobody learns from it.
  void OnFailure(const SchedulerStats& after) {
    in_flight_.pop_front();
    JudgeEnded(after);
  }

  void OnEpoch(const SchedulerStats& after) {
    holders_.clear();
    in_flight_.clear();
    JudgeEnded(after);
  }

  // Slots and pages of the ended are held for the plans in flight that run them, and no others.
  void JudgeEnded(const SchedulerStats& now) const {
    std::set<ReqId> ended;
    for (const InFlight& plan : in_flight_) {
      for (const auto& [id, samples] : plan.samples) {
        if (!live_.contains(id)) ended.insert(id);
      }
    }
    ASSERT_EQ(now.ending, ended.size());
  }

 private:
  struct Holder {  // of a slot
    ReqId id = 0;
    uint32_t prefill_len = 0;  // tokens there were when it got the slot
    bool long_prompt = false;  // more than a whole chunk of them was to be computed
    uint32_t num_pages = 0;    // that the workers know
  };
  struct Tokens {  // of a plan
    uint32_t decodes = 0, chunks = 0, long_chunks = 0, admitted = 0, embeds = 0;
    uint32_t decode_rows = 0;  // with a draft or without
  };
  struct InFlight {
    std::map<ReqId, bool> samples;  // of whom it runs, whether it samples
    bool mixed = false;             // decodes beside chunks
    bool decodes_only = false;
  };

  uint32_t PagesFor(uint32_t tokens) const {
    return (tokens + config_.page_size - 1) / config_.page_size;
  }

  void Admit(const PlanRow& first, Holder* holder, Tokens* tokens) const {
    holder->prefill_len = lookup_(holder->id).num_tokens;
    const uint32_t missing = holder->prefill_len - first.start_pos;
    holder->long_prompt = missing > config_.chunked_prefill_size;
    tokens->admitted += PagesFor(missing) * config_.page_size;
  }

  static void Count(const PlanRow& row, Holder* holder, Tokens* tokens) {
    holder->num_pages += row.num_new_pages;
    tokens->embeds += (row.flags & kRowEmbed) != 0;
    if (row.start_pos >= holder->prefill_len) {
      tokens->decodes += row.num_tokens;
      ++tokens->decode_rows;
      return;
    }
    tokens->chunks += row.num_tokens;
    if (holder->long_prompt) tokens->long_chunks += row.num_tokens;
  }

  // Once the scheduler has seen what steps cost, prompts take no more of one than they may. That
  // takes decodes alone: while all chunks are of one length, none can tell it from a step's own
  // cost.
  void JudgeTime(const Tokens& tokens, const SchedulerStats& before, int64_t now_ns) {
    if (tokens.decodes == 0 || tokens.chunks == 0) return;
    if (results_ < 100 || mixed_results_ < 20 || decode_results_ < 5) return;
    const int64_t decode_ns = SimWorker::StepNs(tokens.decodes);
    const auto judge = [&](uint32_t num_tokens, double share, int64_t step_ns) {
      const double spare_ns = std::max(share * static_cast<double>(decode_ns),
                                       static_cast<double>(step_ns - decode_ns));
      const double allowed = std::max<double>(kMinChunkTokens, spare_ns / SimWorker::kTokenNs);
      ASSERT_LE(num_tokens, 1.05 * allowed + 1)
          << "beside " << tokens.decodes << " decodes, max_step_ns " << config_.max_step_ns;
      ++times_judged_;
    };
    if (config_.max_step_ns > 0) return judge(tokens.chunks, 0, config_.max_step_ns);
    const int64_t prompts = int64_t{before.waiting} + before.running - tokens.decode_rows;
    if (prompts > kMostPromptsADecode * tokens.decode_rows)
      return;  // at most: some may not be admitted
    if (prompts > 1 && WaitsSinceNs(before) < now_ns - kLongWaitNs) return;
    judge(tokens.chunks, kPromptShare, kPromptStepNs);
    judge(tokens.long_chunks, kLongPromptShare,
          std::min(kPromptStepNs, prompts * kLongPromptStepNs));
  }

  // Since when the first of those waits that have no token yet.
  int64_t WaitsSinceNs(const SchedulerStats& before) const {
    int64_t since_ns = before.oldest_queued_ns == 0 ? INT64_MAX : before.oldest_queued_ns;
    for (const auto& [slot, holder] : holders_) {
      const auto [spec, num_tokens] = lookup_(holder.id);
      if (num_tokens == spec->prompt_ids.size() && spec->priority >= 0)
        since_ns = std::min(since_ns, spec->arrival_ns);
    }
    return since_ns;
  }

  // Whoever is admitted finds pages for itself and for what those who run are expected to need.
  void JudgePages(const SchedulerStats& before, const SchedulerStats& after) {
    uint64_t reserved = 0;
    for (const auto& [slot, holder] : holders_) {
      const auto [spec, num_tokens] = lookup_(holder.id);
      // A plan that waits for a mask is taken back, but not the page it was given.
      if (spec->grammar != nullptr) return;
      uint32_t planned = num_tokens;
      for (const InFlight& plan : in_flight_) {
        const auto it = plan.samples.find(holder.id);
        planned += it != plan.samples.end() && it->second;
      }
      const auto prompt = static_cast<uint32_t>(spec->prompt_ids.size());
      const uint32_t max_total = std::min(config_.context_length, prompt + spec->max_new_tokens);
      const uint32_t left = std::min(max_total - planned, config_.clip_max_new_tokens);
      const auto expected = static_cast<uint32_t>(std::ceil(before.new_token_ratio * left));
      const uint32_t pages = PagesFor(planned + expected);
      reserved += pages - std::min(pages, holder.num_pages);
    }
    ASSERT_LE(reserved, after.free_pages + after.evictable_pages);
    ++pages_judged_;
  }

  const SchedulerConfig config_;
  const std::set<ReqId>& live_;
  const Lookup lookup_;
  std::map<uint32_t, Holder> holders_;  // by slot
  std::deque<InFlight> in_flight_;
  uint64_t results_ = 0, mixed_results_ = 0, decode_results_ = 0;
  uint64_t pages_judged_ = 0, times_judged_ = 0;
};

}  // namespace flotilla::testing
