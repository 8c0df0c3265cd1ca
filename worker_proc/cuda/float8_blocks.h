// Matrices of 8-bit floats as the device's packed products take them: in blocks of one factor
// (kernels/packed_gemm.h).
//
// Units: rows, values, bytes. Threads: any (pure). Errors: PackFloat8: InvalidArgument naming the
// tensor: it has a NaN.
#pragma once

#include <cstdint>

#include "common/base/status.h"
#include "common/checkpoint/checkpoint.h"
#include "worker_proc/cuda/kernels/packed_gemm.h"

namespace flotilla::cuda {

// Whether each block has one factor.
bool MayBeFloat8Blocks(const TensorView& view);
inline uint64_t Float8RowBytes(const TensorView& view) {
  return view.cols / kFloat8Values * kFloat8Bytes;
}
// Rows [begin, end), one behind the other.
Status PackFloat8(const TensorView& view, uint64_t begin, uint64_t end, uint8_t* out);

}  // namespace flotilla::cuda
