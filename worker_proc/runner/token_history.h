// What a sequence consists of, for penalties: its tokens, and how often each of them occurred in
// the prompt and in the output. Sparse: as large as the number of different tokens.
//
// Threads: one. Ownership: memory is reused after Reset. Errors: none.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "absl/container/flat_hash_map.h"

namespace flotilla {

struct TokenCount {
  int32_t token = 0;
  uint32_t in_prompt = 0;
  uint32_t in_output = 0;
};

class TokenHistory {
 public:
  // Empty; tokens from position `output_start` on are output.
  void Reset(uint32_t output_start);
  // The tokens at the positions size(), size() + 1, …
  void Append(std::span<const int32_t> tokens);
  // Forgets the tokens from position `num_tokens` on.
  void Truncate(uint32_t num_tokens);

  uint32_t size() const { return static_cast<uint32_t>(tokens_.size()); }
  // Each token once, in no meaningful order. What Truncate took away may stand with zeros.
  std::span<const TokenCount> counts() const { return counts_; }

 private:
  uint32_t output_start_ = 0;
  std::vector<int32_t> tokens_;  // by position
  std::vector<TokenCount> counts_;
  absl::flat_hash_map<int32_t, uint32_t> index_;  // token → its place in counts_
};

}  // namespace flotilla
