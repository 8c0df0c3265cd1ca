#include "scheduler_proc/core/kv_pool.h"

#include <algorithm>

#include "common/base/check.h"

namespace flotilla {

void KvPool::Reset(uint32_t num_pages) {
  allocator_.Reset(num_pages);
  scratch_.reserve(num_pages);
  cache_.Reset(num_pages, page_size_);
}

void KvPool::Attach(Req* req) {
  req->root = cache_.AcquireRoot(req->spec.cache_salt);
  if (req->len() < page_size_) return;
  uint64_t hash = 0x9E3779B97F4A7C15ull;
  for (uint32_t i = 0; i < page_size_; ++i) {
    hash = (hash ^ static_cast<uint32_t>(req->token_ids[i])) * 0xD6E8FEB86659FD93ull;
    hash ^= hash >> 32;
  }
  req->first_page_hash = hash | 1;
}

void KvPool::Detach(Req* req) {
  cache_.ReleaseRoot(req->root);
  req->root = kNoNode;
}

std::span<const int32_t> KvPool::Matchable(const Req& req) const {
  if (!enable_prefix_cache_ || !req.may_read_cache()) return {};
  const uint32_t most = req.spec.sampling.has_penalties() ? kMaxHistoryTokens : UINT32_MAX;
  return std::span(req.token_ids).first(std::min(req.len() - 1, most));
}

uint32_t KvPool::PeekPrefix(const Req& req) const {
  return cache_.PeekPrefix(req.root, Matchable(req));
}

void KvPool::TakePrefix(Req* req) {
  CHECK(req->pages.empty() && req->last_node == kNoNode);
  page_buffers_.Take(PagesFor(req->max_total), &req->pages);
  req->last_node = cache_.MatchPrefix(req->root, Matchable(*req), &req->pages);
  cache_.Lock(req->last_node);
  req->CountPages();
  req->num_shared = req->num_pages;
  req->num_computed = req->num_scheduled = req->num_shared * page_size_;
}

void KvPool::ReturnPrefix(Req* req) {
  cache_.Unlock(req->last_node);
  Forget(req);
  page_buffers_.GiveBack(&req->pages);
}

uint32_t KvPool::AvailableWithout(std::span<Req* const> holders) {
  uint32_t pages = available_pages();
  scratch_nodes_.clear();
  for (const Req* req : holders) {
    pages += req->num_pages - req->num_shared;
    scratch_nodes_.push_back(req->last_node);
  }
  return pages + cache_.EvictableIfUnlocked(scratch_nodes_);
}

bool KvPool::AddPages(Req* req, uint32_t missing) {
  if (missing > available_pages()) return false;
  if (missing > allocator_.num_free()) {
    // From the cache to the request, past the allocator, whose marks of them are far away by now.
    const size_t before = req->pages.size();
    cache_.Evict(missing - allocator_.num_free(), &req->pages);
    missing -= static_cast<uint32_t>(req->pages.size() - before);
  }
  CHECK(allocator_.Alloc(missing, &req->pages));
  req->CountPages();
  return true;
}

bool KvPool::CacheUnfinished(Req* req) {
  if (!enable_prefix_cache_) return false;
  const uint32_t full = req->num_computed / page_size_;
  const uint32_t fresh = full - req->num_shared;
  if (fresh == 0) return false;
  const NodeId node = cache_.ExtendLocked(
      req->last_node,
      std::span(req->token_ids)
          .subspan(size_t{req->num_shared} * page_size_, size_t{fresh} * page_size_),
      std::span(req->pages).subspan(req->num_shared, fresh));
  // Someone else was first: this request keeps its own copy and gives it back at its end.
  if (node == kNoNode) return false;
  req->last_node = node;
  req->num_shared = full;
  return true;
}

void KvPool::Release(Req* req, uint32_t valid_tokens) {
  uint32_t kept = req->num_shared;
  scratch_.clear();
  if (enable_prefix_cache_) {
    kept = std::max(kept, std::min(valid_tokens, req->num_computed) / page_size_);
    cache_.Insert(req->root, std::span(req->token_ids).first(size_t{kept} * page_size_),
                  std::span(req->pages).first(kept), &scratch_);
  }
  allocator_.Free(scratch_);
  allocator_.Free(std::span(req->pages).subspan(kept));
  cache_.Unlock(req->last_node);
  Forget(req);
  page_buffers_.GiveBack(&req->pages);
}

void KvPool::Forget(Req* req) {
  req->pages.clear();
  req->num_pages = req->num_shared = req->pages_sent = 0;
  req->num_computed = req->num_scheduled = req->num_unknown = 0;
  req->last_node = kNoNode;
}

Status KvPool::Restore(std::span<const PageId> free_pages, const RadixSnapshot& tree) {
  const auto exists = [this](PageId page) { return page < num_pages(); };
  if (!allocator_.Restore(free_pages) || !std::all_of(tree.pages.begin(), tree.pages.end(), exists))
    return absl::DataLossError("pages");
  return cache_.Restore(tree);
}

void KvPool::RestoreHolder(Req* req, NodeId last_node, std::span<const PageId> own_pages) {
  cache_.AppendPath(last_node, &req->pages);
  cache_.Lock(last_node);
  req->last_node = last_node;
  req->num_shared = static_cast<uint32_t>(req->pages.size());
  req->pages.insert(req->pages.end(), own_pages.begin(), own_pages.end());
  req->CountPages();
}

Status KvPool::CheckLedger(std::span<Req* const> holders) const {
  RETURN_IF_ERROR(cache_.CheckInvariants());
  std::vector<uint32_t> owners(num_pages(), 0);
  uint32_t free = 0, cached = 0, held = 0;
  for (PageId page = 0; page < num_pages(); ++page) {
    if (allocator_.is_free(page)) ++owners[page], ++free;
  }
  if (free != allocator_.num_free()) return absl::InternalError("ledger: free list");
  std::vector<RadixCache::PageState> tree;
  cache_.AppendAllPages(&tree);
  for (const RadixCache::PageState& state : tree) ++owners[state.page], ++cached;
  for (const Req* req : holders) {
    std::vector<PageId> path;
    cache_.AppendPath(req->last_node, &path);
    if (req->num_pages != req->pages.size() || req->num_tokens != req->token_ids.size()) {
      return absl::InternalError(absl::StrCat("ledger: request ", req->spec.id, " miscounts"));
    }
    if (path.size() != req->num_shared ||
        !std::equal(path.begin(), path.end(), req->pages.begin())) {
      return absl::InternalError(absl::StrCat("ledger: request ", req->spec.id, " shared pages"));
    }
    for (size_t i = req->num_shared; i < req->pages.size(); ++i) ++owners[req->pages[i]], ++held;
  }
  for (PageId page = 0; page < num_pages(); ++page) {
    if (owners[page] != 1) {
      return absl::InternalError(
          absl::StrCat("ledger: page ", page, " has ", owners[page], " owners"));
    }
  }
  if (free + cached + held != num_pages()) return absl::InternalError("ledger: total");
  return OkStatus();
}

}  // namespace flotilla
