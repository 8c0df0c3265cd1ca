#include "router/fleet/page_index.h"

#include "common/base/page_hash.h"

namespace flotilla {

void PageIndex::Reset() {
  page_size_ = 0;
  pages_.clear();
}

void PageIndex::Apply(const v1::CacheEvent& event) {
  page_size_ = event.page_size();
  switch (event.kind()) {
    case v1::CacheEvent::STORED:
      for (const uint64_t hash : event.page_hashes()) {
        if (pages_.size() < max_pages_) {
          pages_.insert(hash);
        } else {
          ++left_out_;
        }
      }
      break;
    case v1::CacheEvent::REMOVED:
      for (const uint64_t hash : event.page_hashes()) pages_.erase(hash);
      break;
    case v1::CacheEvent::CLEARED:
      pages_.clear();
      break;
    default:
      break;  // a kind of a later protocol
  }
}

// A page is cached only while those before it are, so it need not be looked for in each.
size_t PageIndex::Match(std::span<const uint64_t> hashes) const {
  if (hashes.empty() || !pages_.contains(hashes[0])) return 0;
  size_t cached = 1, not_cached = hashes.size() + 1;  // counts of pages
  while (not_cached - cached > 1) {
    const size_t middle = cached + (not_cached - cached) / 2;
    (pages_.contains(hashes[middle - 1]) ? cached : not_cached) = middle;
  }
  return cached;
}

std::vector<uint64_t> PromptPageHashes(std::string_view tenant, std::span<const int32_t> prompt_ids,
                                       uint32_t page_size) {
  std::vector<uint64_t> hashes;
  if (page_size == 0 || prompt_ids.empty()) return hashes;
  const size_t count = (prompt_ids.size() - 1) / page_size;
  hashes.reserve(count);
  uint64_t hash = RootPageHash(tenant);
  for (size_t i = 0; i < count; ++i) {
    hash = NextPageHash(hash, prompt_ids.data() + i * page_size, page_size);
    hashes.push_back(hash);
  }
  return hashes;
}

}  // namespace flotilla
