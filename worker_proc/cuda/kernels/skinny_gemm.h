// Matrix products of few rows: y[i] = W x[i] (+ bias) by the tensor cores, for elements of 16 bits.
//
// Each sum is one chain over k, 16 products at a time in rising order, in float. So have those of
// cuBLASLt's algorithms that do not split k, whatever their tiles: they give the same bits (seen on
// sm_90a with cuBLASLt 13.1; gpu/gemm.h looks before it believes that of one).
//
// A warp has 8 columns of y. It asks for its weights before the kernel before it is done, since
// those are there already. Shapes: x [rows, in_features], y [rows, out_features], dense; rows at
// most kSkinnyRows, in_features a multiple of 16. Threads: the stream's. Errors: none. Source:
// ours.
#pragma once

#include "worker_proc/cuda/kernels/gemv.h"

namespace flotilla::cuda {

inline constexpr uint32_t kSkinnyRows = 16;

struct SkinnyGemmArgs {
  GemvArgs matrix;
  uint32_t rows = 0;
};

inline constexpr bool HasSkinnyGemm(const GemvArgs& matrix) {
  return matrix.type != Element::kFloat32 && matrix.in_features % 16 == 0;
}

}  // namespace flotilla::cuda
