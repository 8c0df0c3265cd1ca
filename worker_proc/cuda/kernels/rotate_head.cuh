// A head of 32 n dimensions on its way from the projection to attention, by a warp in one pass: its
// norm, if it has one, and its rotation, all dimensions of it, (i, i + half) together. For
// rope_kv.cu, and for mma_attention.cu, which takes a step's only token as it is projected: the
// same bits.
//
// Lane l has the dimensions l, l + 32, … Threads: a warp. Errors: none. Source: "RoFormer", arXiv
// 2104.09864; ours.
#pragma once

#include "worker_proc/cuda/kernels/platform.cuh"
#include "worker_proc/cuda/kernels/rope_kv.h"

namespace flotilla::cuda {

template <uint32_t n>
class RotatedHead {
 public:
  // Asks for what is there before x is. norm, of [32 n] floats: null: none. angles: the position's.
  __device__ __forceinline__ RotatedHead(const float* norm, float eps, const float* angles)
      : eps_(eps), has_norm_(norm != nullptr) {
    const uint32_t lane = threadIdx.x % kWarp;
    for (uint32_t j = 0; j < n; ++j) weight_[j] = has_norm_ ? norm[j * kWarp + lane] : 1;
    for (uint32_t j = 0; j < n / 2; ++j) {
      cos_[j] = angles[2 * (j * kWarp + lane)];
      sin_[j] = angles[2 * (j * kWarp + lane) + 1];
    }
  }

  __device__ __forceinline__ void Of(const float* x, float (&v)[n]) const {
    for (uint32_t j = 0; j < n; ++j) v[j] = x[j * kWarp + threadIdx.x % kWarp];
    if (has_norm_) {
      float squares = 0;
      for (uint32_t j = 0; j < n; ++j) squares = fmaf(v[j], v[j], squares);
      const float mean = WarpSum(squares) / static_cast<float>(kWarp * n);
      const float scale = ReciprocalSqrt(mean + eps_);
      for (uint32_t j = 0; j < n; ++j) v[j] *= scale * weight_[j];
    }
    for (uint32_t j = 0; j < n / 2; ++j) {
      // As one compiler or another would fuse it here, and elsewhere perhaps not.
      const float rotated = fmaf(v[j], cos_[j], -(v[j + n / 2] * sin_[j]));
      v[j + n / 2] = fmaf(v[j + n / 2], cos_[j], v[j] * sin_[j]);
      v[j] = rotated;
    }
  }

 private:
  const float eps_;
  const bool has_norm_;
  float weight_[n];
  float cos_[n / 2];
  float sin_[n / 2];
};

// Where the slot's row of a kv head begins in a cache of `dim` a key, in elements.
__device__ __forceinline__ size_t CacheRow(const KvPages& kv, int64_t slot, uint32_t head,
                                           uint32_t dim) {
  const auto page = static_cast<size_t>(slot) / kv.page_size;
  const auto offset = static_cast<size_t>(slot) % kv.page_size;
  return ((page * kv.num_kv_heads + head) * kv.page_size + offset) * dim;
}

}  // namespace flotilla::cuda
