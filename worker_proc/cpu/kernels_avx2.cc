// AVX2 + FMA kernels. Compiled with -mavx2 -mfma; called only where the CPU has both.
#include <immintrin.h>

#include "worker_proc/cpu/kernels.h"

namespace flotilla::cpu {
namespace {

struct V {
  using Reg = __m256;
  static constexpr int kLanes = 8;
  static constexpr int kValueRegs = 2;  // 6 rows × 2 + 2 of 16 registers
  // Panels beside each other for a tile of tokens: at least 8 independent FMA chains (latency 4,
  // two a cycle), at most 12 of the 16 registers.
  static constexpr int PanelsFor(int tokens) { return tokens == 1 ? 4 : tokens <= 3 ? 2 : 1; }
  static Reg Zero() { return _mm256_setzero_ps(); }
  static Reg Set1(float x) { return _mm256_set1_ps(x); }
  static Reg Load(const float* p) { return _mm256_loadu_ps(p); }
  static void Store(float* p, Reg x) { _mm256_storeu_ps(p, x); }
  static Reg Fma(Reg a, Reg b, Reg c) { return _mm256_fmadd_ps(a, b, c); }
  static Reg Add(Reg a, Reg b) { return _mm256_add_ps(a, b); }
  static Reg Sub(Reg a, Reg b) { return _mm256_sub_ps(a, b); }
  static Reg Mul(Reg a, Reg b) { return _mm256_mul_ps(a, b); }
  static Reg Div(Reg a, Reg b) { return _mm256_div_ps(a, b); }
  static Reg Min(Reg a, Reg b) { return _mm256_min_ps(a, b); }
  static Reg Max(Reg a, Reg b) { return _mm256_max_ps(a, b); }
  static Reg Pow2(Reg n) {
    const __m256i biased = _mm256_add_epi32(_mm256_cvttps_epi32(n), _mm256_set1_epi32(127));
    return _mm256_castsi256_ps(_mm256_slli_epi32(biased, 23));
  }
};

#include "worker_proc/cpu/simd_kernels.inc"

#include "worker_proc/cpu/simd_attention.inc"

}  // namespace

const KernelTable& Avx2Kernels() {
  static const KernelTable kTable = {
      "avx2",   Gemm, RmsNorm, SiluMul, ReferenceKernels().rope, ReferenceKernels().write_kv,
      Attention};
  return kTable;
}

}  // namespace flotilla::cpu
