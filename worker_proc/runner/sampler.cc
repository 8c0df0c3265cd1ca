#include "worker_proc/runner/sampler.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "worker_proc/runner/philox.h"
#include "worker_proc/runner/scratch.h"

namespace flotilla {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

// ln x for a normal x > 0, without libm: x = m 2^e with m in [sqrt 1/2, sqrt 2),
// ln m = 2 artanh((m-1)/(m+1)).
double Log(double x) {
  int e = 0;
  double m = std::frexp(x, &e);
  if (m < 0.70710678118654752) {
    m *= 2;
    --e;
  }
  const double s = (m - 1) / (m + 1);
  double sum = 0;
  for (int k = 25; k >= 1; k -= 2) sum = sum * s * s + 1.0 / k;
  return e * 0.69314718055994531 + 2 * s * sum;
}

// A logit below which no weight reaches min_p: half of it would round up to min_p at most, and the
// rest is ample for the errors of Exp.
float BoundOfMinP(float max, float temperature, float min_p) {
  const double bound = max + temperature * (std::log(min_p) - 0.7);
  return std::nextafter(static_cast<float>(bound), -kInf);
}

// Repetition, frequency, presence. Without a branch on the logit's sign, which nobody could
// foretell: what is above 0 and what is below, one of which is 0.
float Penalised(float logit, const TokenCount& count, const SamplingParams& params) {
  const bool seen = count.in_prompt + count.in_output > 0;
  const float repetition = seen ? params.repetition_penalty : 1.0f;
  const float above = std::max(logit, 0.0f);
  const float below = logit - above;
  logit = above / repetition + below * repetition;
  logit -= params.frequency_penalty * static_cast<float>(count.in_output);
  return logit - (count.in_output > 0 ? params.presence_penalty : 0.0f);
}

}  // namespace

double LogSum(float max, double total_weight) {
  return static_cast<double>(max) + Log(total_weight);
}

bool BansEnds(const SampleInput& input, std::span<const int32_t> eos_ids,
              std::vector<uint32_t>* words) {
  if (input.position >= input.params.min_tokens_until) return false;
  if (input.mask.empty()) return true;
  words->assign(input.mask.begin(), input.mask.end());
  for (const std::span<const int32_t> ids : {eos_ids, input.stop_ids}) {
    for (const int32_t id : ids) {
      const auto bit = static_cast<uint32_t>(id);
      if (id >= 0 && bit / 32 < words->size()) (*words)[bit / 32] &= ~(1u << bit % 32);
    }
  }
  return std::any_of(words->begin(), words->end(), [](uint32_t word) { return word != 0; });
}

void Sampler::Set(std::span<float> logits, int32_t token, float value) {
  float* logit = &logits[static_cast<size_t>(token)];
  changed_.emplace_back(token, *logit);
  *logit = value;
}

void Sampler::Adjust(std::span<float> logits, const SampleInput& input) {
  const SamplingParams& params = input.params;
  changed_.clear();
  if (BansEnds(input, eos_ids_, &words_)) {
    for (const std::span<const int32_t> ids :
         {std::span<const int32_t>(eos_ids_), input.stop_ids}) {
      for (const int32_t id : ids) {
        if (id >= 0 && static_cast<size_t>(id) < logits.size()) Set(logits, id, -kInf);
      }
    }
  }
  for (const LogitBias& entry : input.logit_bias) {
    Set(logits, entry.token, logits[static_cast<size_t>(entry.token)] + entry.bias);
  }
  for (const TokenCount& count : input.counts) {
    const float logit = logits[static_cast<size_t>(count.token)];
    Set(logits, count.token, Penalised(logit, Without(count, input.later), params));
  }
}

void Sampler::PutBack(std::span<float> logits) {
  for (size_t i = changed_.size(); i-- > 0;) {
    logits[static_cast<size_t>(changed_[i].first)] = changed_[i].second;
  }
}

StatusOr<int32_t> Sampler::Sample(std::span<float> logits, const SampleInput& input,
                                  PositionLogprobs* logprobs) {
  // Also brings the row near, before single logits of it are asked for.
  RETURN_IF_ERROR(raw_.Reset(logits));
  int32_t token = -1;
  if (!input.mask.empty()) {
    masked_.resize(logits.size());
    kernels_.mask(logits.data(), logits.size(), input.mask.data(), masked_.data());
    Adjust(masked_, input);
    RETURN_IF_ERROR(adjusted_.Reset(masked_));
    token = Draw(&adjusted_, input);
    if (logprobs != nullptr) LogprobsOf(logits, token, input.params.num_logprobs, logprobs);
    return token;
  }
  Adjust(logits, input);
  if (changed_.empty()) {
    token = Draw(&raw_, input);
  } else {
    const Status status = adjusted_.Reset(logits);
    if (status.ok()) token = Draw(&adjusted_, input);
    PutBack(logits);
    RETURN_IF_ERROR(status);
  }
  if (logprobs != nullptr) LogprobsOf(logits, token, input.params.num_logprobs, logprobs);
  return token;
}

int32_t Sampler::Draw(LogitsScan* row, const SampleInput& input) {
  const SamplingParams& params = input.params;
  if (params.temperature < kGreedyBelow) return row->ArgMax();
  const float inverse = 1.0f / params.temperature;
  const double uniform = UniformDraw(params.seed, input.position, 0);
  const bool survivors_only = params.min_p > 0 || (params.top_k > 0 && params.top_k < row->size());
  // uniform * total < total: the product is rounded, but never up to the total.
  if (!survivors_only && params.top_p >= 1) return row->Draw(uniform * row->TotalWeight(inverse));
  if (survivors_only) {
    CollectSurvivors(row, params, inverse);
  } else {
    CollectNucleus(row, params, inverse);
  }
  return candidates_.Draw(uniform * candidates_.TotalWeight());
}

// What min_p and top_k leave, and of that what top_p leaves.
void Sampler::CollectSurvivors(LogitsScan* row, const SamplingParams& params, float inverse) {
  // What is masked is no candidate, however many top_k asks for.
  float bound = std::numeric_limits<float>::lowest();
  if (params.min_p > 0) bound = BoundOfMinP(row->max(), params.temperature, params.min_p);
  if (params.top_k > 0) bound = std::max(bound, row->BoundOfTop(params.top_k));
  row->Collect(bound, &candidates_);
  candidates_.SetWeights(kernels_, row->Scale(inverse));
  if (params.min_p > 0) candidates_.KeepWeightAtLeast(params.min_p);
  if (params.top_k > 0) candidates_.KeepTopK(params.top_k);
  if (params.top_p < 1) candidates_.KeepMass(params.top_p * candidates_.TotalWeight());
}

// The mass is of all tokens; those that make it up are near the top, so the threshold is lowered
// until it is reached. How far to go at first: the top token's share is 1 / total.
void Sampler::CollectNucleus(LogitsScan* row, const SamplingParams& params, float inverse) {
  const double total = row->TotalWeight(inverse);
  const double need = params.top_p * total;
  auto margin = static_cast<float>(std::log(total));  // in units of the temperature
  for (;; margin = 2 * margin + 1) {
    row->Collect(row->max() - margin * params.temperature, &candidates_);
    candidates_.SetWeights(kernels_, row->Scale(inverse));
    if (candidates_.TotalWeight() >= need) break;
  }
  candidates_.KeepMass(need);
}

Status Sampler::Logprobs(std::span<const float> logits, int32_t token, uint32_t n,
                         PositionLogprobs* logprobs) {
  RETURN_IF_ERROR(raw_.Reset(logits));
  LogprobsOf(logits, token, n, logprobs);
  return OkStatus();
}

void Sampler::LogprobsOf(std::span<const float> logits, int32_t token, uint32_t n,
                         PositionLogprobs* logprobs) {
  const double log_sum = LogSum(raw_.max(), raw_.TotalWeight(1.0f));
  const auto logprob = [&](float logit) {
    return static_cast<float>(static_cast<double>(logit) - log_sum);
  };
  logprobs->token = token;
  logprobs->logprob = logprob(logits[static_cast<size_t>(token)]);
  logprobs->rank = raw_.Rank(token);
  logprobs->top.clear();
  if (n == 0) return;
  raw_.Collect(raw_.BoundOfTop(n), &candidates_);
  const std::span<const uint32_t> most_likely = candidates_.MostLikely(n);
  for (const uint32_t i : most_likely) {
    logprobs->top.push_back({candidates_.tokens()[i], logprob(candidates_.logits()[i])});
  }
}

void Sampler::MakeRoomFor(uint32_t vocab_size) {
  raw_.MakeRoomFor(vocab_size);
  adjusted_.MakeRoomFor(vocab_size);
  candidates_.MakeRoomFor(vocab_size);
  MakeRoom(vocab_size, &masked_);
  MakeRoom(MaskWords(vocab_size), &words_);
  MakeRoom(vocab_size + kMaxLogitBias + eos_ids_.size(), &changed_);
}

}  // namespace flotilla
