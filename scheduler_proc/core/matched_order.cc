#include "scheduler_proc/core/matched_order.h"

#include <algorithm>
#include <bit>

namespace flotilla {

MatchedOrder::MatchedOrder(KvPool* kv, size_t max_reqs)
    : kv_(*kv), buckets_(std::bit_ceil(2 * max_reqs + 2), nullptr) {
  scratch_.reserve(max_reqs);
  kv->set_observer(this);
}

void MatchedOrder::Add(Req* req) {
  const auto match = cache().FindPrefix(req->root, kv_.Matchable(*req));
  req->match = {.node = match.node, .num_pages = match.num_pages};
  Link(req);
  ++size_;
  Added(req);
}

void MatchedOrder::Remove(Req* req) {
  Removed(req);
  Unlink(req);
  --size_;
}

void MatchedOrder::Link(Req* req) {
  MatchLinks& match = req->match;
  if (heads_.size() <= match.node) heads_.resize(std::bit_ceil(size_t{match.node} + 1), nullptr);
  Req*& head = heads_[match.node];
  match.next = head;
  match.previous = nullptr;
  if (head != nullptr) head->match.previous = req;
  head = req;

  const std::span<const int32_t> tokens = kv_.Matchable(*req);
  const size_t matched = size_t{match.num_pages} * kv_.page_size();
  match.in_bucket = match.num_pages == cache().end_pages(match.node) &&
                    tokens.size() >= matched + kv_.page_size();
  if (!match.in_bucket) return;
  match.key = cache().Key(match.node, tokens.data() + matched);
  Req*& bucket = buckets_[match.key & (buckets_.size() - 1)];
  match.bucket_next = bucket;
  match.bucket_previous = nullptr;
  if (bucket != nullptr) bucket->match.bucket_previous = req;
  bucket = req;
}

void MatchedOrder::Unlink(Req* req) {
  const MatchLinks& match = req->match;
  if (match.next != nullptr) match.next->match.previous = match.previous;
  (match.previous != nullptr ? match.previous->match.next : heads_[match.node]) = match.next;
  if (!match.in_bucket) return;
  if (match.bucket_next != nullptr) {
    match.bucket_next->match.bucket_previous = match.bucket_previous;
  }
  (match.bucket_previous != nullptr ? match.bucket_previous->match.bucket_next
                                    : buckets_[match.key & (buckets_.size() - 1)]) =
      match.bucket_next;
}

void MatchedOrder::Move(Req* req, NodeId node, uint32_t num_pages) {
  Leaves(req);
  Unlink(req);
  req->match.node = node;
  req->match.num_pages = num_pages;
  Link(req);
  Arrives(req);
}

std::span<Req* const> MatchedOrder::RegisteredAt(NodeId node) {
  scratch_.clear();
  if (node >= heads_.size()) return scratch_;
  for (Req* req = heads_[node]; req != nullptr; req = req->match.next) scratch_.push_back(req);
  return scratch_;
}

void MatchedOrder::OnAddLeaf(NodeId leaf) {
  const NodeId parent = cache().parent(leaf);
  const uint64_t key = cache().key(leaf);
  scratch_.clear();
  for (Req* req = buckets_[key & (buckets_.size() - 1)]; req != nullptr;
       req = req->match.bucket_next) {
    if (req->match.key == key && req->match.node == parent) scratch_.push_back(req);
  }
  uint32_t moved = 0;
  for (Req* req : scratch_) {
    const std::span<const int32_t> tokens = kv_.Matchable(*req);
    const uint32_t common =
        cache().CommonPages(leaf, tokens.subspan(size_t{req->match.num_pages} * kv_.page_size()));
    if (common == 0) continue;  // another page with the same hash
    Move(req, leaf, req->match.num_pages + common);
    ++moved;
  }
  LeafAdded(leaf, moved);
}

void MatchedOrder::OnSplit(NodeId upper, NodeId lower) {
  uint32_t moved = 0;
  for (Req* req : RegisteredAt(lower)) {
    if (req->match.num_pages > cache().end_pages(upper)) continue;
    Move(req, upper, req->match.num_pages);
    ++moved;
  }
  NodeSplit(upper, lower, moved);
}

void MatchedOrder::OnShorten(NodeId node) {
  const uint32_t end = cache().end_pages(node);
  for (Req* req : RegisteredAt(node)) {
    if (req->match.num_pages >= end) Move(req, node, end);
  }
}

void MatchedOrder::OnErase(NodeId node) {
  const NodeId parent = cache().parent(node);
  for (Req* req : RegisteredAt(node)) Move(req, parent, cache().end_pages(parent));
  NodeErased(node);
}

void MatchedOrder::OnReset() {
  // For all nodes there can be, and some roots.
  heads_.resize(std::max(heads_.size(), std::bit_ceil(size_t{kv_.num_pages()} + 64)), nullptr);
  std::vector<Req*> all;
  for (NodeId node = 0; node < heads_.size(); ++node) {
    const std::span<Req* const> reqs = RegisteredAt(node);
    all.insert(all.end(), reqs.begin(), reqs.end());
  }
  TreeReset(heads_.size());
  for (Req* req : all) Move(req, req->root, 0);
}

}  // namespace flotilla
