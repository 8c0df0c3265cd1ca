#include "shm/cache_lines.h"

#include <algorithm>
#include <cstring>

// Wider moves where the CPU has them (chosen once, by the loader): a sixth of an all-reduce. The
// loader's choice runs before ThreadSanitizer is ready for it.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && !defined(__SANITIZE_THREAD__)
#define FLOTILLA_WIDE __attribute__((target_clones("avx2", "default")))
#else
#define FLOTILLA_WIDE
#endif

namespace flotilla {
namespace {

// out[i] = copy[i] = a[i] + b[i]. An out may be a or b itself, or the other out.
FLOTILLA_WIDE void SumTwo(const float* a, const float* b, float* out, float* copy, size_t count) {
#pragma GCC ivdep
  for (size_t i = 0; i < count; ++i) {
    const float sum = a[i] + b[i];
    out[i] = sum;
    copy[i] = sum;
  }
}

}  // namespace

FLOTILLA_WIDE void TakeBytes(std::byte* from, size_t bytes, std::byte* out) {
  size_t at = 0;
  for (; at + kCacheLineBytes <= bytes; at += kCacheLineBytes) {
    std::memcpy(out + at, from + at, kCacheLineBytes);
    std::memset(from + at, 0, sizeof(int));
  }
  if (at == bytes) return;
  std::memcpy(out + at, from + at, bytes - at);
  from[at] = std::byte{0};
}

void SumInOrder(std::span<const float* const> parts, std::span<float* const> outs, size_t count) {
  if (parts.size() == 2 && outs.size() <= 2)  // two ranks: in one pass
    return SumTwo(parts[0], parts[1], outs.front(), outs.back(), count);
  constexpr size_t kBlock = 512;
  float sum[kBlock];
  for (size_t at = 0; at < count; at += kBlock) {
    const size_t n = std::min(kBlock, count - at);
    std::memcpy(sum, parts[0] + at, n * sizeof(float));
    for (const float* part : parts.subspan(1))
      for (size_t i = 0; i < n; ++i) sum[i] += part[at + i];
    for (float* out : outs) std::memcpy(out + at, sum, n * sizeof(float));
  }
}

}  // namespace flotilla
