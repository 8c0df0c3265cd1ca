// Integer kernels for AVX-512 with VNNI; called only where the CPU and the system have both.
#include <immintrin.h>

#include "worker_proc/cpu/quant_kernels.h"

namespace flotilla::cpu {
namespace {

#include "worker_proc/cpu/simd_avx512.inc"

#include "worker_proc/cpu/simd_quant_avx512.inc"

#include "worker_proc/cpu/simd_quant.inc"

}  // namespace

const QuantKernelTable& Avx512QuantKernels() {
  static constexpr QuantKernelTable kTable = {"avx512-vnni", Gemm, GateUp, RmsNorm, Quantize};
  return kTable;
}

}  // namespace flotilla::cpu
