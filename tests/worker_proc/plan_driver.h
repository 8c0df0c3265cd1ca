// A scheduler small enough to read: runs requests to their end through a function that executes one
// plan, with a chunk size and a number of requests at once. Tests of the worker only.
//
// Pages come from a shuffled free list, slots are requests. Prompts are cut into chunks of at most
// chunk_size tokens a step over all requests; requests whose prompt is done decode in the same
// steps.
#pragma once

#include <algorithm>
#include <functional>
#include <numeric>
#include <random>
#include <string>
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
  bool embed = false;  // the prompt's embedding instead of output: max_new_tokens 0
  bool mean = false;   // of all positions, else of the last
  // results
  std::vector<int32_t> output;
  std::vector<PositionLogprobs> logprobs;         // of output
  std::vector<PositionLogprobs> prompt_logprobs;  // of prompt[1…]
  std::vector<float> embedding;
  std::string embedding_bits() const {
    return {reinterpret_cast<const char*>(embedding.data()), embedding.size() * sizeof(float)};
  }
};

struct DriverOptions {
  uint32_t chunk_size = 512;  // prompt tokens a step
  uint32_t at_once = 8;       // requests running at the same time
  uint32_t page_size = 16;
  uint32_t num_pages = 0;
  uint32_t epoch = 1;
  bool last_tokens = false;  // decodes go on with kLastToken, as with overlap
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
    std::vector<Running> running;
    size_t next = 0;
    uint32_t steps = 0;
    while (next < requests->size() || !running.empty()) {
      StepPlan plan;
      plan.step_id = ++step_id_;
      plan.epoch = options_.epoch;
      while (running.size() < options_.at_once && next < requests->size()) {
        running.push_back(Open(&(*requests)[next++], &running, &plan));
      }
      uint32_t budget = options_.chunk_size;
      std::vector<Running*> planned;
      for (Running& r : running) {
        if (AddRow(&r, &budget, &plan)) planned.push_back(&r);
      }
      const StepResult result = execute_(plan);
      CHECK(result.code == 0 && result.rows.size() == planned.size());
      for (size_t i = 0; i < planned.size(); ++i) TakeResult(result.rows[i], planned[i]);
      std::erase_if(running, [&](Running& r) { return r.done; });
      ++steps;
    }
    return steps;
  }

 private:
  struct Running {
    DriverRequest* request = nullptr;
    uint32_t slot = 0;
    uint32_t computed = 0;  // tokens whose KV is there
    uint32_t planned = 0;   // tokens of this step
    std::vector<uint32_t> pages;
    bool done = false;
  };

  Running Open(DriverRequest* request, std::vector<Running>* running, StepPlan* plan) {
    Running r;
    r.request = request;
    while (std::any_of(running->begin(), running->end(),
                       [&](const Running& other) { return other.slot == r.slot; })) {
      ++r.slot;
    }
    plan->opens.push_back({r.slot, static_cast<uint32_t>(request->prompt.size()), request->sampling,
                           static_cast<uint32_t>(request->logit_bias.size())});
    plan->logit_bias.insert(plan->logit_bias.end(), request->logit_bias.begin(),
                            request->logit_bias.end());
    return r;
  }

  bool AddRow(Running* r, uint32_t* budget, StepPlan* plan) {
    DriverRequest& request = *r->request;
    const auto prompt = static_cast<uint32_t>(request.prompt.size());
    const bool decode = r->computed >= prompt;
    r->planned = decode ? 1 : std::min(*budget, prompt - r->computed);
    if (r->planned == 0) return false;
    if (!decode) *budget -= r->planned;
    PlanRow row;
    row.slot = r->slot;
    row.start_pos = r->computed;
    row.num_tokens = r->planned;
    const uint32_t end = r->computed + r->planned;
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
    for (uint32_t p = r->computed; p < end; ++p) {
      const bool leave_out = decode && options_.last_tokens;
      plan->input_ids.push_back(p < prompt  ? request.prompt[p]
                                : leave_out ? kLastToken
                                            : request.output[p - prompt]);
    }
    plan->rows.push_back(row);
    if (end >= prompt && request.output.size() + 1 >= request.max_new_tokens) {
      plan->closes.push_back(r->slot);
    }
    return true;
  }

  void TakeResult(const RowResult& row, Running* r) {
    DriverRequest& request = *r->request;
    r->computed += r->planned;
    CHECK(row.slot == r->slot);
    for (const PositionLogprobs& p : row.prompt_logprobs) request.prompt_logprobs.push_back(p);
    if (r->computed < request.prompt.size()) return;
    if (request.embed) {
      request.embedding = row.embedding;
      r->done = true;
      free_pages_.insert(free_pages_.end(), r->pages.begin(), r->pages.end());
      return;
    }
    request.output.push_back(row.token);
    if (row.has_logprobs) request.logprobs.push_back(row.logprobs);
    r->done = request.output.size() == request.max_new_tokens;
    if (r->done) free_pages_.insert(free_pages_.end(), r->pages.begin(), r->pages.end());
  }

  const DriverOptions options_;
  const Execute execute_;
  std::vector<uint32_t> free_pages_;
  uint64_t step_id_ = 0;
};

}  // namespace flotilla::testing
