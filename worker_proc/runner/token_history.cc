#include "worker_proc/runner/token_history.h"

namespace flotilla {

void TokenHistory::Reset(uint32_t output_start) {
  output_start_ = output_start;
  tokens_.clear();
  counts_.clear();
  index_.clear();
}

void TokenHistory::Append(std::span<const int32_t> tokens) {
  for (const int32_t token : tokens) {
    const auto [entry, is_new] = index_.try_emplace(token, static_cast<uint32_t>(counts_.size()));
    if (is_new) counts_.push_back({.token = token});
    TokenCount& count = counts_[entry->second];
    ++(size() < output_start_ ? count.in_prompt : count.in_output);
    tokens_.push_back(token);
  }
}

void TokenHistory::Truncate(uint32_t num_tokens) {
  while (size() > num_tokens) {
    TokenCount& count = counts_[index_.at(tokens_.back())];
    tokens_.pop_back();
    --(size() < output_start_ ? count.in_prompt : count.in_output);
  }
}

}  // namespace flotilla
