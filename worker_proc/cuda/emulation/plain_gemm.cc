#include "worker_proc/cuda/emulation/plain_gemm.h"

#include <vector>

#include "worker_proc/cuda/kernels/platform.cuh"
#include "worker_proc/cuda/kernels/skinny_gemm.h"

namespace flotilla::cuda::emulated {
namespace {

constexpr uint32_t kLanes = 8;

template <typename T>
void ToFloats(const void* from, size_t n, float* to) {
  const T* const values = static_cast<const T*>(from);
  for (size_t i = 0; i < n; ++i) to[i] = ToFloat(values[i]);
}

void ToFloats(Element type, const void* from, size_t n, float* to) {
  ForElement(type, [&](auto element) { ToFloats<decltype(element)>(from, n, to); });
}

// As the kernels for few rows have it, which may compute the same rows in another step.
float Chain(const float* a, const float* b, uint32_t n) {
  float sum = 0;
  for (uint32_t k = 0; k < n; k += 16) sum += SumOf16(a + k, b + k);
  return sum;
}

float Dot(const float* a, const float* b, uint32_t n) {
  float lanes[kLanes] = {};
  uint32_t k = 0;
  for (; k + kLanes <= n; k += kLanes) {
    for (uint32_t i = 0; i < kLanes; ++i) lanes[i] += a[k + i] * b[k + i];
  }
  for (; k < n; ++k) lanes[k % kLanes] += a[k] * b[k];
  float sum = 0;
  for (const float lane : lanes) sum += lane;
  return sum;
}

}  // namespace

void PlainGemm(const GemmArgs& args) {
  const GemvArgs& m = args.matrix;
  const size_t in = m.in_features;
  std::vector<float> x(args.rows * in);
  std::vector<float> weights(in);
  ToFloats(m.type, m.x, x.size(), x.data());
  const auto* const rows = static_cast<const std::byte*>(m.weight);
  for (uint32_t n = 0; n < m.out_features; ++n) {
    ToFloats(m.type, rows + n * in * ElementBytes(m.type), in, weights.data());
    for (uint32_t t = 0; t < args.rows; ++t) {
      const float* const row = x.data() + t * in;
      const float product = HasSkinnyGemm(m) ? Chain(weights.data(), row, m.in_features)
                                             : Dot(weights.data(), row, m.in_features);
      const float sum = product + (m.bias != nullptr ? m.bias[n] : 0.0f);
      const size_t at = static_cast<size_t>(t) * m.out_features + n;
      ForElement(m.y_type, [&](auto y) {
        using Y = decltype(y);
        static_cast<Y*>(m.y)[at] = FromFloat<Y>(sum);
      });
    }
  }
}

}  // namespace flotilla::cuda::emulated
