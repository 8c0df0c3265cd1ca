// RadixCache: its memory (nodes, runs), the child table, the page log, and checks.
#include <algorithm>
#include <bit>
#include <cstring>

#include "common/base/check.h"
#include "common/base/page_hash.h"
#include "scheduler_proc/core/radix_cache.h"

namespace flotilla {

// --- nodes and runs ---

NodeId RadixCache::NewNode() {
  NodeId id;
  if (free_nodes_.empty()) {
    id = static_cast<NodeId>(nodes_.size());
    nodes_.emplace_back();
  } else {
    id = free_nodes_.back();
    free_nodes_.pop_back();
    nodes_[id] = Node();
  }
  nodes_[id].in_use = true;
  return id;
}

void RadixCache::FreeNode(NodeId node) {
  nodes_[node].in_use = false;
  nodes_[node].is_root = false;
  free_nodes_.push_back(node);
}

uint32_t RadixCache::NewRun(std::span<const int32_t> tokens, std::span<const PageId> pages) {
  uint32_t id;
  if (free_runs_.empty()) {
    id = static_cast<uint32_t>(runs_.size());
    runs_.emplace_back();
  } else {
    id = free_runs_.back();
    free_runs_.pop_back();
  }
  runs_[id] = {arena_.Take(pages.size()), 1};
  std::copy(tokens.begin(), tokens.end(), runs_[id].block.tokens);
  std::copy(pages.begin(), pages.end(), runs_[id].block.pages);
  return id;
}

void RadixCache::UnrefRun(uint32_t run) {
  CHECK(runs_[run].refs > 0);
  if (--runs_[run].refs > 0) return;
  arena_.GiveBack(runs_[run].block);
  free_runs_.push_back(run);
}

// --- child table ---

uint64_t RadixCache::Key(NodeId parent, const int32_t* tokens) const {
  uint64_t hash = (parent + 1) * 0x9E3779B97F4A7C15ull;
  for (uint32_t i = 0; i < page_size_; ++i) {
    hash = (hash ^ static_cast<uint32_t>(tokens[i])) * 0xD6E8FEB86659FD93ull;
    hash ^= hash >> 32;
  }
  return hash;
}

// The child's bucket, or the empty one where it would go.
size_t RadixCache::FindBucket(NodeId parent, uint64_t key, const int32_t* first_page) const {
  const size_t mask = table_.size() - 1;
  for (size_t bucket = key & mask;; bucket = (bucket + 1) & mask) {
    const NodeId id = table_[bucket];
    if (id == kNoNode) return bucket;
    const Node& node = nodes_[id];
    if (node.key == key && node.parent == parent &&
        std::memcmp(Tokens(node), first_page, page_size_ * sizeof(int32_t)) == 0) {
      return bucket;
    }
  }
}

NodeId RadixCache::FindChild(NodeId parent, const int32_t* first_page) const {
  if (nodes_[parent].num_children == 0) return kNoNode;
  return table_[FindBucket(parent, Key(parent, first_page), first_page)];
}

void RadixCache::TableInsert(NodeId id) {
  const Node& node = nodes_[id];
  const size_t bucket = FindBucket(node.parent, node.key, Tokens(node));
  CHECK(table_[bucket] == kNoNode);
  table_[bucket] = id;
}

// Closes the gap, so that probing never needs tombstones.
void RadixCache::TableErase(NodeId id) {
  const size_t mask = table_.size() - 1;
  size_t gap = FindBucket(nodes_[id].parent, nodes_[id].key, Tokens(nodes_[id]));
  CHECK(table_[gap] == id);
  for (size_t next = (gap + 1) & mask; table_[next] != kNoNode; next = (next + 1) & mask) {
    const size_t home = nodes_[table_[next]].key & mask;
    if (((next - home) & mask) >= ((next - gap) & mask)) {
      table_[gap] = table_[next];
      gap = next;
    }
  }
  table_[gap] = kNoNode;
}

// --- page log ---

void RadixCache::set_page_log(PageLog* log) {
  CHECK(total_pages_ == 0);
  page_log_ = log;
}

uint64_t RadixCache::EndHash(NodeId id) const {
  const Node& node = nodes_[id];
  if (node.is_root) return RootPageHash(salts_.at(id));
  return Hashes(node)[node.num_pages - 1];
}

// A new leaf's pages.
void RadixCache::LogStored(const Node& node) {
  uint64_t* hashes = runs_[node.run].block.hashes;
  uint64_t hash = EndHash(node.parent);
  for (uint32_t i = 0; i < node.num_pages; ++i) {
    hash = NextPageHash(hash, Tokens(node) + size_t{i} * page_size_, page_size_);
    hashes[i] = hash;
    page_log_->push_back({PageEvent::Kind::kStored, hash});
  }
}

// The `num_pages` that were behind the node's last one.
void RadixCache::LogRemoved(const Node& node, uint32_t num_pages) {
  for (uint32_t i = num_pages; i > 0; --i) {
    page_log_->push_back({PageEvent::Kind::kRemoved, Hashes(node)[node.num_pages + i - 1]});
  }
}

// --- checks ---

void RadixCache::AppendAllPages(std::vector<PageState>* pages) const {
  for (const Node& node : nodes_) {
    if (!node.in_use || node.is_root) continue;
    for (uint32_t i = 0; i < node.num_pages; ++i) {
      pages->push_back({Pages(node)[i], node.lock_ref > 0});
    }
  }
}

Status RadixCache::CheckInvariants() const {
  std::vector<uint32_t> children(nodes_.size(), 0), run_refs(runs_.size(), 0);
  std::vector<int64_t> child_locks(nodes_.size(), 0);
  uint64_t total = 0, evictable = 0, unlocked = 0, in_table = 0;
  for (NodeId id = 0; id < nodes_.size(); ++id) {
    const Node& node = nodes_[id];
    if (!node.in_use || node.is_root) continue;
    ++children[node.parent];
    child_locks[node.parent] += node.lock_ref;
    ++run_refs[node.run];
    ++in_table;
    total += node.num_pages;
    if (node.lock_ref == 0) evictable += node.num_pages, ++unlocked;
    if (node.end_pages != nodes_[node.parent].end_pages + node.num_pages) {
      return absl::InternalError("radix: end_pages");
    }
    if (node.num_pages == 0) return absl::InternalError("radix: empty node");
    if (FindChild(node.parent, Tokens(node)) != id) return absl::InternalError("radix: not found");
  }
  for (NodeId id = 0; id < nodes_.size(); ++id) {
    if (!nodes_[id].in_use) continue;
    if (children[id] != nodes_[id].num_children) return absl::InternalError("radix: children");
    if (child_locks[id] > nodes_[id].lock_ref) return absl::InternalError("radix: lock below");
    if (nodes_[id].is_root && nodes_[id].root_users == 0 && nodes_[id].num_children == 0) {
      return absl::InternalError("radix: a root that nobody needs");
    }
  }
  for (size_t i = 0; i < runs_.size(); ++i) {
    if (runs_[i].refs != run_refs[i]) return absl::InternalError("radix: run references");
  }
  for (const NodeId id : table_) in_table -= id != kNoNode;
  if (in_table != 0) return absl::InternalError("radix: table size");
  if (total != total_pages_ || evictable != evictable_pages_) {
    return absl::InternalError(absl::StrCat("radix: ", total, " pages, ", evictable,
                                            " evictable; counted ", total_pages_, ", ",
                                            evictable_pages_));
  }
  return CheckOrder(unlocked);
}

}  // namespace flotilla
