// RadixCache: the unlocked nodes in the order of their eviction, as a list (lru) or a heap (lfu).
//
// Whoever touches or unlocks a node does the same to its ancestors after it, and hits of a node are
// hits of its ancestors, so in both a parent comes after its children.
#include "scheduler_proc/core/radix_cache.h"

namespace flotilla {

void RadixCache::OrderAdd(NodeId id) {
  nodes_[id].stamp = ++clock_;
  OrderInsert(id);
}

void RadixCache::OrderInsert(NodeId id) {
  if (lru()) {
    nodes_[id].older = newest_;
    nodes_[id].newer = kNoNode;
    (newest_ != kNoNode ? nodes_[newest_].newer : oldest_) = id;
    newest_ = id;
    return;
  }
  heap_.push_back(id);
  HeapUp(static_cast<uint32_t>(heap_.size()) - 1);
}

// Directly after its child, with which it was one.
void RadixCache::OrderAddParent(NodeId id, NodeId child) {
  nodes_[id].stamp = nodes_[child].stamp;
  if (lru()) {
    const NodeId above = nodes_[child].newer;
    nodes_[id].older = child;
    nodes_[id].newer = above;
    nodes_[child].newer = id;
    (above != kNoNode ? nodes_[above].older : newest_) = id;
    return;
  }
  heap_.push_back(id);
  HeapUp(static_cast<uint32_t>(heap_.size()) - 1);
}

void RadixCache::OrderRemove(NodeId id) {
  if (lru()) {
    const Node& node = nodes_[id];
    (node.newer != kNoNode ? nodes_[node.newer].older : newest_) = node.older;
    (node.older != kNoNode ? nodes_[node.older].newer : oldest_) = node.newer;
    nodes_[id].newer = nodes_[id].older = kNoNode;
    return;
  }
  const uint32_t position = nodes_[id].heap_position;
  const NodeId last = heap_.back();
  heap_.pop_back();
  if (last == id) return;
  HeapPlace(last, position);
  HeapUp(position);
  HeapDown(nodes_[last].heap_position);
}

// --- the heap ---

bool RadixCache::EvictedBefore(NodeId a, NodeId b) const {
  const Node &x = nodes_[a], &y = nodes_[b];
  if (x.hits != y.hits) return x.hits < y.hits;
  if (x.stamp != y.stamp) return x.stamp < y.stamp;
  return x.end_pages > y.end_pages;  // parts of one node
}

void RadixCache::HeapPlace(NodeId node, uint32_t position) {
  heap_[position] = node;
  nodes_[node].heap_position = position;
}

void RadixCache::HeapUp(uint32_t position) {
  const NodeId node = heap_[position];
  while (position > 0) {
    const uint32_t above = (position - 1) / 2;
    if (!EvictedBefore(node, heap_[above])) break;
    HeapPlace(heap_[above], position);
    position = above;
  }
  HeapPlace(node, position);
}

void RadixCache::HeapDown(uint32_t position) {
  const NodeId node = heap_[position];
  while (true) {
    uint32_t below = 2 * position + 1;
    if (below >= heap_.size()) break;
    if (below + 1 < heap_.size() && EvictedBefore(heap_[below + 1], heap_[below])) ++below;
    if (!EvictedBefore(heap_[below], node)) break;
    HeapPlace(heap_[below], position);
    position = below;
  }
  HeapPlace(node, position);
}

// --- checks ---

Status RadixCache::CheckOrder(uint64_t num_unlocked) const {
  if (!lru()) {
    if (heap_.size() != num_unlocked) return absl::InternalError("radix: nodes in the heap");
    for (uint32_t i = 0; i < heap_.size(); ++i) {
      const Node& node = nodes_[heap_[i]];
      if (node.lock_ref > 0) return absl::InternalError("radix: locked node in the heap");
      if (node.heap_position != i || (i > 0 && EvictedBefore(heap_[i], heap_[(i - 1) / 2]))) {
        return absl::InternalError("radix: heap order");
      }
      const NodeId parent = node.parent;
      if (!nodes_[parent].is_root && nodes_[parent].lock_ref == 0 &&
          !EvictedBefore(heap_[i], parent)) {
        return absl::InternalError("radix: a parent goes before its child");
      }
    }
    return OkStatus();
  }
  std::vector<uint8_t> seen(nodes_.size(), 0);  // oldest first: a child comes before its parent
  for (NodeId id = oldest_; id != kNoNode; id = nodes_[id].newer, --num_unlocked) {
    if (nodes_[id].lock_ref > 0) return absl::InternalError("radix: locked node in the list");
    if (num_unlocked == 0 || seen[nodes_[id].parent]) {
      return absl::InternalError("radix: list order");
    }
    seen[id] = 1;
  }
  if (num_unlocked != 0) return absl::InternalError("radix: node missing from the list");
  return OkStatus();
}

}  // namespace flotilla
