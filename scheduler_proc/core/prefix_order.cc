#include "scheduler_proc/core/prefix_order.h"

#include <algorithm>

namespace flotilla {

PrefixOrder::PrefixOrder(KvPool* kv, size_t max_reqs) : MatchedOrder(kv, max_reqs) {
  moved_.reserve(max_reqs);
}

void PrefixOrder::Added(Req* req) {
  req->match.order_pages = req->match.num_pages;
  reqs_.insert(*req);
}

void PrefixOrder::Removed(Req* req) {
  reqs_.erase(reqs_.iterator_to(*req));
  if (!req->match.moved) return;
  req->match.moved = false;
  moved_.erase(std::find(moved_.begin(), moved_.end(), req));
}

void PrefixOrder::Arrives(Req* req) {
  if (req->match.moved || req->match.num_pages == req->match.order_pages) return;
  req->match.moved = true;
  moved_.push_back(req);
}

void PrefixOrder::BeginRound() {
  for (Req* req : moved_) {
    req->match.moved = false;
    reqs_.erase(reqs_.iterator_to(*req));
    req->match.order_pages = req->match.num_pages;
    reqs_.insert(*req);
  }
  moved_.clear();
  next_ = reqs_.begin();
}

}  // namespace flotilla
