// Matrices of 8-bit floats as the device's packed products take them (kernels/packed_blocks.cuh):
// blocks of a float, their factor, and 128 values.
//
// Units: rows, values, bytes. Threads: any (pure). Errors: PackFloat8: InvalidArgument naming the
// tensor: it has a NaN.
#pragma once

#include <cstdint>

#include "common/base/status.h"
#include "common/checkpoint/checkpoint.h"

namespace flotilla::cuda {

inline constexpr uint64_t kFloat8Values = 128;
inline constexpr uint64_t kFloat8Bytes = sizeof(float) + kFloat8Values;

// Whether each block has one factor.
bool MayBeFloat8Blocks(const TensorView& view);
inline uint64_t Float8RowBytes(const TensorView& view) {
  return view.cols / kFloat8Values * kFloat8Bytes;
}
// Rows [begin, end), one behind the other.
Status PackFloat8(const TensorView& view, uint64_t begin, uint64_t end, uint8_t* out);

}  // namespace flotilla::cuda
