// The sampler's passes for AVX-512 F. Compiled with -mavx512f; called only where the CPU and the
// system have it.
#include <immintrin.h>

#include "worker_proc/cpu/sampler_kernels.h"

namespace flotilla::cpu {
namespace {

struct V {
  using Reg = __m512;
  using Sum = __m512d;
  static constexpr size_t kLanes = 16;
  static Reg Set1(float x) { return _mm512_set1_ps(x); }
  static Reg Load(const float* p) { return _mm512_loadu_ps(p); }
  static void Store(float* p, Reg x) { _mm512_storeu_ps(p, x); }
  static Reg Fma(Reg a, Reg b, Reg c) { return _mm512_fmadd_ps(a, b, c); }
  static Reg Add(Reg a, Reg b) { return _mm512_add_ps(a, b); }
  static Reg Sub(Reg a, Reg b) { return _mm512_sub_ps(a, b); }
  static Reg Mul(Reg a, Reg b) { return _mm512_mul_ps(a, b); }
  static Reg Max(Reg a, Reg b) { return _mm512_max_ps(a, b); }
  static Reg Pow2(Reg n) {
    const __m512i biased = _mm512_add_epi32(_mm512_cvttps_epi32(n), _mm512_set1_epi32(127));
    return _mm512_castsi512_ps(_mm512_slli_epi32(biased, 23));
  }
  static bool AnyNan(Reg a, Reg b) { return _mm512_cmp_ps_mask(a, b, _CMP_UNORD_Q) != 0; }
  static uint32_t AtLeast(Reg a, Reg b) { return _mm512_cmp_ps_mask(a, b, _CMP_GE_OQ); }
  static Sum ZeroSum() { return _mm512_setzero_pd(); }
  static Sum AddTo(Sum sum, Reg x) {
    const __m512d bits = _mm512_castps_pd(x);
    sum = _mm512_add_pd(sum, _mm512_cvtps_pd(_mm512_castps512_ps256(x)));
    return _mm512_add_pd(sum, _mm512_cvtps_pd(_mm256_castpd_ps(_mm512_extractf64x4_pd(bits, 1))));
  }
  static double Total(Sum sum) {
    double lanes[8];
    _mm512_storeu_pd(lanes, sum);
    double total = 0;
    for (double lane : lanes) total += lane;
    return total;
  }
};

#include "worker_proc/cpu/sampler_kernels.inc"

}  // namespace

const SamplerKernels& Avx512SamplerKernels() {
  static constexpr SamplerKernels kTable = {"avx512", TileMax, TileSums, Weights, Count, Collect};
  return kTable;
}

}  // namespace flotilla::cpu
