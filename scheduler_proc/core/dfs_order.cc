#include "scheduler_proc/core/dfs_order.h"

#include <bit>

namespace flotilla {

DfsOrder::DfsOrder(KvPool* kv, size_t max_reqs) : MatchedOrder(kv, max_reqs) {
  read_.reserve(max_reqs);
}

void DfsOrder::AddNodes(size_t num_nodes) {
  while (nodes_.size() < num_nodes) {
    const auto id = static_cast<NodeId>(nodes_.size());
    nodes_.emplace_back().id = id;
  }
}

void DfsOrder::SetWeight(NodeId id, uint32_t weight) {
  if (nodes_.size() <= id) AddNodes(std::bit_ceil(size_t{id} + 1));
  WeightedNode& node = nodes_[id];
  if (node.weight > 0) children_.erase(children_.iterator_to(node));
  node.weight = weight;
  if (weight == 0) return;
  node.parent = cache().parent(id);
  node.born = cache().born(id);
  children_.insert(node);
}

void DfsOrder::Added(Req* req) {
  reqs_.insert(*req);
  for (NodeId id = req->match.node; id != kNoNode; id = cache().parent(id)) {
    SetWeight(id, weight(id) + 1);
  }
}

void DfsOrder::Removed(Req* req) {
  reqs_.erase(reqs_.iterator_to(*req));
  for (NodeId id = req->match.node; id != kNoNode; id = cache().parent(id)) {
    SetWeight(id, weight(id) - 1);
  }
}

void DfsOrder::NodeSplit(NodeId upper, NodeId lower, uint32_t moved) {
  const uint32_t whole = weight(lower);
  if (whole == 0) return;
  SetWeight(lower, whole - moved);
  SetWeight(upper, whole);
}

// All requests go back to their roots.
void DfsOrder::TreeReset(size_t num_nodes) {
  AddNodes(num_nodes);
  for (WeightedNode& node : nodes_) {
    if (node.weight > 0 && node.parent != kNoNode) SetWeight(node.id, 0);
  }
}

void DfsOrder::Read(size_t limit) {
  limit_ = limit;
  next_ = 0;
  read_.clear();
  path_.clear();
  path_.push_back({kNoNode, children_.lower_bound(kNoNode, ByWeight())});
  while (!path_.empty()) {
    Visit& visit = path_.back();
    if (visit.child != children_.end() && visit.child->parent == visit.node) {
      const NodeId child = visit.child->id;
      ++visit.child;
      path_.push_back({child, children_.lower_bound(child, ByWeight())});
      continue;
    }
    for (auto it = reqs_.lower_bound(visit.node, ByMatch());
         it != reqs_.end() && it->match.node == visit.node; ++it) {
      if (read_.size() == limit) return;
      read_.push_back(&*it);
    }
    path_.pop_back();
  }
}

Req* DfsOrder::Next() {
  if (next_ == limit_ && limit_ < size()) Read(limit_ * 8);  // who was given is passed over
  return next_ < read_.size() ? read_[next_++] : nullptr;
}

}  // namespace flotilla
