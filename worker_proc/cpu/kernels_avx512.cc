// AVX-512 F kernels. Compiled with -mavx512f; called only where the CPU and the system have it.
#include <immintrin.h>

#include "worker_proc/cpu/kernels.h"

namespace flotilla::cpu {
namespace {

#include "worker_proc/cpu/simd_avx512.inc"
#include "worker_proc/cpu/simd_kernels.inc"

#include "worker_proc/cpu/simd_attention_tile.inc"

#include "worker_proc/cpu/simd_attention.inc"

}  // namespace

const KernelTable& Avx512Kernels() {
  static const KernelTable kTable = {"avx512",
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
