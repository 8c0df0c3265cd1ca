// CUDA's words for g++: what the kernels of ../kernels use of the language, on block.h. The same
// source is compiled by nvcc with kernels/platform_gpu.cuh instead.
//
// Units, threads, errors: as block.h. Numbers: exp, rsqrt and divisions are libm's, so emulated
// bits are not a GPU's.
#pragma once

#include <atomic>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "common/checkpoint/half.h"
#include "worker_proc/cuda/emulation/block.h"
#include "worker_proc/cuda/kernels/launch.h"

#define FLOTILLA_PLATFORM emulated
#define FLOTILLA_UNROLL
// NOLINTBEGIN(bugprone-reserved-identifier): CUDA's own names
#define __global__
#define __device__
#define __forceinline__ inline
#define __launch_bounds__(...)

// Set when a fiber goes on.
inline thread_local flotilla::cuda::emulation::Index threadIdx, blockIdx, blockDim, gridDim;

struct alignas(16) uint4 {
  uint32_t x, y, z, w;
};

inline void __syncthreads() { flotilla::cuda::emulation::BlockBarrier(); }
inline void __syncwarp(uint32_t mask = 0xffffffffu) {
  flotilla::cuda::emulation::WarpBarrier(mask);
}
template <typename T>
T __shfl_sync(uint32_t mask, T value, uint32_t from) {
  static_assert(sizeof(T) <= sizeof(uint64_t));
  uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof(T));
  bits = flotilla::cuda::emulation::Exchange(mask, bits, from);
  std::memcpy(&value, &bits, sizeof(T));
  return value;
}
template <typename T>
T __shfl_xor_sync(uint32_t mask, T value, uint32_t lanes) {
  return __shfl_sync(mask, value, threadIdx.x % flotilla::cuda::emulation::kWarpSize ^ lanes);
}
inline uint32_t __ballot_sync(uint32_t mask, bool value) {
  return flotilla::cuda::emulation::Ballot(mask, value);
}
// NOLINTEND(bugprone-reserved-identifier)

// One fiber runs at a time.
template <typename T>
T atomicAdd(T* address, T value) {
  const T before = *address;
  *address = before + value;
  return before;
}
template <typename T>
T atomicMax(T* address, T value) {
  const T before = *address;
  if (before < value) *address = value;
  return before;
}

namespace flotilla::cuda {

// An array in shared memory: what FLOTILLA_SHARED declares and DynamicShared hands out.
template <typename T>
class SharedSpan {
 public:
  SharedSpan(T* data, size_t size) : data_(data), size_(size) {}
  T& operator[](size_t i) const {
    if (i >= size_) emulation::Fail("index beyond a shared array of", i, size_);
    return data_[i];
  }
  SharedSpan operator+(size_t offset) const {
    if (offset > size_) emulation::Fail("offset beyond a shared array of", offset, size_);
    return {data_ + offset, size_ - offset};
  }

 private:
  T* data_;
  size_t size_;
};

// NOLINTBEGIN(bugprone-macro-parentheses): a type and a name can't stand in parentheses
// SharedSpan<type> name, with `size` elements that the block's threads share.
#define FLOTILLA_SHARED(type, name, size)                                                 \
  static const char name##_key = 0;                                                       \
  const ::flotilla::cuda::SharedSpan<type> name(                                          \
      reinterpret_cast<type*>(                                                            \
          ::flotilla::cuda::emulation::SharedMemory(&name##_key, sizeof(type) * (size))), \
      size)
// NOLINTEND(bugprone-macro-parentheses)

// Cuts the launch's dynamic shared memory into arrays, one after another.
class DynamicShared {
 public:
  template <typename T>
  SharedSpan<T> Take(size_t size) {
    const size_t offset = bytes_;
    bytes_ += (sizeof(T) * size + 15) / 16 * 16;
    return {reinterpret_cast<T*>(emulation::DynamicSharedMemory(offset, sizeof(T) * size)), size};
  }

 private:
  size_t bytes_ = 0;
};

inline float FastExp(float x) { return std::exp(x); }
inline float FastTanh(float x) { return std::tanh(x); }
inline float ReciprocalSqrt(float x) { return 1.0f / std::sqrt(x); }
inline uint16_t FloatToBFloat16Bits(float x) { return FloatToBFloat16(x); }
inline uint16_t FloatToHalfBits(float x) { return FloatToHalf(x); }
inline uint32_t BFloat16PairBits(float first, float second) {
  return FloatToBFloat16Bits(first) | static_cast<uint32_t>(FloatToBFloat16Bits(second)) << 16;
}
inline uint32_t HalfPairBits(float first, float second) {
  return FloatToHalf(first) | static_cast<uint32_t>(FloatToHalf(second)) << 16;
}
inline float HalfBitsToFloat(uint16_t bits) { return HalfToFloat(bits); }
inline float MulRounded(float a, float b) { return a * b; }  // -ffp-contract=off
inline float AddRounded(float a, float b) { return a + b; }

inline uint32_t FloatBits(float x) { return std::bit_cast<uint32_t>(x); }
inline float FloatOfBits(uint32_t bits) { return std::bit_cast<float>(bits); }
inline uint32_t CountBits(uint32_t bits) { return static_cast<uint32_t>(std::popcount(bits)); }
inline void AtomicAdd64(uint64_t* address, uint64_t value) { atomicAdd(address, value); }

// The device's queue starts kernels early whether they say so or not (launch_queue.h).
inline void StartNext() {}
inline void AfterPrevious() { emulation::AfterPrevious(); }
inline void TouchNothing() {
  if (blockIdx.x == 0 && blockIdx.y == 0) {
    AfterPrevious();
  } else {
    emulation::TouchNothing();
  }
}

// Between devices, which are threads or processes here.
inline uint32_t LoadAcquire(const uint32_t* address) {
  return std::atomic_ref<uint32_t>(*const_cast<uint32_t*>(address)).load(std::memory_order_acquire);
}
inline void StoreRelease(uint32_t* address, uint32_t value) {
  std::atomic_ref<uint32_t>(*address).store(value, std::memory_order_release);
}
inline void FenceSystem() {}  // the release that follows is enough
inline void FenceDevice() {}  // one block after another
inline float LoadFresh(const float* from) { return *from; }
inline uint64_t NanoTime() { return emulation::NanoTime(); }
inline void Relax() { emulation::Relax(); }

// Two bytes from an even address on, of shared memory or other.
template <typename Bytes>
uint32_t LoadTwo(const Bytes& bytes, uint32_t at) {
  if (reinterpret_cast<uintptr_t>(&bytes[at]) % 2 != 0) {
    emulation::Fail("2 bytes are read at an odd address", reinterpret_cast<uintptr_t>(&bytes[at]),
                    2);
  }
  return bytes[at] | static_cast<uint32_t>(bytes[at + 1]) << 8;
}

// 16 aligned bytes at once.
template <typename T>
Pack<T> Load16(const T* from) {
  if (reinterpret_cast<uintptr_t>(from) % 16 != 0) {
    emulation::Fail("16 bytes are read at an odd address", reinterpret_cast<uintptr_t>(from), 16);
  }
  Pack<T> values;
  std::memcpy(values.v, from, 16);
  return values;
}
template <typename T>
void Store16(T* to, const Pack<T>& values) {
  if (reinterpret_cast<uintptr_t>(to) % 16 != 0) {
    emulation::Fail("16 bytes are written at an odd address", reinterpret_cast<uintptr_t>(to), 16);
  }
  std::memcpy(to, values.v, 16);
}

// 16 aligned bytes to shared memory, zeros if not `valid`; at once here.
template <typename T>
void CopyAsync16(T* to, const T* from, bool valid) {
  Store16(to, valid ? Load16(from) : Pack<T>{});
}
inline void CopyCommit() {}
template <uint32_t later>
void CopyWait() {}

// platform_gpu.cuh says what these give.
template <typename T>
void LoadMatrix(SharedSpan<T> block, uint32_t stride, uint32_t (&r)[4]) {
  const uint32_t lane = threadIdx.x % emulation::kWarpSize;
  for (uint32_t i = 0; i < 4; ++i) {
    const size_t at = (lane / 4 + i % 2 * 8) * stride + lane % 4 * 2 + i / 2 * 8;
    r[i] = block[at].bits | static_cast<uint32_t>(block[at + 1].bits) << 16;
  }
}
template <typename T>
void LoadRows(SharedSpan<T> block, uint32_t stride, uint32_t count, uint32_t (&r)[4]) {
  const uint32_t lane = threadIdx.x % emulation::kWarpSize;
  const uint32_t row = lane / 4 < count ? lane / 4 : 0;
  for (uint32_t i = 0; i < 4; ++i) {
    const size_t at = row * stride + lane % 4 * 2 + i * 8;
    r[i] = block[at].bits | static_cast<uint32_t>(block[at + 1].bits) << 16;
  }
}
template <typename T>
void LoadMatrixTransposed(SharedSpan<T> block, uint32_t stride, uint32_t (&r)[4]) {
  const uint32_t lane = threadIdx.x % emulation::kWarpSize;
  for (uint32_t i = 0; i < 4; ++i) {
    const size_t at = (lane % 4 * 2 + i % 2 * 8) * stride + lane / 4 + i / 2 * 8;
    r[i] = block[at].bits | static_cast<uint32_t>(block[at + stride].bits) << 16;
  }
}

template <typename T>
float ElementOfPair(uint32_t pair, uint32_t i) {
  const auto bits = static_cast<uint16_t>(pair >> 16 * i);
  if constexpr (std::is_same_v<T, Half>) return HalfToFloat(bits);
  return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
}
// The sum of 16 products of elements of 16 bits, which are exact in float: in the order that all
// that stands for tensor cores has here.
inline float SumOf16(const float* a, const float* b) {
  float sums[8];
  for (uint32_t i = 0; i < 8; ++i) sums[i] = a[i] * b[i] + a[i + 8] * b[i + 8];
  for (uint32_t n = 4; n > 0; n /= 2) {
    for (uint32_t i = 0; i < n; ++i) sums[i] += sums[i + n];
  }
  return sums[0];
}
template <typename T>
void Mma(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  struct Operands {
    float* d;
    const uint32_t* a;
    uint32_t b[2];
  } mine = {d, a, {b0, b1}};
  emulation::Together(&mine, [](void* const* lanes) {
    const auto of = [&](uint32_t lane) { return static_cast<const Operands*>(lanes[lane]); };
    float rows[16][16];  // [row][k]
    float columns[8][16];
    for (uint32_t lane = 0; lane < emulation::kWarpSize; ++lane) {
      const uint32_t g = lane / 4;
      for (uint32_t e = 0; e < 8; ++e) {
        const uint32_t k = lane % 4 * 2 + e % 2 + e / 4 * 8;
        rows[g + e / 2 % 2 * 8][k] = ElementOfPair<T>(of(lane)->a[e / 2], e % 2);
        if (e / 2 % 2 == 0) columns[g][k] = ElementOfPair<T>(of(lane)->b[e / 4], e % 2);
      }
    }
    for (uint32_t lane = 0; lane < emulation::kWarpSize; ++lane) {
      for (uint32_t e = 0; e < 4; ++e) {
        const float* const row = rows[lane / 4 + e / 2 * 8];
        const float* const column = columns[lane % 4 * 2 + e % 2];
        of(lane)->d[e] += SumOf16(row, column);
      }
    }
  });
}

// Of this platform's name: one program may hold both.
namespace FLOTILLA_PLATFORM {

template <typename Args>
void Launch(const LaunchShape& shape, void (*kernel)(Args), const Args& args, Stream stream) {
  emulation::Launch(
      {{shape.grid_x, shape.grid_y, 1}, shape.block, shape.shared_bytes},
      [kernel, args] { kernel(args); }, static_cast<emulation::LaunchQueue*>(stream));
}

}  // namespace FLOTILLA_PLATFORM
}  // namespace flotilla::cuda
