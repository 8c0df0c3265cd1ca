// Which pages a replica's prefix cache holds, as its cache events say.
//
// Bounded: what is stored beyond max_pages is not noted, only counted; then a match may be shorter
// than the replica's. Units: pages of page_size() tokens. Threads: one at a time. Pure.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "flotilla/v1/engine.pb.h"

namespace flotilla {

class PageIndex {
 public:
  explicit PageIndex(size_t max_pages) : max_pages_(max_pages) {}

  // Nothing is known, as of a replica that has not told yet.
  void Reset();
  void Apply(const v1::CacheEvent& event);

  // Of the pages whose hashes these are, in order, the number at the beginning that are cached.
  size_t Match(std::span<const uint64_t> hashes) const;

  uint32_t page_size() const { return page_size_; }  // tokens; 0: not known yet
  size_t size() const { return pages_.size(); }
  uint64_t left_out() const { return left_out_; }

 private:
  const size_t max_pages_;
  uint32_t page_size_ = 0;
  uint64_t left_out_ = 0;
  absl::flat_hash_set<uint64_t> pages_;
};

// Hashes of the whole pages of a tenant's prompt that can be read from a cache: its last token
// never is.
std::vector<uint64_t> PromptPageHashes(std::string_view tenant, std::span<const int32_t> prompt_ids,
                                       uint32_t page_size);

}  // namespace flotilla
