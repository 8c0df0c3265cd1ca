#include "worker_proc/cuda/plan/device_kv.h"

#include <algorithm>
#include <numeric>

#include "common/base/check.h"
#include "common/base/flags.h"

namespace flotilla::cuda {

StatusOr<uint64_t> DeviceKvPages(const DeviceKvRequest& request) {
  CHECK(request.rank < request.page_bytes.size() && request.page_size > 0);
  const uint64_t page_bytes = request.page_bytes[request.rank];
  CHECK(page_bytes > 0);
  const uint64_t left = KvCacheBytes(request.memory);
  const uint64_t room = left > request.graph_bytes ? left - request.graph_bytes : 0;
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
  const uint64_t needed = (request.context_length + request.page_size - 1) / request.page_size;
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

}  // namespace flotilla::cuda
