// Included by every kernel: the language it is written in, as nvcc or as g++ has it. The only place
// that asks which compiler this is.
//
// Kernels index with threadIdx, blockIdx and blockDim (x; grids also y), meet by __syncthreads and
// __syncwarp, share by __shfl_sync, FLOTILLA_SHARED and DynamicShared, and are started by Launch.
#pragma once

#ifdef __CUDACC__
#include "worker_proc/cuda/kernels/platform_gpu.cuh"
#else
#include "worker_proc/cuda/emulation/device_language.h"
#endif

namespace flotilla::cuda {

inline constexpr uint32_t kWarp = 32;
inline constexpr uint32_t kAllLanes = 0xffffffffu;

__device__ __forceinline__ float ToFloat(float x) { return x; }
__device__ __forceinline__ float ToFloat(BFloat16 x) {
  const uint32_t bits = static_cast<uint32_t>(x.bits) << 16;
  float value;
  memcpy(&value, &bits, sizeof(value));
  return value;
}
__device__ __forceinline__ float ToFloat(Half x) { return HalfBitsToFloat(x.bits); }

template <typename T>
__device__ __forceinline__ T FromFloat(float x);
template <>
__device__ __forceinline__ float FromFloat<float>(float x) {
  return x;
}
template <>
__device__ __forceinline__ BFloat16 FromFloat<BFloat16>(float x) {
  return {FloatToBFloat16Bits(x)};
}
template <>
__device__ __forceinline__ Half FromFloat<Half>(float x) {
  return {FloatToHalfBits(x)};
}

// Two neighbours of a type of 16 bits, the first in the lower half.
template <typename T>
__device__ __forceinline__ uint32_t PairBits(float first, float second) {
  if constexpr (std::is_same_v<T, Half>) return HalfPairBits(first, second);
  return BFloat16PairBits(first, second);
}

// Calls f with a value of the element's type, which only says the type.
template <typename F>
void ForElement(Element element, const F& f) {
  switch (element) {
    case Element::kFloat32:
      return f(float{});
    case Element::kBFloat16:
      return f(BFloat16{});
    case Element::kFloat16:
      return f(Half{});
  }
}

// The warp's, on every lane; in a fixed order.
__device__ __forceinline__ float WarpSum(float value) {
  for (uint32_t lanes = kWarp / 2; lanes > 0; lanes /= 2) {
    value += __shfl_xor_sync(kAllLanes, value, lanes);
  }
  return value;
}
__device__ __forceinline__ float WarpMax(float value) {
  for (uint32_t lanes = kWarp / 2; lanes > 0; lanes /= 2) {
    value = fmaxf(value, __shfl_xor_sync(kAllLanes, value, lanes));
  }
  return value;
}

// The block's, on every thread; `warps`: an element a warp. In a fixed order.
__device__ __forceinline__ float BlockSum(float value, SharedSpan<float> warps) {
  value = WarpSum(value);
  if (threadIdx.x % kWarp == 0) warps[threadIdx.x / kWarp] = value;
  __syncthreads();
  float sum = 0;
  for (uint32_t warp = 0; warp < blockDim.x / kWarp; ++warp) sum += warps[warp];
  __syncthreads();
  return sum;
}

}  // namespace flotilla::cuda
