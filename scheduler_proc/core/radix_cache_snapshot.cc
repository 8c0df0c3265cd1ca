// RadixCache: what it holds, saved and restored (snapshot.cc).
#include <algorithm>
#include <tuple>

#include "common/base/check.h"
#include "scheduler_proc/core/radix_cache.h"

namespace flotilla {
namespace {

// So far counters may go: what follows must not wrap around.
constexpr uint64_t kMaxTicks = uint64_t{1} << 62;
constexpr uint32_t kMaxHits = 1u << 31;

}  // namespace

NodeId RadixCache::FindRoot(const std::string& salt) const {
  const auto it = roots_.find(salt);
  return it == roots_.end() ? kNoNode : it->second;
}

NodeId RadixCache::RootOf(NodeId node) const {
  while (!nodes_[node].is_root) node = nodes_[node].parent;
  return node;
}

void RadixCache::AppendPathTokens(NodeId node, std::vector<int32_t>* tokens) const {
  const size_t begin = tokens->size();
  tokens->resize(begin + size_t{nodes_[node].end_pages} * page_size_);
  for (NodeId id = node; !nodes_[id].is_root; id = nodes_[id].parent) {
    const size_t start = size_t{nodes_[id].end_pages - nodes_[id].num_pages} * page_size_;
    std::copy_n(Tokens(nodes_[id]), size_t{nodes_[id].num_pages} * page_size_,
                tokens->begin() + static_cast<ptrdiff_t>(begin + start));
  }
}

// Ids depend on what came and went; ages do not. Parts of one node are equally old.
void RadixCache::Save(RadixSnapshot* snapshot, std::vector<uint32_t>* numbers) const {
  RadixSnapshot& s = *snapshot;
  s = RadixSnapshot();
  s.clock = clock_;
  s.num_born = num_born_;
  std::vector<NodeId> order;
  order.reserve(nodes_.size() - free_nodes_.size());
  for (NodeId id = 0; id < nodes_.size(); ++id) {
    if (nodes_[id].in_use) order.push_back(id);
  }
  std::sort(order.begin(), order.end(), [this](NodeId a, NodeId b) {
    const Node &x = nodes_[a], &y = nodes_[b];
    return std::tuple(!x.is_root, x.born, x.end_pages) <
           std::tuple(!y.is_root, y.born, y.end_pages);
  });
  numbers->assign(nodes_.size(), UINT32_MAX);
  s.pages.reserve(total_pages_);
  s.tokens.reserve(size_t{total_pages_} * page_size_);
  for (uint32_t number = 0; number < order.size(); ++number) {
    const Node& node = nodes_[order[number]];
    (*numbers)[order[number]] = number;
    if (node.is_root) {
      s.salts.push_back(salts_.at(order[number]));
      s.root_born.push_back(node.born);
      continue;
    }
    s.born.push_back(node.born);
    s.stamp.push_back(node.stamp);
    s.parent.push_back((*numbers)[node.parent]);
    s.hits.push_back(node.hits);
    s.num_pages.push_back(node.num_pages);
    s.pages.insert(s.pages.end(), Pages(node), Pages(node) + node.num_pages);
    s.tokens.insert(s.tokens.end(), Tokens(node),
                    Tokens(node) + size_t{node.num_pages} * page_size_);
  }
}

Status RadixCache::Restore(const RadixSnapshot& s) {
  CHECK(nodes_.empty());
  const auto broken = [](const char* what) { return absl::DataLossError(what); };
  const size_t count = s.parent.size();
  // A page has one node, and the table has two buckets a page.
  if (s.root_born.size() != s.salts.size() || s.born.size() != count || s.stamp.size() != count ||
      s.hits.size() != count || s.num_pages.size() != count || count > s.pages.size() ||
      2 * s.pages.size() + 2 > table_.size() ||
      s.tokens.size() != s.pages.size() * size_t{page_size_} || s.clock > kMaxTicks ||
      s.num_born > kMaxTicks) {
    return broken("tree");
  }
  for (size_t i = 0; i < s.salts.size(); ++i) {
    if (roots_.contains(s.salts[i]) || s.root_born[i] > s.num_born ||
        (i > 0 && s.root_born[i] <= s.root_born[i - 1])) {
      return broken("roots");
    }
    nodes_[NewRoot(s.salts[i])].born = s.root_born[i];
  }
  std::span<const PageId> pages = s.pages;
  std::span<const int32_t> tokens = s.tokens;
  for (size_t i = 0; i < count; ++i) {
    const NodeId parent = s.parent[i];
    const size_t num_tokens = size_t{s.num_pages[i]} * page_size_;
    if (parent >= nodes_.size() || s.num_pages[i] == 0 || s.num_pages[i] > pages.size() ||
        FindChild(parent, tokens.data()) != kNoNode) {
      return broken("nodes");
    }
    const Node& above = nodes_[parent];
    // A part follows the one before it, whatever else is younger than its parent.
    const bool is_part = i > 0 && s.born[i] == s.born[i - 1];
    if (is_part ? parent + 1 != nodes_.size() : s.born[i] <= above.born) return broken("age");
    if ((i > 0 && s.born[i] < s.born[i - 1]) || s.born[i] > s.num_born) return broken("age");
    // Uses of a node are uses of those above it.
    if (s.stamp[i] > s.clock || s.hits[i] > kMaxHits || (!above.is_root && s.hits[i] > above.hits))
      return broken("use");
    const NodeId leaf = AddLeaf(parent, tokens.first(num_tokens), pages.first(s.num_pages[i]));
    Node& node = nodes_[leaf];
    node.born = s.born[i];
    node.stamp = s.stamp[i];
    node.hits = s.hits[i];
    pages = pages.subspan(s.num_pages[i]);
    tokens = tokens.subspan(num_tokens);
  }
  if (!pages.empty()) return broken("pages");
  std::vector<NodeId> order;
  for (size_t i = 0; i < count; ++i) order.push_back(static_cast<NodeId>(s.salts.size() + i));
  // Of parts with one stamp the lower goes first.
  std::sort(order.begin(), order.end(), [this](NodeId a, NodeId b) {
    const Node &x = nodes_[a], &y = nodes_[b];
    return std::tuple(x.stamp, y.end_pages, a) < std::tuple(y.stamp, x.end_pages, b);
  });
  for (const NodeId id : order) OrderInsert(id);
  evictable_pages_ = total_pages_;
  clock_ = s.clock;
  num_born_ = s.num_born;
  return OkStatus();
}

}  // namespace flotilla
