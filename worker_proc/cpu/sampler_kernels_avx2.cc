// The sampler's passes for AVX2 + FMA. Compiled with -mavx2 -mfma; called only where the CPU has
// both.
#include <immintrin.h>

#include "worker_proc/cpu/sampler_kernels.h"

namespace flotilla::cpu {
namespace {

struct V {
  using Reg = __m256;
  using Sum = __m256d;
  static constexpr size_t kLanes = 8;
  static Reg Set1(float x) { return _mm256_set1_ps(x); }
  static Reg Load(const float* p) { return _mm256_loadu_ps(p); }
  static void Store(float* p, Reg x) { _mm256_storeu_ps(p, x); }
  static Reg Fma(Reg a, Reg b, Reg c) { return _mm256_fmadd_ps(a, b, c); }
  static Reg Add(Reg a, Reg b) { return _mm256_add_ps(a, b); }
  static Reg Sub(Reg a, Reg b) { return _mm256_sub_ps(a, b); }
  static Reg Mul(Reg a, Reg b) { return _mm256_mul_ps(a, b); }
  static Reg Max(Reg a, Reg b) { return _mm256_max_ps(a, b); }
  static Reg Pow2(Reg n) {
    const __m256i biased = _mm256_add_epi32(_mm256_cvttps_epi32(n), _mm256_set1_epi32(127));
    return _mm256_castsi256_ps(_mm256_slli_epi32(biased, 23));
  }
  static bool AnyNan(Reg a, Reg b) {
    return _mm256_movemask_ps(_mm256_cmp_ps(a, b, _CMP_UNORD_Q)) != 0;
  }
  static uint32_t AtLeast(Reg a, Reg b) {
    return static_cast<uint32_t>(_mm256_movemask_ps(_mm256_cmp_ps(a, b, _CMP_GE_OQ)));
  }
  static Sum ZeroSum() { return _mm256_setzero_pd(); }
  static Sum AddTo(Sum sum, Reg x) {
    sum = _mm256_add_pd(sum, _mm256_cvtps_pd(_mm256_castps256_ps128(x)));
    return _mm256_add_pd(sum, _mm256_cvtps_pd(_mm256_extractf128_ps(x, 1)));
  }
  static double Total(Sum sum) {
    double lanes[4];
    _mm256_storeu_pd(lanes, sum);
    return (lanes[0] + lanes[1]) + (lanes[2] + lanes[3]);
  }
};

#include "worker_proc/cpu/sampler_kernels.inc"

}  // namespace

const SamplerKernels& Avx2SamplerKernels() {
  static constexpr SamplerKernels kTable = {"avx2", TileMax, TileSums, Weights, Count, Collect};
  return kTable;
}

}  // namespace flotilla::cpu
