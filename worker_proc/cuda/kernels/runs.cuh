// Short runs of consecutive elements between memory and floats: in packs of 16 bytes where the run
// is whole packs (it must be aligned then), else one by one.
//
// Threads: each thread its own run. Errors: none.
#pragma once

#include "worker_proc/cuda/kernels/platform.cuh"

namespace flotilla::cuda {

template <typename T, uint32_t n>
__device__ __forceinline__ void LoadRun(const T* from, float (&values)[n]) {
  if constexpr (n % Pack<T>::kSize == 0) {
    for (uint32_t begin = 0; begin < n; begin += Pack<T>::kSize) {
      const Pack<T> pack = Load16(from + begin);
      for (uint32_t i = 0; i < Pack<T>::kSize; ++i) values[begin + i] = ToFloat(pack.v[i]);
    }
  } else {
    for (uint32_t i = 0; i < n; ++i) values[i] = ToFloat(from[i]);
  }
}

template <typename T, uint32_t n>
__device__ __forceinline__ void StoreRun(T* to, const float (&values)[n]) {
  if constexpr (n % Pack<T>::kSize == 0) {
    for (uint32_t begin = 0; begin < n; begin += Pack<T>::kSize) {
      Pack<T> pack;
      for (uint32_t i = 0; i < Pack<T>::kSize; ++i) pack.v[i] = FromFloat<T>(values[begin + i]);
      Store16(to + begin, pack);
    }
  } else {
    for (uint32_t i = 0; i < n; ++i) to[i] = FromFloat<T>(values[i]);
  }
}

// Whole packs of every type; what a run of columns has where their number allows.
inline constexpr uint32_t kRun = 8;

}  // namespace flotilla::cuda
