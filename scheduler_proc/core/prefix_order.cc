#include "scheduler_proc/core/prefix_order.h"

#include <algorithm>

namespace flotilla {

void PrefixOrder::Add(Req* req) {
  reqs_.push_back(req);
  sorted_version_ = 0;
}

void PrefixOrder::Remove(Req* req) { std::erase(reqs_, req); }

void PrefixOrder::BeginRound() {
  next_ = 0;
  const uint64_t version = kv_.cache().version();
  if (sorted_version_ == version) return;
  for (Req* req : reqs_) {
    if (req->match_version == version) continue;
    req->match_pages = kv_.PeekPrefix(*req);
    req->match_version = version;
  }
  std::sort(reqs_.begin(), reqs_.end(), [](const Req* a, const Req* b) {
    return a->match_pages != b->match_pages ? a->match_pages > b->match_pages : a->seq < b->seq;
  });
  sorted_version_ = version;
}

}  // namespace flotilla
