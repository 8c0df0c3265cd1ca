// Finds special tokens that are written out in a text: from left to right, the longest at each
// place.
//
// Time: linear in the text (each place costs at most the longest special token, which is bounded by
// kMaxLength, and one table look-up where none begins). Threads: const after the last Add.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

#include "absl/container/flat_hash_map.h"
#include "common/text/tokenizer.h"

namespace flotilla {

class SpecialTokenMatcher {
 public:
  static constexpr size_t kMaxLength = 1024;  // bytes

  // `text` must have 1 to kMaxLength bytes. The same text again replaces the id.
  void Add(std::string_view text, TokenId id);

  struct Match {
    size_t begin;  // size of the text: no more matches
    size_t length;
    TokenId id;
  };
  // The first match at or after `from`.
  Match Find(std::string_view text, size_t from) const;

 private:
  // A trie: node 0 is the root; child_ is keyed by node << 8 | byte.
  absl::flat_hash_map<uint64_t, uint32_t> child_;
  absl::flat_hash_map<uint32_t, TokenId> id_at_;
  std::array<bool, 256> begins_{};
  uint32_t num_nodes_ = 1;
};

}  // namespace flotilla
