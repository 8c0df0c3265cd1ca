#include "common/text/bpe_merger.h"

#include <algorithm>
#include <array>
#include <queue>
#include <tuple>

#include "common/base/check.h"

namespace flotilla {

void BpeMerger::Apply(std::vector<TokenId>* symbols, std::vector<TokenId>* out) const {
  if (symbols->size() <= kShort) {
    ApplyShort(symbols, out);
  } else {
    ApplyLong(*symbols, out);
  }
}

void BpeMerger::ApplyShort(std::vector<TokenId>* symbols, std::vector<TokenId>* out) const {
  TokenId* const ids = symbols->data();
  size_t count = symbols->size();
  std::array<Merge, kShort> pair;  // pair[i]: of ids[i] and ids[i + 1]
  for (size_t i = 0; i + 1 < count; ++i) pair[i] = Find(ids[i], ids[i + 1]);
  while (count > 1) {
    size_t best = 0;
    for (size_t i = 1; i + 1 < count; ++i) {
      if (pair[i].rank < pair[best].rank) best = i;
    }
    if (pair[best].rank == kNoRank) break;
    ids[best] = pair[best].merged;
    std::copy(ids + best + 2, ids + count, ids + best + 1);
    std::copy(pair.begin() + best + 1, pair.begin() + count - 1, pair.begin() + best);
    --count;
    if (best + 1 < count) pair[best] = Find(ids[best], ids[best + 1]);
    if (best > 0) pair[best - 1] = Find(ids[best - 1], ids[best]);
  }
  out->insert(out->end(), ids, ids + count);
}

namespace {

// A symbol in a doubly linked list over the positions of the word.
struct Node {
  TokenId id;
  int32_t previous;  // −1: first
  int32_t next;      // −1: last
};

// A pair that could merge when this was pushed; stale once either side has changed.
struct Candidate {
  uint32_t rank;
  int32_t left;  // position
  bool operator>(const Candidate& other) const {
    return std::tie(rank, left) > std::tie(other.rank, other.left);
  }
};

}  // namespace

void BpeMerger::ApplyLong(const std::vector<TokenId>& symbols, std::vector<TokenId>* out) const {
  CHECK(symbols.size() <= INT32_MAX);
  const int32_t count = static_cast<int32_t>(symbols.size());
  std::vector<Node> nodes(count);
  std::vector<Candidate> initial;
  for (int32_t i = 0; i < count; ++i) {
    nodes[i] = {symbols[i], i - 1, i + 1 < count ? i + 1 : -1};
    if (i + 1 == count) continue;
    const Merge merge = Find(symbols[i], symbols[i + 1]);
    if (merge.rank != kNoRank) initial.push_back({merge.rank, i});
  }
  std::priority_queue<Candidate, std::vector<Candidate>, std::greater<>> queue(std::greater<>{},
                                                                               std::move(initial));
  const auto push = [&](int32_t left) {
    if (left < 0 || nodes[left].next < 0) return;
    const Merge merge = Find(nodes[left].id, nodes[nodes[left].next].id);
    if (merge.rank != kNoRank) queue.push({merge.rank, left});
  };
  constexpr TokenId kGone = -1;
  while (!queue.empty()) {
    const Candidate top = queue.top();
    queue.pop();
    Node& left = nodes[top.left];
    if (left.id == kGone || left.next < 0) continue;
    Node& right = nodes[left.next];
    const Merge merge = Find(left.id, right.id);
    if (merge.rank != top.rank) continue;  // ranks are unique: the pair has changed
    left.id = merge.merged;
    left.next = right.next;
    right.id = kGone;
    if (left.next >= 0) nodes[left.next].previous = top.left;
    push(top.left);
    push(left.previous);
  }
  for (int32_t i = 0; i >= 0; i = nodes[i].next) out->push_back(nodes[i].id);
}

}  // namespace flotilla
