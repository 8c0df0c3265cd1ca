// What a sequence consists of, for penalties: its tokens, and how often each of them occurred in
// the prompt and in the output. Sparse: as large as the number of different tokens.
//
// Threads: one. Ownership: memory is reused after Reset; after Reserve, Append takes none. Errors:
// none.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

namespace flotilla {

struct TokenCount {
  int32_t token = 0;
  uint32_t in_prompt = 0;
  uint32_t in_output = 0;
};

// `count` without what stands in `later`, which is of the output.
inline TokenCount Without(TokenCount count, std::span<const int32_t> later) {
  count.in_output -= static_cast<uint32_t>(std::count(later.begin(), later.end(), count.token));
  return count;
}

class TokenHistory {
 public:
  // Empty; tokens from position `output_start` on are output.
  void Reset(uint32_t output_start);
  // Room for so many tokens, and for as many different ones.
  void Reserve(uint32_t max_tokens);
  // The tokens at the positions size(), size() + 1, …
  void Append(std::span<const int32_t> tokens);
  // Forgets the tokens from position `num_tokens` on.
  void Truncate(uint32_t num_tokens);

  uint32_t size() const { return static_cast<uint32_t>(tokens_.size()); }
  // Each token once, in no meaningful order. What Truncate took away may stand with zeros, as may
  // what Without leaves.
  std::span<const TokenCount> counts() const { return counts_; }

 private:
  static constexpr uint32_t kNone = UINT32_MAX;
  // Where places_ has the token, or the free place where it belongs.
  size_t Find(int32_t token) const;
  void Grow(size_t places);

  uint32_t output_start_ = 0;
  std::vector<int32_t> tokens_;  // by position
  std::vector<TokenCount> counts_;
  // A hash table of places in counts_, at least half of it kNone; its size is a power of two.
  // (absl's gives its memory back when it is cleared.)
  std::vector<uint32_t> places_;
};

}  // namespace flotilla
