// dfs-weight: the waiting requests as leaves of the radix tree, in depth-first order, heaviest
// child first. The weight of a node is the number of requests whose match ends at or below it; of
// equal ones the older node goes first. Within a node those with the longest match go first (as if
// it were split where they end), then by arrival. Tenants' roots are children of one root.
// Retracted requests have no place in it and no weight.
//
// Weights change as requests come, go and move: a path of the tree each. A round reads only as much
// of the order as it needs.
//
// Threads: one. Ownership: as MatchedOrder. Errors: none.
// Source: SGLang's DFS-weight (requirement 001), made incremental.
#pragma once

#include <boost/intrusive/set.hpp>
#include <deque>
#include <vector>

#include "scheduler_proc/core/matched_order.h"

namespace flotilla {

class DfsOrder final : public MatchedOrder {
 public:
  DfsOrder(KvPool* kv, size_t max_reqs);
  void BeginRound() override { Read(kFirstRead); }
  Req* Next() override;

 private:
  static constexpr size_t kFirstRead = 8;  // requests; then eight times as many each time

  struct WeightedNode {
    NodeId id = kNoNode, parent = kNoNode;
    uint64_t born = 0;
    uint32_t weight = 0;
    WaitHook by_weight;  // while there is weight
  };
  struct ByWeight {
    bool operator()(const WeightedNode& a, const WeightedNode& b) const {
      if (a.parent != b.parent) return a.parent < b.parent;
      return a.weight != b.weight ? a.weight > b.weight : a.born < b.born;
    }
    bool operator()(const WeightedNode& a, NodeId parent) const { return a.parent < parent; }
    bool operator()(NodeId parent, const WeightedNode& b) const { return parent < b.parent; }
  };
  struct ByMatch {
    bool operator()(const Req& a, const Req& b) const {
      if (a.match.node != b.match.node) return a.match.node < b.match.node;
      if (a.match.num_pages != b.match.num_pages) return a.match.num_pages > b.match.num_pages;
      return a.seq < b.seq;
    }
    bool operator()(const Req& a, NodeId node) const { return a.match.node < node; }
    bool operator()(NodeId node, const Req& b) const { return node < b.match.node; }
  };
  using NodeSet = boost::intrusive::set<
      WeightedNode, boost::intrusive::member_hook<WeightedNode, WaitHook, &WeightedNode::by_weight>,
      boost::intrusive::compare<ByWeight>>;
  using ReqSet =
      boost::intrusive::set<Req, boost::intrusive::member_hook<Req, WaitHook, &Req::by_order>,
                            boost::intrusive::compare<ByMatch>>;
  struct Visit {
    NodeId node;
    NodeSet::iterator child;  // the next to visit
  };

  void Added(Req* req) override;
  void Removed(Req* req) override;
  void Leaves(Req* req) override { reqs_.erase(reqs_.iterator_to(*req)); }
  void Arrives(Req* req) override { reqs_.insert(*req); }
  void LeafAdded(NodeId leaf, uint32_t moved) override { SetWeight(leaf, moved); }
  void NodeSplit(NodeId upper, NodeId lower, uint32_t moved) override;
  void NodeErased(NodeId node) override { SetWeight(node, 0); }
  void TreeReset(size_t num_nodes) override;

  uint32_t weight(NodeId node) const { return node < nodes_.size() ? nodes_[node].weight : 0; }
  void AddNodes(size_t num_nodes);
  // Also brings the node's place up to date with the tree.
  void SetWeight(NodeId node, uint32_t weight);
  // The first `limit` of the order.
  void Read(size_t limit);

  std::deque<WeightedNode> nodes_;  // by id; addresses stay
  NodeSet children_;                // of all nodes: those with weight, by parent
  ReqSet reqs_;
  std::vector<Visit> path_;
  std::vector<Req*> read_;
  size_t limit_ = 0, next_ = 0;
};

}  // namespace flotilla
