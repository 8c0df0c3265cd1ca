#include "scheduler_proc/core/radix_cache.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "common/base/check.h"

namespace flotilla {

void RadixCache::Reset(uint32_t num_pages, uint32_t page_size) {
  CHECK(page_size >= 1);
  // A node that is no root has a page, so the table never fills up.
  table_.assign(std::bit_ceil(size_t{num_pages} * 2 + 2), kNoNode);
  for (NodeId id = 0; id < nodes_.size(); ++id) {
    Node& node = nodes_[id];
    if (!node.in_use) continue;
    if (node.is_root) {
      node.lock_ref = node.num_children = 0;
    } else {
      UnrefRun(node.run);
      FreeNode(id);
    }
  }
  page_size_ = page_size;
  arena_.Reset(num_pages, page_size);
  // A node that is no root has a page, and a run a node.
  nodes_.reserve(num_pages);
  free_nodes_.reserve(num_pages);
  runs_.reserve(num_pages);
  free_runs_.reserve(num_pages);
  newest_ = oldest_ = kNoNode;
  heap_.clear();
  evictable_pages_ = total_pages_ = 0;
  for (NodeId id = 0; id < nodes_.size(); ++id) {
    if (nodes_[id].in_use) DropRootIfUnused(id);
  }
  if (observer_ != nullptr) observer_->OnReset();
  if (page_log_ != nullptr) page_log_->push_back({PageEvent::Kind::kCleared, 0});
}

// --- roots ---

NodeId RadixCache::NewRoot(const std::string& salt) {
  const NodeId root = NewNode();
  nodes_[root].is_root = true;
  nodes_[root].born = ++num_born_;
  roots_.emplace(salt, root);
  salts_.emplace(root, salt);
  return root;
}

NodeId RadixCache::AcquireRoot(const std::string& salt) {
  const auto it = roots_.find(salt);
  const NodeId root = it != roots_.end() ? it->second : NewRoot(salt);
  ++nodes_[root].root_users;
  return root;
}

void RadixCache::ReleaseRoot(NodeId root) {
  CHECK(nodes_[root].is_root && nodes_[root].root_users > 0);
  --nodes_[root].root_users;
  DropRootIfUnused(root);
}

void RadixCache::DropRootIfUnused(NodeId root) {
  const Node& node = nodes_[root];
  if (!node.is_root || node.root_users > 0 || node.num_children > 0) return;
  const auto it = salts_.find(root);
  roots_.erase(it->second);
  salts_.erase(it);
  FreeNode(root);
}

// --- matching ---

uint32_t RadixCache::CommonPages(const Node& node, std::span<const int32_t> tokens) const {
  const uint32_t limit =
      std::min<uint32_t>(node.num_pages, static_cast<uint32_t>(tokens.size() / page_size_));
  const int32_t* mine = Tokens(node);
  const size_t page_bytes = size_t{page_size_} * sizeof(int32_t);
  if (std::memcmp(mine, tokens.data(), limit * page_bytes) == 0) return limit;
  uint32_t pages = 0;
  while (std::memcmp(mine + size_t{pages} * page_size_, tokens.data() + size_t{pages} * page_size_,
                     page_bytes) == 0) {
    ++pages;
  }
  return pages;
}

uint32_t RadixCache::PeekPrefix(NodeId root, std::span<const int32_t> tokens) const {
  return FindPrefix(root, tokens).num_pages;
}

RadixCache::Match RadixCache::FindPrefix(NodeId root, std::span<const int32_t> tokens) const {
  Match match{root, 0};
  while (tokens.size() >= page_size_) {
    const NodeId child = FindChild(match.node, tokens.data());
    if (child == kNoNode) break;
    const uint32_t common = CommonPages(nodes_[child], tokens);
    match.node = child;
    match.num_pages += common;
    if (common < nodes_[child].num_pages) break;
    tokens = tokens.subspan(size_t{common} * page_size_);
  }
  return match;
}

NodeId RadixCache::WalkAndSplit(NodeId root, std::span<const int32_t> tokens, uint32_t* num_pages) {
  *num_pages = 0;
  NodeId node = root;
  while (tokens.size() >= page_size_) {
    const NodeId child = FindChild(node, tokens.data());
    if (child == kNoNode) break;
    const uint32_t common = CommonPages(nodes_[child], tokens);
    *num_pages += common;
    if (common < nodes_[child].num_pages) return SplitAt(child, common);
    tokens = tokens.subspan(size_t{common} * page_size_);
    node = child;
  }
  return node;
}

NodeId RadixCache::MatchPrefix(NodeId root, std::span<const int32_t> tokens,
                               std::vector<PageId>* pages) {
  uint32_t num_pages = 0;
  const NodeId node = WalkAndSplit(root, tokens, &num_pages);
  TouchPath(node, 0);
  AppendPath(node, pages);
  return node;
}

void RadixCache::AppendPath(NodeId node, std::vector<PageId>* pages) const {
  size_t count = 0;
  for (NodeId id = node; !nodes_[id].is_root; id = nodes_[id].parent) count += nodes_[id].num_pages;
  size_t end = pages->size() + count;
  pages->resize(end);
  for (NodeId id = node; !nodes_[id].is_root; id = nodes_[id].parent) {
    end -= nodes_[id].num_pages;
    std::copy_n(Pages(nodes_[id]), nodes_[id].num_pages, pages->begin() + end);
  }
}

// --- growing ---

NodeId RadixCache::AddLeaf(NodeId parent, std::span<const int32_t> tokens,
                           std::span<const PageId> pages) {
  CHECK(!pages.empty() && tokens.size() == pages.size() * page_size_);
  const NodeId leaf = NewNode();
  const uint32_t run = NewRun(tokens, pages);
  Node& node = nodes_[leaf];
  node.parent = parent;
  node.run = run;
  node.num_pages = static_cast<uint32_t>(pages.size());
  node.end_pages = nodes_[parent].end_pages + node.num_pages;
  node.key = Key(parent, tokens.data());
  ++nodes_[parent].num_children;
  total_pages_ += node.num_pages;
  TableInsert(leaf);
  node.born = ++num_born_;
  if (observer_ != nullptr) observer_->OnAddLeaf(leaf);
  if (page_log_ != nullptr) LogStored(node);
  return leaf;
}

NodeId RadixCache::ExtendLocked(NodeId node, std::span<const int32_t> tokens,
                                std::span<const PageId> pages) {
  CHECK(nodes_[node].lock_ref > 0);
  if (FindChild(node, tokens.data()) != kNoNode) return kNoNode;
  const NodeId leaf = AddLeaf(node, tokens, pages);
  nodes_[leaf].lock_ref = 1;
  return leaf;
}

void RadixCache::Insert(NodeId root, std::span<const int32_t> tokens, std::span<const PageId> pages,
                        std::vector<PageId>* duplicates) {
  uint32_t matched = 0;
  NodeId node = WalkAndSplit(root, tokens, &matched);
  uint32_t end = matched;
  for (NodeId id = node; !nodes_[id].is_root; id = nodes_[id].parent) {
    end -= nodes_[id].num_pages;
    const PageId* mine = Pages(nodes_[id]);
    for (uint32_t i = 0; i < nodes_[id].num_pages; ++i) {
      if (pages[end + i] != mine[i]) duplicates->push_back(pages[end + i]);
    }
  }
  if (matched < pages.size()) {
    node = AddLeaf(node, tokens.subspan(size_t{matched} * page_size_), pages.subspan(matched));
    evictable_pages_ += nodes_[node].num_pages;
    OrderAdd(node);
  }
  TouchPath(node, 1);
}

NodeId RadixCache::SplitAt(NodeId lower, uint32_t num_pages) {
  const NodeId upper = NewNode();  // may move nodes_
  Node& low = nodes_[lower];
  Node& up = nodes_[upper];
  CHECK(num_pages > 0 && num_pages < low.num_pages);
  TableErase(lower);
  up.parent = low.parent;
  up.run = low.run;
  up.offset = low.offset;
  up.num_pages = num_pages;
  up.lock_ref = low.lock_ref;  // whoever reads the lower part reads the upper one
  up.num_children = 1;
  up.hits = low.hits;
  up.born = low.born;
  up.end_pages = low.end_pages - low.num_pages + num_pages;
  up.key = low.key;
  ++runs_[low.run].refs;
  low.parent = upper;
  low.offset += num_pages;
  low.num_pages -= num_pages;
  low.key = Key(upper, Tokens(low));
  TableInsert(upper);
  TableInsert(lower);
  if (up.lock_ref == 0) OrderAddParent(upper, lower);
  if (observer_ != nullptr) observer_->OnSplit(upper, lower);
  return upper;
}

// --- locks, order and eviction ---

void RadixCache::Lock(NodeId node) {
  for (NodeId id = node; id != kNoNode; id = nodes_[id].parent) {
    if (nodes_[id].lock_ref++ == 0 && !nodes_[id].is_root) {
      evictable_pages_ -= nodes_[id].num_pages;
      OrderRemove(id);
    }
  }
}

void RadixCache::Unlock(NodeId node) {
  for (NodeId id = node; id != kNoNode; id = nodes_[id].parent) {
    CHECK(nodes_[id].lock_ref > 0);
    if (--nodes_[id].lock_ref == 0 && !nodes_[id].is_root) {
      evictable_pages_ += nodes_[id].num_pages;
      OrderAdd(id);  // children first, so parents stay more recent
    }
  }
}

uint32_t RadixCache::EvictableIfUnlocked(std::span<const NodeId> nodes) {
  uint32_t pages = 0;
  for (const NodeId node : nodes) {
    for (NodeId id = node; !nodes_[id].is_root; id = nodes_[id].parent) {
      if (--nodes_[id].lock_ref == 0) pages += nodes_[id].num_pages;
    }
  }
  for (const NodeId node : nodes) {
    for (NodeId id = node; !nodes_[id].is_root; id = nodes_[id].parent) ++nodes_[id].lock_ref;
  }
  return pages;
}

void RadixCache::TouchPath(NodeId node, uint32_t hits) {
  for (NodeId id = node; !nodes_[id].is_root; id = nodes_[id].parent) {
    const bool unlocked = nodes_[id].lock_ref == 0;
    if (unlocked) OrderRemove(id);
    nodes_[id].hits += hits;
    if (unlocked) OrderAdd(id);
  }
}

void RadixCache::Evict(uint32_t count, std::vector<PageId>* pages) {
  while (count > 0 && !OrderEmpty()) {
    const NodeId id = OrderFirst();
    Node& node = nodes_[id];
    CHECK(node.num_children == 0 && node.lock_ref == 0);
    const uint32_t taken = std::min(count, node.num_pages);
    node.num_pages -= taken;  // from the end: what stays is still a prefix
    node.end_pages -= taken;
    const PageId* first = Pages(node) + node.num_pages;
    for (uint32_t i = 0; i < taken; ++i) pages->push_back(first[i]);
    evictable_pages_ -= taken;
    total_pages_ -= taken;
    count -= taken;
    if (page_log_ != nullptr) LogRemoved(node, taken);
    if (node.num_pages > 0) {
      if (observer_ != nullptr) observer_->OnShorten(id);
      break;
    }
    if (observer_ != nullptr) observer_->OnErase(id);
    const NodeId parent = node.parent;
    OrderRemove(id);
    TableErase(id);
    UnrefRun(node.run);
    FreeNode(id);
    --nodes_[parent].num_children;
    DropRootIfUnused(parent);
  }
  // What was used longest ago is far away, and the next call, often in the same step, takes it.
  if (OrderEmpty()) return;
  const Node& next = nodes_[OrderFirst()];
  __builtin_prefetch(Pages(next) + next.num_pages - 1);
}

}  // namespace flotilla
