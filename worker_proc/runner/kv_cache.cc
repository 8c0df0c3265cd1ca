#include "worker_proc/runner/kv_cache.h"

#include <algorithm>
#include <numeric>

#include "common/base/check.h"
#include "common/base/flags.h"
#include "common/base/memory_info.h"

namespace flotilla {

uint64_t KvBlockBytes(uint32_t num_layers, uint32_t block_size, uint32_t num_kv_heads,
                      uint32_t head_dim, uint32_t dtype_bytes) {
  return uint64_t{2} * num_layers * block_size * num_kv_heads * head_dim * dtype_bytes;
}

DeviceMemory MemoryAfterWarmup(uint64_t total, uint64_t free, uint64_t free_at_start,
                               double utilization) {
  const uint64_t ours = free_at_start > free ? free_at_start - free : 0;
  return {total, utilization, total - free, ours, ours};
}

uint64_t KvCacheBytes(const DeviceMemory& memory) {
  const double budget = static_cast<double>(memory.total) * memory.utilization -
                        static_cast<double>(memory.used) - static_cast<double>(memory.peak) +
                        static_cast<double>(memory.current);
  return budget > 0 ? static_cast<uint64_t>(budget) : 0;
}

StatusOr<uint64_t> DeviceKvPages(const DeviceKvRequest& request) {
  CHECK(request.rank < request.page_bytes.size() && request.page_size > 0);
  const uint64_t page_bytes = request.page_bytes[request.rank];
  CHECK(page_bytes > 0);
  const uint64_t left = KvCacheBytes(request.memory);
  const uint64_t needed = (request.context_length + request.page_size - 1) / request.page_size;
  // One context comes before graphs, of which there may be fewer.
  const uint64_t one_context = std::min(left, needed * page_bytes);
  const uint64_t beside = left > request.graph_bytes ? left - request.graph_bytes : 0;
  const uint64_t room = std::max(beside, one_context);
  uint64_t pages = room / page_bytes;
  if (request.kv_cache_memory != 0) {
    const uint64_t all_ranks =
        std::accumulate(request.page_bytes.begin(), request.page_bytes.end(), uint64_t{0});
    CHECK(all_ranks >= page_bytes);
    const uint64_t wanted = request.kv_cache_memory / all_ranks;
    if (wanted > pages) {
      return absl::ResourceExhaustedError(
          StrCat("--kv-cache-memory ", FormatBytes(request.kv_cache_memory), " needs ",
                 FormatBytes(wanted * page_bytes), " of the device, ", FormatBytes(room),
                 " are left beside weights, steps and graphs; use at most ",
                 (pages * all_ranks) >> 20, "MiB or a higher --gpu-memory-utilization"));
    }
    pages = wanted;
  }
  if (pages < needed) {
    return absl::ResourceExhaustedError(
        StrCat("the KV cache of ", FormatBytes(pages * page_bytes), " on the device holds ",
               pages * request.page_size, " tokens, fewer than one context of ",
               request.context_length, "; use a higher --gpu-memory-utilization",
               request.kv_cache_memory != 0 ? " or --kv-cache-memory" : "",
               ", or --context-length ", std::max<uint64_t>(1, pages * request.page_size)));
  }
  return std::min<uint64_t>(pages, UINT32_MAX);
}

namespace {

uint64_t LocalPageBytes(const HostKvRequest& request) {
  if (request.local_ranks == 0)
    return std::accumulate(request.page_bytes.begin(), request.page_bytes.end(), uint64_t{0});
  CHECK(request.first_local_rank + request.local_ranks <= request.page_bytes.size());
  const auto first = request.page_bytes.begin() + request.first_local_rank;
  return std::accumulate(first, first + request.local_ranks, uint64_t{0});
}

}  // namespace

StatusOr<uint64_t> HostKvPages(const HostKvRequest& request) {
  const uint64_t page_bytes =
      std::accumulate(request.page_bytes.begin(), request.page_bytes.end(), uint64_t{0});
  CHECK(page_bytes > 0 && request.page_size > 0);
  const uint64_t local_bytes = LocalPageBytes(request);
  CHECK(local_bytes > 0);
  const bool several_hosts = local_bytes < page_bytes;
  const uint64_t available =
      several_hosts ? request.available_bytes / local_bytes * page_bytes : request.available_bytes;
  const uint64_t needed_pages =
      (request.context_length + request.page_size - 1) / request.page_size;
  const uint64_t needed_bytes = needed_pages * page_bytes;
  const bool chosen = request.kv_cache_memory != 0;
  const uint64_t budget =
      chosen ? request.kv_cache_memory : AutomaticKvBytes(available, needed_bytes);
  if (chosen && budget > available) {
    return absl::ResourceExhaustedError(StrCat(
        "--kv-cache-memory ", FormatBytes(budget), " is more than the ", FormatBytes(available),
        " that are available",
        several_hosts ? StrCat(" (", FormatBytes(request.available_bytes), " on this host)") : "",
        "; use less, at least ", FormatBytes(needed_bytes)));
  }
  const uint64_t pages = budget / page_bytes;
  if (pages < needed_pages) {
    const uint64_t fits = pages * request.page_size;
    return absl::ResourceExhaustedError(
        StrCat(chosen ? "--kv-cache-memory " : "the automatic KV cache of ", FormatBytes(budget),
               " holds ", fits, " tokens, fewer than one context of ", request.context_length,
               "; use --kv-cache-memory ", (needed_bytes >> 20) + 1, "MiB",
               fits > 0 ? StrCat(" or --context-length ", fits) : ""));
  }
  return std::min<uint64_t>(pages, UINT32_MAX);
}

}  // namespace flotilla
