// Integer kernels for AVX2; called only where the CPU has AVX2, FMA and F16C.
#include <immintrin.h>

#include "worker_proc/cpu/quant_kernels.h"

namespace flotilla::cpu {
namespace {

#include "worker_proc/cpu/simd_avx2.inc"

#include "worker_proc/cpu/simd_quant_avx2.inc"

#include "worker_proc/cpu/simd_quant.inc"

}  // namespace

const QuantKernelTable& Avx2QuantKernels() {
  static constexpr QuantKernelTable kTable = {"avx2", Gemm, GateUp, RmsNorm, Quantize};
  return kTable;
}

}  // namespace flotilla::cpu
