// A scheduler small enough to read: runs requests to their end through a function that executes one
// plan, with a chunk size and a number of requests at once. Tests of the worker only.
//
// Pages come from a shuffled free list, slots are requests. Prompts are cut into chunks of at most
// chunk_size tokens a step over all requests; requests whose prompt is done decode in the same
// steps. What is planned does not depend on what was sampled, so steps may also be begun behind
// each other (RunAhead): slots and pages then belong to the next request as soon as a plan has its
// last token.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <functional>
#include <numeric>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "common/base/check.h"
#include "shm/step_plan.h"
#include "shm/step_result.h"

namespace flotilla::testing {

struct DriverRequest {
  std::vector<int32_t> prompt;
  uint32_t max_new_tokens = 8;
  SamplingParams sampling;
  std::vector<LogitBias> logit_bias;
  bool embed = false;          // the prompt's embedding instead of output: max_new_tokens 0
  bool mean = false;           // of all positions, else of the last
  std::vector<int32_t> draft;  // of output, right or wrong; not with RunAhead
  uint32_t masked_vocab = 0;   // tokens of its masks (MaskAllows); 0: it has none
  // results
  std::vector<int32_t> output;
  std::vector<PositionLogprobs> logprobs;         // of output
  std::vector<PositionLogprobs> prompt_logprobs;  // of prompt[1…]
  std::vector<float> embedding;
  std::string embedding_bits() const {
    return {reinterpret_cast<const char*>(embedding.data()), embedding.size() * sizeof(float)};
  }
};

// Half of the tokens, other ones at each place of the output.
inline bool MaskAllows(uint32_t place, int32_t token) {
  return ((static_cast<uint32_t>(token) * 2654435761u ^ place * 40503u) >> 13 & 1) != 0;
}

struct DriverOptions {
  uint32_t chunk_size = 512;  // prompt tokens a step
  uint32_t at_once = 8;       // requests running at the same time
  uint32_t page_size = 16;
  uint32_t num_pages = 0;
  uint32_t epoch = 1;
  bool last_tokens = false;   // decodes go on with kLastToken, as with overlap
  uint32_t draft_tokens = 0;  // a row of a request that has a draft
};

class PlanDriver {
 public:
  using Execute = std::function<StepResult(const StepPlan&)>;

  PlanDriver(const DriverOptions& options, Execute execute)
      : options_(options), execute_(std::move(execute)), free_pages_(options.num_pages) {
    std::iota(free_pages_.begin(), free_pages_.end(), 0u);
    std::shuffle(free_pages_.begin(), free_pages_.end(), std::mt19937(7));
  }

  // Runs all requests; their results are in them. Returns the number of steps.
  uint32_t Run(std::vector<DriverRequest>* requests) {
    Start(requests);
    uint32_t steps = 0;
    for (; !IsOver(); ++steps) ExecuteStep(MakeStep());
    return steps;
  }

  // The same, with two steps begun where begin(plan, result) says true; end() is the oldest's. The
  // options must have last_tokens. Returns how many steps were begun while another was.
  using Begin = std::function<bool(StepPlan*, StepResult*)>;
  uint32_t RunAhead(std::vector<DriverRequest>* requests, const Begin& begin,
                    const std::function<void()>& end) {
    Start(requests);
    std::deque<Step> begun;
    const auto end_oldest = [&] {
      end();
      Take(begun.front());
      begun.pop_front();
    };
    uint32_t ahead = 0;
    while (!IsOver()) {
      begun.push_back(MakeStep());
      if (!begin(&begun.back().plan, &begun.back().result)) {
        const Step step = std::move(begun.back());
        begun.pop_back();
        while (!begun.empty()) end_oldest();
        ExecuteStep(step);
      } else if (begun.size() == 2) {
        ++ahead;
        end_oldest();
      }
    }
    while (!begun.empty()) end_oldest();
    return ahead;
  }

 private:
  struct Running {
    DriverRequest* request = nullptr;
    uint32_t slot = 0;
    uint32_t computed = 0;  // tokens whose KV is there when what was planned is done
    uint32_t sampled = 0;   // the same
    std::vector<uint32_t> pages;
    bool done = false;
  };
  struct Row {
    DriverRequest* request;
    uint32_t slot;
    bool last_of_prompt_or_later;
    uint32_t draft = 0;  // tokens
  };
  struct Step {
    StepPlan plan;
    StepResult result;
    std::vector<Row> rows;
  };

  void Start(std::vector<DriverRequest>* requests) {
    requests_ = requests;
    next_ = 0;
    running_.clear();
  }
  bool IsOver() const { return next_ == requests_->size() && running_.empty(); }

  Step MakeStep() {
    Step step;
    step.plan.step_id = ++step_id_;
    step.plan.epoch = options_.epoch;
    while (running_.size() < options_.at_once && next_ < requests_->size()) {
      running_.push_back(Open(&(*requests_)[next_++], &step.plan));
    }
    uint32_t budget = options_.chunk_size;
    for (Running& r : running_) AddRow(&r, &budget, &step);
    for (const Running& r : running_) {
      if (r.done) free_pages_.insert(free_pages_.end(), r.pages.begin(), r.pages.end());
    }
    std::erase_if(running_, [](const Running& r) { return r.done; });
    return step;
  }

  void ExecuteStep(Step step) {
    step.result = execute_(step.plan);
    Take(step);
  }

  void Take(const Step& step) {
    CHECK(step.result.code == 0 && step.result.rows.size() == step.rows.size());
    for (size_t i = 0; i < step.rows.size(); ++i) {
      TakeResult(step.result.rows[i], step.rows[i]);
      if (step.rows[i].draft > 0) TakeDraft(step.result.rows[i], step.rows[i]);
    }
  }

  // What was wrong is computed anew; one whose draft brought it to its end is never closed.
  void TakeDraft(const RowResult& result, const Row& row) {
    const auto running = std::find_if(running_.begin(), running_.end(),
                                      [&](const Running& r) { return r.request == row.request; });
    const auto accepted = static_cast<uint32_t>(result.accepted.size());
    CHECK(running != running_.end() && accepted <= row.draft);
    running->computed -= row.draft - accepted;
    running->sampled += accepted;
    if (running->sampled < row.request->max_new_tokens) return;
    free_pages_.insert(free_pages_.end(), running->pages.begin(), running->pages.end());
    running_.erase(running);
  }

  Running Open(DriverRequest* request, StepPlan* plan) {
    Running r;
    r.request = request;
    while (std::any_of(running_.begin(), running_.end(),
                       [&](const Running& other) { return other.slot == r.slot; })) {
      ++r.slot;
    }
    plan->opens.push_back({r.slot, static_cast<uint32_t>(request->prompt.size()), request->sampling,
                           static_cast<uint32_t>(request->logit_bias.size())});
    plan->logit_bias.insert(plan->logit_bias.end(), request->logit_bias.begin(),
                            request->logit_bias.end());
    return r;
  }

  void AddRow(Running* r, uint32_t* budget, Step* step) {
    StepPlan* const plan = &step->plan;
    DriverRequest& request = *r->request;
    const auto prompt = static_cast<uint32_t>(request.prompt.size());
    const bool decode = r->computed >= prompt;
    uint32_t draft = 0;
    if (decode && !request.draft.empty()) {
      draft = std::min({options_.draft_tokens, request.max_new_tokens - r->sampled - 1,
                        static_cast<uint32_t>(request.draft.size()) - r->sampled});
    }
    const uint32_t tokens = decode ? 1 + draft : std::min(*budget, prompt - r->computed);
    if (tokens == 0) return;
    if (!decode) *budget -= tokens;
    PlanRow row;
    row.slot = r->slot;
    row.start_pos = r->computed;
    row.num_tokens = tokens;
    const uint32_t end = r->computed + tokens;
    while (r->pages.size() * options_.page_size < end) {
      CHECK(!free_pages_.empty());
      r->pages.push_back(free_pages_.back());
      plan->new_pages.push_back(free_pages_.back());
      free_pages_.pop_back();
      ++row.num_new_pages;
    }
    if (request.mean) row.flags |= kRowPoolMean;
    if (end >= prompt) row.flags |= request.embed ? kRowEmbed : kRowSample;
    if (!decode && request.sampling.num_prompt_logprobs != kNoLogprobs) {
      row.flags |= kRowPromptLogprobs;
      row.next_token = end < prompt ? request.prompt[end] : -1;
    }
    if (draft > 0) row.flags |= kRowVerify;
    if (request.masked_vocab > 0 && (row.flags & kRowSample) != 0) AddMasks(*r, draft, &row, plan);
    for (uint32_t p = r->computed; p < end - draft; ++p) {
      const bool leave_out = decode && options_.last_tokens && request.draft.empty();
      plan->input_ids.push_back(p < prompt  ? request.prompt[p]
                                : leave_out ? kLastToken
                                            : request.output[p - prompt]);
    }
    const auto drafted = request.draft.begin() + r->sampled;
    plan->input_ids.insert(plan->input_ids.end(), drafted, drafted + draft);
    plan->rows.push_back(row);
    step->rows.push_back({&request, r->slot, end >= prompt, draft});
    r->computed = end;
    if (end < prompt) return;
    if (!request.embed) ++r->sampled;
    r->done = request.embed || r->sampled == request.max_new_tokens;
    if (r->done) plan->closes.push_back(r->slot);
  }

  static void AddMasks(const Running& r, uint32_t draft, PlanRow* row, StepPlan* plan) {
    row->flags |= kRowMask;
    for (uint32_t place = r.sampled; place <= r.sampled + draft; ++place) {
      const size_t begin = plan->masks.size();
      plan->masks.resize(begin + MaskWords(r.request->masked_vocab));
      for (uint32_t token = 0; token < r.request->masked_vocab; ++token) {
        if (MaskAllows(place, static_cast<int32_t>(token)))
          plan->masks[begin + token / 32] |= 1u << (token % 32);
      }
    }
  }

  static void TakeResult(const RowResult& result, const Row& row) {
    DriverRequest& request = *row.request;
    CHECK(result.slot == row.slot);
    for (const PositionLogprobs& p : result.prompt_logprobs) request.prompt_logprobs.push_back(p);
    if (!row.last_of_prompt_or_later) return;
    if (request.embed) {
      request.embedding = result.embedding;
      return;
    }
    request.output.insert(request.output.end(), result.accepted.begin(), result.accepted.end());
    request.output.push_back(result.token);
    for (const PositionLogprobs& p : result.accepted_logprobs) request.logprobs.push_back(p);
    if (result.has_logprobs) request.logprobs.push_back(result.logprobs);
  }

  const DriverOptions options_;
  const Execute execute_;
  std::vector<uint32_t> free_pages_;
  uint64_t step_id_ = 0;
  std::vector<DriverRequest>* requests_ = nullptr;
  size_t next_ = 0;
  std::vector<Running> running_;
};

inline void ExpectWithinMasks(const DriverRequest& request) {
  ASSERT_EQ(request.output.size(), request.max_new_tokens);
  for (uint32_t place = 0; place < request.output.size(); ++place) {
    EXPECT_TRUE(MaskAllows(place, request.output[place])) << place;
  }
}

// `expected`, which are `requests` that have run, give them drafts of which most tokens are right;
// how many there are.
inline size_t GiveDrafts(const std::vector<DriverRequest>& expected, int32_t vocab_size,
                         std::vector<DriverRequest>* requests) {
  size_t drafts = 0;
  for (size_t i = 0; i < requests->size(); ++i) {
    DriverRequest& request = (*requests)[i];
    if (request.embed) continue;
    request.draft = expected[i].output;
    for (size_t t = 1 + i % 3; t < request.draft.size(); t += 4) {
      request.draft[t] = (request.draft[t] + 1) % vocab_size;
    }
    ++drafts;
  }
  return drafts;
}

}  // namespace flotilla::testing
