#include "worker_proc/runner/token_history.h"

#include <algorithm>
#include <bit>

namespace flotilla {
namespace {

constexpr size_t kFewestPlaces = 64;

}  // namespace

void TokenHistory::Reset(uint32_t output_start) {
  output_start_ = output_start;
  if (!counts_.empty()) std::fill(places_.begin(), places_.end(), kNone);
  tokens_.clear();
  counts_.clear();
}

void TokenHistory::Reserve(uint32_t max_tokens) {
  tokens_.reserve(max_tokens);
  counts_.reserve(max_tokens);
  const size_t places = std::bit_ceil(std::max(kFewestPlaces, 2 * size_t{max_tokens}));
  if (places > places_.size()) Grow(places);
}

size_t TokenHistory::Find(int32_t token) const {
  const size_t last = places_.size() - 1;
  // Fibonacci hashing: neighbouring ids come apart.
  size_t at = (static_cast<uint64_t>(static_cast<uint32_t>(token)) * 0x9e3779b97f4a7c15u >> 32);
  for (at &= last; places_[at] != kNone && counts_[places_[at]].token != token;) {
    at = (at + 1) & last;
  }
  return at;
}

void TokenHistory::Grow(size_t places) {
  places_.assign(places, kNone);
  for (uint32_t i = 0; i < counts_.size(); ++i) places_[Find(counts_[i].token)] = i;
}

void TokenHistory::Append(std::span<const int32_t> tokens) {
  for (const int32_t token : tokens) {
    if (2 * (counts_.size() + 1) > places_.size()) {
      Grow(std::max(kFewestPlaces, 2 * places_.size()));
    }
    uint32_t& place = places_[Find(token)];
    if (place == kNone) {
      place = static_cast<uint32_t>(counts_.size());
      counts_.push_back({.token = token});
    }
    TokenCount& count = counts_[place];
    ++(size() < output_start_ ? count.in_prompt : count.in_output);
    tokens_.push_back(token);
  }
}

void TokenHistory::Truncate(uint32_t num_tokens) {
  while (size() > num_tokens) {
    TokenCount& count = counts_[places_[Find(tokens_.back())]];
    tokens_.pop_back();
    --(size() < output_start_ ? count.in_prompt : count.in_output);
  }
}

}  // namespace flotilla
