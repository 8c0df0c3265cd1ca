#include "router/simulation/sim_replica.h"

#include <algorithm>

namespace flotilla {

void SimReplica::Submit(const SimRequest& request) {
  waiting_.push_back(request);
  queued_tokens_ += request.turn.prompt_tokens;
}

// First come first served, while there are slots and memory.
void SimReplica::Admit() {
  while (!waiting_.empty() && running_.size() < cost_.max_running) {
    SimRequest request = waiting_.front();
    const uint64_t whole = request.turn.prompt_tokens + request.turn.output_tokens;
    if (!running_.empty() && running_tokens_ + whole > cost_.kv_tokens) return;
    waiting_.pop_front();
    const uint32_t cached = Cached(request.turn);
    request.cached = request.computed = cached;
    queued_tokens_ -= cached;
    running_tokens_ += cached;
    if (cached > 0) Keep(GroupKey(request.turn), FindEntry(GroupKey(request.turn)));
    running_.push_back(request);
  }
}

double SimReplica::BeginStep() {
  Admit();
  chunks_.assign(running_.size(), 0);
  uint32_t budget = cost_.chunk_tokens, decodes = 0, prompts = 0;
  for (size_t i = 0; i < running_.size(); ++i) {
    const uint32_t missing = running_[i].turn.prompt_tokens - running_[i].computed;
    chunks_[i] = std::min(missing, budget);
    budget -= chunks_[i];
    prompts += chunks_[i];
    decodes += missing == 0 ? 1 : 0;
  }
  stepping_ = prompts + decodes > 0;
  if (!stepping_) return 0;
  work_tokens_ += prompts + decodes;
  const double seconds =
      slowdown_ * (cost_.step_s + prompts * cost_.prompt_token_s + decodes * cost_.decode_token_s);
  busy_s_ += seconds;
  return seconds;
}

void SimReplica::EndStep(StepResult* result) {
  stepping_ = false;
  size_t kept = 0;
  for (size_t i = 0; i < running_.size(); ++i) {
    SimRequest& request = running_[i];
    const bool decodes = request.computed == request.turn.prompt_tokens;
    request.computed += chunks_[i];
    queued_tokens_ -= chunks_[i];
    running_tokens_ += chunks_[i];
    const bool prefilled = !decodes && request.computed == request.turn.prompt_tokens;
    if (prefilled && request.turn.prefix_tokens > 0)
      Keep(GroupKey(request.turn), request.turn.prefix_tokens);
    if (decodes || prefilled) {
      ++request.generated;
      ++running_tokens_;
      if (!request.answered) result->first_tokens.push_back(request);
      request.answered = true;
    }
    if (request.generated < request.turn.output_tokens) {
      running_[kept++] = request;
      continue;
    }
    const uint32_t tokens = request.turn.prompt_tokens + request.generated;
    running_tokens_ -= std::min<uint64_t>(running_tokens_, tokens);
    Keep(request.turn.conversation, tokens - request.turn.prefix_tokens);
    result->finished.push_back(request);
  }
  running_.resize(kept);
  if (running_.empty()) running_tokens_ = 0;
  MakeRoom(running_tokens_);
}

void SimReplica::Die(std::vector<SimRequest>* lost) {
  for (SimRequest& request : running_) lost->push_back(request);
  for (SimRequest& request : waiting_) lost->push_back(request);
  running_.clear();
  waiting_.clear();
  cache_.clear();
  order_.clear();
  stepping_ = false;
  queued_tokens_ = running_tokens_ = cached_tokens_ = 0;
}

// --- The prefix cache --------------------------------------------------------------------------

uint32_t SimReplica::FindEntry(uint64_t key) const {
  const auto found = cache_.find(key);
  return found == cache_.end() ? 0 : found->second.tokens;
}

uint32_t SimReplica::Cached(const Turn& turn) const {
  uint32_t tokens = turn.prefix_tokens > 0 ? FindEntry(GroupKey(turn)) : 0;
  if (tokens == turn.prefix_tokens) tokens += FindEntry(turn.conversation);
  tokens = std::min(tokens, turn.prompt_tokens - 1);
  return tokens / cost_.page_size * cost_.page_size;
}

// As the most recently used one.
void SimReplica::Keep(uint64_t key, uint32_t tokens) {
  const auto [it, added] = cache_.try_emplace(key);
  if (!added) order_.erase(it->second.position);
  order_.push_back(key);
  it->second.position = std::prev(order_.end());
  cached_tokens_ += tokens - std::min(tokens, it->second.tokens);
  it->second.tokens = std::max(tokens, it->second.tokens);
}

void SimReplica::MakeRoom(uint64_t running_tokens) {
  while (!order_.empty() && cached_tokens_ + running_tokens > cost_.kv_tokens) {
    const auto found = cache_.find(order_.front());
    cached_tokens_ -= found->second.tokens;
    cache_.erase(found);
    order_.pop_front();
  }
}

}  // namespace flotilla
