// Base of the orders that follow the cache: knows at each moment where the longest cached prefix of
// each waiting request ends, without matching it again.
//
// A request is registered at the node that holds the last page of its match; if the match ends
// where the node does, also in a hash table under (node, next page). A new leaf can lengthen only
// matches that end at its parent and go on with its first page: one look into the table finds them.
// A split or an eviction touches those registered at the node. So a change costs what it changes,
// however many wait: SGLang, which matches all again, falls back to fcfs above 128.
//
// Threads: one. Ownership: as WaitingOrder; `kv` must outlive it and have no other observer.
// Errors: none. Source: ours.
#pragma once

#include <span>
#include <vector>

#include "scheduler_proc/core/kv_pool.h"
#include "scheduler_proc/core/waiting_order.h"

namespace flotilla {

class MatchedOrder : public WaitingOrder, private RadixObserver {
 public:
  // `max_reqs` sizes the table.
  MatchedOrder(KvPool* kv, size_t max_reqs);
  ~MatchedOrder() override { kv_.set_observer(nullptr); }
  MatchedOrder(const MatchedOrder&) = delete;
  MatchedOrder& operator=(const MatchedOrder&) = delete;

  void Add(Req* req) final;
  void Remove(Req* req) final;
  size_t size() const final { return size_; }

 protected:
  const RadixCache& cache() const { return kv_.cache(); }

  // The request has come / goes.
  virtual void Added(Req* req) = 0;
  virtual void Removed(Req* req) = 0;
  // Before and after its match changes.
  virtual void Leaves(Req* /*req*/) {}
  virtual void Arrives(Req* req) = 0;
  // What the tree did, and how many requests moved for it: from a leaf's parent into it, from the
  // lower to the upper node, from a node that goes to its parent.
  virtual void LeafAdded(NodeId /*leaf*/, uint32_t /*moved*/) {}
  virtual void NodeSplit(NodeId /*upper*/, NodeId /*lower*/, uint32_t /*moved*/) {}
  virtual void NodeErased(NodeId /*node*/) {}
  // num_nodes: there will hardly be more.
  virtual void TreeReset(size_t /*num_nodes*/) {}

 private:
  void OnAddLeaf(NodeId leaf) final;
  void OnSplit(NodeId upper, NodeId lower) final;
  void OnShorten(NodeId node) final;
  void OnErase(NodeId node) final;
  void OnReset() final;

  void Link(Req* req);
  void Unlink(Req* req);
  void Move(Req* req, NodeId node, uint32_t num_pages);
  // Copies the list, which moving changes.
  std::span<Req* const> RegisteredAt(NodeId node);

  KvPool& kv_;
  std::vector<Req*> heads_;    // by node
  std::vector<Req*> buckets_;  // by key; a power of two
  std::vector<Req*> scratch_;
  size_t size_ = 0;
};

}  // namespace flotilla
