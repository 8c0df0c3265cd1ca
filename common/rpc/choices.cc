#include "common/rpc/choices.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <utility>

namespace flotilla {

uint64_t ChoiceSeed(uint64_t seed, size_t index) {
  if (index == 0) return seed;
  uint64_t z = seed + index * 0x9e3779b97f4a7c15;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
  z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
  return z ^ (z >> 31);
}

ChoiceOptions ChoicesOf(const v1::GenerateRequest& request) {
  const v1::SamplingParams& sampling = request.sampling();
  const v1::OutputOptions& output = request.output();
  ChoiceOptions options;
  if (sampling.has_n()) options.num_choices = static_cast<size_t>(sampling.n());
  options.num_candidates =
      sampling.has_best_of() ? static_cast<size_t>(sampling.best_of()) : options.num_choices;
  options.hide_logprobs = options.ranked() && !output.has_logprobs();
  options.prompt_first = output.has_prompt_logprobs() || (output.echo() && output.has_logprobs());
  return options;
}

v1::GenerateRequest ChoiceRequest(const v1::GenerateRequest& request, size_t index) {
  const bool rank_only = ChoicesOf(request).hide_logprobs;
  v1::GenerateRequest choice = request;
  v1::SamplingParams* sampling = choice.mutable_sampling();
  sampling->clear_n();
  sampling->clear_best_of();
  sampling->set_seed(ChoiceSeed(sampling->seed(), index));
  if (rank_only) choice.mutable_output()->set_logprobs(0);
  if (index > 0) choice.mutable_output()->clear_prompt_logprobs();
  return choice;
}

// One that was ended before its first token, or that has no sensible number, comes last.
double ChoiceMerger::Candidate::mean_logprob() const {
  const double mean = sum_logprobs / static_cast<double>(num_tokens);
  return mean <= 0 ? mean : -std::numeric_limits<double>::infinity();
}

void ChoiceMerger::Add(size_t candidate, v1::Delta&& delta, std::vector<v1::Delta>* out) {
  TakeEnd(&delta);
  if (candidates_.size() == 1) {
    for (v1::ChoiceDelta& choice : *delta.mutable_choices()) choice.set_index(0);
    out->push_back(std::move(delta));
    return;
  }
  if (delta.prompt_logprobs_size() > 0 || delta.large_result_id() != 0) {
    v1::Delta& prompt = out->emplace_back();
    prompt.mutable_prompt_logprobs()->Swap(delta.mutable_prompt_logprobs());
    prompt.set_large_result_id(delta.large_result_id());
    delta.clear_large_result_id();
  }
  if (delta.choices_size() > 0) {
    prompt_done_ = prompt_done_ || candidate == 0;
    Candidate& from = candidates_[candidate];
    for (const v1::TokenLogprobs& entry : delta.choices(0).logprobs())
      from.sum_logprobs += entry.logprob();
    from.num_tokens += static_cast<size_t>(delta.choices(0).logprobs_size());
    if (options_.hide_logprobs) delta.mutable_choices(0)->clear_logprobs();
    if (options_.ranked() || (options_.prompt_first && !prompt_done_))
      kept_bytes_ += delta.SpaceUsedLong();
    from.kept.push_back(std::move(delta));
  }
  if (options_.ranked()) {
    if (!done()) return;
    const std::vector<size_t> best = Best();
    for (size_t i = 0; i < best.size(); ++i) Release(best[i], i, out);
  } else if (prompt_done_ || !options_.prompt_first) {
    for (size_t i = 0; i < candidates_.size(); ++i) Release(i, i, out);
    kept_bytes_ = 0;
  }
}

void ChoiceMerger::TakeEnd(v1::Delta* delta) {
  if (delta->last()) ++num_ended_;
  if (delta->has_timing()) timing_ = std::move(*delta->mutable_timing());
  delta->clear_timing();
  if (!delta->has_usage()) return;
  const v1::Usage& usage = delta->usage();
  const bool first = usage_.prompt_tokens() == 0;
  usage_.set_prompt_tokens(usage.prompt_tokens());
  usage_.set_completion_tokens(usage_.completion_tokens() + usage.completion_tokens());
  usage_.set_cached_tokens(first ? usage.cached_tokens()
                                 : std::min(usage_.cached_tokens(), usage.cached_tokens()));
  delta->clear_usage();
}

void ChoiceMerger::Release(size_t candidate, size_t index, std::vector<v1::Delta>* out) {
  for (v1::Delta& delta : candidates_[candidate].kept) {
    delta.mutable_choices(0)->set_index(static_cast<int32_t>(index));
    out->push_back(std::move(delta));
  }
  candidates_[candidate].kept.clear();
}

std::vector<size_t> ChoiceMerger::Best() const {
  std::vector<size_t> order(candidates_.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [this](size_t a, size_t b) {
    return candidates_[a].mean_logprob() > candidates_[b].mean_logprob();
  });
  order.resize(options_.num_choices);
  return order;
}

}  // namespace flotilla
