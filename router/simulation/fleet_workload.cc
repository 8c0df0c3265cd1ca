#include "router/simulation/fleet_workload.h"

#include <algorithm>

namespace flotilla {
namespace {

constexpr uint32_t kMaxPromptTokens = 32'000;
constexpr double kLongFactor = 10;

}  // namespace

FleetWorkload::FleetWorkload(const WorkloadOptions& options)
    : options_(options), random_(options.seed) {
  for (uint32_t i = 0; i < std::max(options.groups, 1u); ++i)
    group_weights_.push_back(1.0 / (i + 1));
  group_ = std::discrete_distribution<uint32_t>(group_weights_.begin(), group_weights_.end());
}

double FleetWorkload::NextGap() {
  if (requests_ >= options_.num_requests) return -1;
  return Exponential(options_.turns / options_.rate);
}

// From a quarter of the mean to eight times it.
uint32_t FleetWorkload::Length(double mean) {
  return static_cast<uint32_t>(std::clamp(Exponential(mean), mean / 4, mean * 8)) + 1;
}

void FleetWorkload::Fill(Turn* turn, uint32_t history) {
  ++requests_;
  double user = options_.user_tokens;
  if (options_.long_share > 0) {
    const bool is_long = std::bernoulli_distribution(options_.long_share)(random_);
    user *= is_long ? kLongFactor
                    : std::max(0.05,
                               (1 - options_.long_share * kLongFactor) / (1 - options_.long_share));
  }
  turn->prompt_tokens = std::min(history + Length(user), kMaxPromptTokens);
  turn->output_tokens = Length(options_.output_tokens);
}

Turn FleetWorkload::Begin() {
  Turn turn;
  turn.conversation = begun_++;
  if (options_.groups > 0) {
    turn.group = group_(random_);
    turn.prefix_tokens = options_.system_tokens;
  }
  Fill(&turn, turn.prefix_tokens);
  return turn;
}

bool FleetWorkload::GoOn(const Turn& last, Turn* next, double* pause_s) {
  const bool over = std::bernoulli_distribution(1 / options_.turns)(random_);
  if (over || requests_ >= options_.num_requests || last.prompt_tokens >= kMaxPromptTokens)
    return false;
  *next = last;
  Fill(next, last.prompt_tokens + last.output_tokens);
  *pause_s = Exponential(options_.think_s);
  return true;
}

}  // namespace flotilla
