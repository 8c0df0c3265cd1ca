// AVX2 + FMA kernels. Compiled with -mavx2 -mfma; called only where the CPU has both.
#include <immintrin.h>

#include "worker_proc/cpu/kernels.h"

namespace flotilla::cpu {
namespace {

#include "worker_proc/cpu/simd_avx2.inc"
#include "worker_proc/cpu/simd_kernels.inc"

#include "worker_proc/cpu/simd_attention_tile.inc"

#include "worker_proc/cpu/simd_attention.inc"

}  // namespace

const KernelTable& Avx2Kernels() {
  static const KernelTable kTable = {"avx2",
                                     Gemm,
                                     RmsNorm,
                                     SiluMul,
                                     GeluMul,
                                     SoftCap,
                                     ReferenceKernels().rope,
                                     ReferenceKernels().write_kv,
                                     Attention};
  return kTable;
}

}  // namespace flotilla::cpu
