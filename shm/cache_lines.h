// Moving bytes out of memory that another core has just written.
//
// Whoever takes such bytes for the last time before their owner writes there again also writes to
// each of their cache lines. A line that two cores have read must be invalidated before the next
// write, a trip beyond the shared cache; one that is written by each in turn just moves from core
// to core. Measured on Zen 4: a quarter to a half of the time (docs/performance.md).
//
// Threads: the caller owns all buffers during the call, the ones taken from included: nobody else
// may read them either. Source: ours.
#pragma once

#include <cstddef>
#include <span>

namespace flotilla {

inline constexpr size_t kCacheLineBytes = 64;

// Copies `bytes` bytes and leaves rubbish in the source, a part of each of its cache lines.
// `from` lies on a cache line's boundary.
void TakeBytes(std::byte* from, size_t bytes, std::byte* out);

// outs[…][i] = parts[0][i] + parts[1][i] + …, in this order, for i below count. An out may be one
// of the parts; otherwise none may overlap.
void SumInOrder(std::span<const float* const> parts, std::span<float* const> outs, size_t count);

}  // namespace flotilla
