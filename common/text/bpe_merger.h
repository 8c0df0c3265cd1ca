// The merging of byte pair encoding: of all adjacent pairs that may merge, the one of lowest rank,
// the leftmost of equals, until none is left.
//
// Time for n symbols: quadratic with a tiny constant up to kShort, O(n log n) above, so that a
// megabyte without a word boundary is no attack. Threads: const after the last Add.
// Source: Sennrich et al. 2016; the order of equal ranks is that of the tokenizers library.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "common/text/tokenizer.h"

namespace flotilla {

class BpeMerger {
 public:
  static constexpr size_t kShort = 48;  // symbols; the two ways cross between 40 and 60

  void Reserve(size_t num_merges) { merges_.reserve(num_merges); }
  // The pair (left, right) becomes `merged`; lower ranks go first. The last of equal pairs counts.
  void Add(TokenId left, TokenId right, uint32_t rank, TokenId merged) {
    merges_[Key(left, right)] = {rank, merged};
  }
  size_t size() const { return merges_.size(); }

  // Merges in place and appends what is left to *out. `symbols` is scratch afterwards.
  void Apply(std::vector<TokenId>* symbols, std::vector<TokenId>* out) const;

 private:
  static constexpr uint32_t kNoRank = UINT32_MAX;
  struct Merge {
    uint32_t rank = kNoRank;
    TokenId merged = -1;
  };
  static uint64_t Key(TokenId left, TokenId right) {
    return static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
  }
  Merge Find(TokenId left, TokenId right) const {
    const auto found = merges_.find(Key(left, right));
    return found == merges_.end() ? Merge{} : found->second;
  }
  void ApplyShort(std::vector<TokenId>* symbols, std::vector<TokenId>* out) const;
  void ApplyLong(const std::vector<TokenId>& symbols, std::vector<TokenId>* out) const;

  absl::flat_hash_map<uint64_t, Merge> merges_;
};

}  // namespace flotilla
