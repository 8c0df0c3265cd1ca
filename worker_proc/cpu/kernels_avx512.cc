// AVX-512 F kernels. Compiled with -mavx512f; called only where the CPU and the system have it.
#include <immintrin.h>

#include "worker_proc/cpu/kernels.h"

namespace flotilla::cpu {
namespace {

struct V {
  using Reg = __m512;
  static constexpr int kLanes = 16;
  static constexpr int kValueRegs = 4;  // 6 rows × 4 + 4 of 32 registers
  // 6 tokens × 4 panels = 24 accumulators of 32 registers; few tokens take more panels at once.
  static constexpr int PanelsFor(int tokens) { return tokens <= 2 ? 8 : 4; }
  static Reg Zero() { return _mm512_setzero_ps(); }
  static Reg Set1(float x) { return _mm512_set1_ps(x); }
  static Reg Load(const float* p) { return _mm512_loadu_ps(p); }
  static void Store(float* p, Reg x) { _mm512_storeu_ps(p, x); }
  static Reg Fma(Reg a, Reg b, Reg c) { return _mm512_fmadd_ps(a, b, c); }
  static Reg Add(Reg a, Reg b) { return _mm512_add_ps(a, b); }
  static Reg Sub(Reg a, Reg b) { return _mm512_sub_ps(a, b); }
  static Reg Mul(Reg a, Reg b) { return _mm512_mul_ps(a, b); }
  static Reg Div(Reg a, Reg b) { return _mm512_div_ps(a, b); }
  static Reg Min(Reg a, Reg b) { return _mm512_min_ps(a, b); }
  static Reg Max(Reg a, Reg b) { return _mm512_max_ps(a, b); }
  static Reg Pow2(Reg n) {
    const __m512i biased = _mm512_add_epi32(_mm512_cvttps_epi32(n), _mm512_set1_epi32(127));
    return _mm512_castsi512_ps(_mm512_slli_epi32(biased, 23));
  }
};

#include "worker_proc/cpu/simd_kernels.inc"

#include "worker_proc/cpu/simd_attention.inc"

}  // namespace

const KernelTable& Avx512Kernels() {
  static const KernelTable kTable = {
      "avx512", Gemm, RmsNorm, SiluMul, ReferenceKernels().rope, ReferenceKernels().write_kv,
      Attention};
  return kTable;
}

}  // namespace flotilla::cpu
