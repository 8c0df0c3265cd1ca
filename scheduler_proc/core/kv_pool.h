// The KV pages: which are free, which are cached, which a request holds. Joins allocator and radix
// tree: what is asked for beyond the free pages is taken from the cache, as its eviction policy
// says.
//
// Units: pages. Threads: one. Ownership: owns allocator and tree; a request's pages are returned by
// Release only. Errors: Grow takes all or nothing.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "scheduler_proc/core/buffer_pool.h"
#include "scheduler_proc/core/page_allocator.h"
#include "scheduler_proc/core/radix_cache.h"
#include "scheduler_proc/core/req.h"

namespace flotilla {

// So many tokens of its prefix, at most, a request with penalties reads from the cache: they are
// sent with the plan, which must fit the step ring's frame.
inline constexpr uint32_t kMaxHistoryTokens = 128 * 1024;
inline constexpr uint32_t kMaxSparePageBuffers = 4096;  // of a size

class KvPool {
 public:
  KvPool(uint32_t page_size, bool enable_prefix_cache,
         EvictionPolicy eviction_policy = EvictionPolicy::kLru)
      : page_size_(page_size), enable_prefix_cache_(enable_prefix_cache), cache_(eviction_policy) {}
  // All pages free, the tree empty. Requests' pages are forgotten: Forget each of them.
  void Reset(uint32_t num_pages);

  uint32_t page_size() const { return page_size_; }
  uint32_t num_pages() const { return allocator_.num_pages(); }
  uint32_t available_pages() const { return allocator_.num_free() + cache_.evictable_pages(); }
  uint32_t PagesFor(uint64_t tokens) const {
    const uint64_t up = tokens + page_size_ - 1;
    // A division of 32 bits takes half as long.
    return up <= UINT32_MAX ? static_cast<uint32_t>(up) / page_size_
                            : static_cast<uint32_t>(up / page_size_);
  }

  // A request enters / leaves: its tenant's root, and the hash that finds those like it.
  void Attach(Req* req);
  void Detach(Req* req);

  // Pages of req's longest usable cached prefix; at least its last token stays to be computed.
  uint32_t PeekPrefix(const Req& req) const;
  // The tokens of which a prefix may be read from the cache.
  std::span<const int32_t> Matchable(const Req& req) const;
  // Takes that prefix: locks it, sets pages, num_shared, num_computed. Lock even without a match.
  void TakePrefix(Req* req);
  // Undoes TakePrefix: the request was not admitted.
  void ReturnPrefix(Req* req);
  // What would be available if these requests' pages were released.
  uint32_t AvailableWithout(std::span<Req* const> holders);
  // Pages for the first `tokens` tokens. False, and nothing taken, if they are not there.
  bool Grow(Req* req, uint32_t tokens) {
    if (tokens <= uint64_t{req->num_pages} * page_size_) return true;
    return AddPages(req, PagesFor(tokens) - req->num_pages);
  }
  // Gives the computed full pages to the tree while the request goes on, so that others may share
  // them now. True: there were some.
  bool CacheUnfinished(Req* req);
  // Gives back every page; the first `valid_tokens` tokens' full pages stay cached.
  void Release(Req* req, uint32_t valid_tokens);
  // After Reset: the request has no pages.
  static void Forget(Req* req);

  // Back to what was saved of allocator() and cache(), before any request is attached.
  Status Restore(std::span<const PageId> free_pages, const RadixSnapshot& tree);
  // Gives an attached request that holds pages its place: those up to the end of `last_node`,
  // locked, then `own_pages`.
  void RestoreHolder(Req* req, NodeId last_node, std::span<const PageId> own_pages);

  const PageAllocator& allocator() const { return allocator_; }
  const RadixCache& cache() const { return cache_; }
  void set_observer(RadixObserver* observer) { cache_.set_observer(observer); }
  void set_page_log(PageLog* log) { cache_.set_page_log(log); }
  bool prefix_cache_enabled() const { return enable_prefix_cache_; }

  // Every page is free, or in the tree, or held by exactly one of `running`; locks agree.
  Status CheckLedger(std::span<Req* const> holders) const;

 private:
  bool AddPages(Req* req, uint32_t missing);

  const uint32_t page_size_;
  const bool enable_prefix_cache_;
  PageAllocator allocator_;
  RadixCache cache_;
  BufferPool<PageId> page_buffers_{kMaxSparePageBuffers};
  std::vector<PageId> scratch_;
  std::vector<NodeId> scratch_nodes_;
};

}  // namespace flotilla
