// What kernels and those who launch them agree on, on every platform: elements of 16 bits, the
// shape of a launch, the stream.
//
// Units: elements, threads, bytes. Threads: plain values. Errors: none.
#pragma once

#include <cstddef>
#include <cstdint>

namespace flotilla::cuda {

// cudaStream_t, for those who don't see CUDA's headers; emulated, a LaunchQueue, or null: a launch
// is over when it returns.
using Stream = void*;

struct LaunchShape {
  uint32_t grid_x = 1;
  uint32_t grid_y = 1;
  uint32_t block = 1;         // threads, of one dimension
  uint32_t shared_bytes = 0;  // dynamic shared memory
};

// What a block may have on GPUs that run sm_80's code.
inline constexpr uint32_t kMostSharedBytes = 99 << 10;

// Bits only: arithmetic is in float.
struct BFloat16 {
  uint16_t bits;
};
struct Half {
  uint16_t bits;
};

enum class Element : uint32_t { kFloat32, kBFloat16, kFloat16 };
inline constexpr uint32_t ElementBytes(Element element) {
  return element == Element::kFloat32 ? 4 : 2;
}

// 16 bytes that move at once.
template <typename T>
struct alignas(16) Pack {
  static constexpr uint32_t kSize = 16 / sizeof(T);
  T v[kSize];
};

inline constexpr uint32_t CeilDiv(uint32_t a, uint32_t b) { return (a + b - 1) / b; }

}  // namespace flotilla::cuda
