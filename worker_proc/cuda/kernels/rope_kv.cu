#include "worker_proc/cuda/kernels/rope_kv.h"

#include "worker_proc/cuda/kernels/launchers.cuh"
#include "worker_proc/cuda/kernels/rotate_head.cuh"

namespace flotilla::cuda::FLOTILLA_PLATFORM {
namespace {

constexpr uint32_t kHeadsABlock = 4;
constexpr uint32_t kThreads = kHeadsABlock * kWarp;

// The warp's: x *= norm(x) * weight.
__device__ __forceinline__ void NormHead(const float* weight, uint32_t dim, float eps, float* x) {
  float squares = 0;
  for (uint32_t d = threadIdx.x % kWarp; d < dim; d += kWarp) squares = fmaf(x[d], x[d], squares);
  const float scale = ReciprocalSqrt(WarpSum(squares) / static_cast<float>(dim) + eps);
  for (uint32_t d = threadIdx.x % kWarp; d < dim; d += kWarp) x[d] *= scale * weight[d];
  __syncwarp();
}

__device__ __forceinline__ void RotateHead(const RopeKvArgs& args, const float* angles, float* x) {
  const uint32_t half = args.rope_dim / 2;
  for (uint32_t i = threadIdx.x % kWarp; i < half; i += kWarp) {
    float& a = x[args.interleaved ? 2 * i : i];
    float& b = x[args.interleaved ? 2 * i + 1 : i + half];
    const float cos = angles[2 * i];
    const float sin = angles[2 * i + 1];
    const float rotated = a * cos - b * sin;
    b = b * cos + a * sin;
    a = rotated;
  }
  __syncwarp();
}

// As NormHead, RotateHead and WriteRow; weights and angles are there before x is. to: null: none.
template <typename Kv, uint32_t n>
__device__ __forceinline__ void OnePass(const RopeKvArgs& args, const float* norm,
                                        const float* angles, float* x, Kv* to) {
  const uint32_t lane = threadIdx.x % kWarp;
  const RotatedHead<n> head(norm, args.eps, angles);
  AfterPrevious();
  float v[n];
  head.Of(x, v);
  for (uint32_t j = 0; j < n; ++j) x[j * kWarp + lane] = v[j];
  for (uint32_t j = 0; to != nullptr && j < n; ++j) to[j * kWarp + lane] = FromFloat<Kv>(v[j]);
}

template <typename Kv>
__device__ __forceinline__ void WriteRow(const float* x, uint32_t dim, Kv* to) {
  for (uint32_t d = threadIdx.x % kWarp; d < dim; d += kWarp) to[d] = FromFloat<Kv>(x[d]);
}

template <typename Kv>
__global__ void __launch_bounds__(kThreads) RopeKvKernel(RopeKvArgs args) {
  StartNext();
  // Positions and slots are there since before the step's first kernel.
  const KvPages& kv = args.kv;
  const uint32_t token = blockIdx.x;
  const uint32_t rotated = args.num_heads + kv.num_kv_heads;
  const size_t stride =
      static_cast<size_t>(rotated) * kv.qk_dim + static_cast<size_t>(kv.num_kv_heads) * kv.v_dim;
  float* const row = args.qkv + token * stride;
  const float* const angles =
      args.table + static_cast<size_t>(args.positions[token]) * args.rope_dim;
  const int64_t slot = args.writes_kv ? args.slot_mapping[token] : -1;
  const uint32_t head = blockIdx.y * kHeadsABlock + threadIdx.x / kWarp;
  if (head >= rotated + kv.num_kv_heads) return;  // not all of a block's
  if (head >= rotated) {
    AfterPrevious();
    const uint32_t kv_head = head - rotated;
    const float* const v = row + static_cast<size_t>(rotated) * kv.qk_dim + kv_head * kv.v_dim;
    if (slot >= 0) {
      WriteRow(v, kv.v_dim, static_cast<Kv*>(kv.v) + CacheRow(kv, slot, kv_head, kv.v_dim));
    }
    return;
  }
  float* const x = row + static_cast<size_t>(head) * kv.qk_dim;
  const bool is_k = head >= args.num_heads;
  const float* const norm = is_k ? args.k_norm : args.q_norm;
  Kv* to = nullptr;
  if (is_k && slot >= 0) {
    to = static_cast<Kv*>(kv.k) + CacheRow(kv, slot, head - args.num_heads, kv.qk_dim);
  }
  if (args.rope_dim == kv.qk_dim && !args.interleaved) {
    if (kv.qk_dim == 64) return OnePass<Kv, 2>(args, norm, angles, x, to);
    if (kv.qk_dim == 128) return OnePass<Kv, 4>(args, norm, angles, x, to);
    if (kv.qk_dim == 256) return OnePass<Kv, 8>(args, norm, angles, x, to);
  }
  AfterPrevious();
  if (norm != nullptr) NormHead(norm, kv.qk_dim, args.eps, x);
  RotateHead(args, angles, x);
  if (to != nullptr) WriteRow(x, kv.qk_dim, to);
}

}  // namespace

void RopeKv(const RopeKvArgs& args, Stream stream) {
  ForElement(args.kv.type, [&](auto kv) {
    Launch({.grid_x = args.tokens,
            .grid_y = CeilDiv(args.num_heads + 2 * args.kv.num_kv_heads, kHeadsABlock),
            .block = kThreads},
           RopeKvKernel<decltype(kv)>, args, stream);
  });
}

}  // namespace flotilla::cuda::FLOTILLA_PLATFORM
