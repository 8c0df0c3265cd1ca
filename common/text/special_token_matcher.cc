#include "common/text/special_token_matcher.h"

#include "common/base/check.h"

namespace flotilla {

void SpecialTokenMatcher::Add(std::string_view text, TokenId id) {
  CHECK(!text.empty() && text.size() <= kMaxLength);
  begins_[static_cast<uint8_t>(text[0])] = true;
  uint32_t node = 0;
  for (char c : text) {
    const uint64_t key = static_cast<uint64_t>(node) << 8 | static_cast<uint8_t>(c);
    const auto [entry, added] = child_.try_emplace(key, num_nodes_);
    if (added) ++num_nodes_;
    node = entry->second;
  }
  id_at_[node] = id;
}

SpecialTokenMatcher::Match SpecialTokenMatcher::Find(std::string_view text, size_t from) const {
  for (size_t begin = from; begin < text.size(); ++begin) {
    if (!begins_[static_cast<uint8_t>(text[begin])]) continue;
    Match best{text.size(), 0, -1};
    uint32_t node = 0;
    for (size_t i = begin; i < text.size(); ++i) {
      const auto next =
          child_.find(static_cast<uint64_t>(node) << 8 | static_cast<uint8_t>(text[i]));
      if (next == child_.end()) break;
      node = next->second;
      const auto found = id_at_.find(node);
      if (found != id_at_.end()) best = {begin, i + 1 - begin, found->second};
    }
    if (best.length > 0) return best;
  }
  return {text.size(), 0, -1};
}

}  // namespace flotilla
