// Matrix products with weights as a model's file has them, in blocks of 4 to 8 bits, or as 8-bit
// floats (float8_blocks.h): read as they are, expanded between memory and the tensor cores to the
// elements of 16 bits that they would have become when they were loaded, and multiplied as
// skinny_gemm.h does it. So the bits are those of the expanded matrix, and a step of few rows reads
// a quarter of it.
//
// packed_gemm: any number of rows, kPackedRows at a time, each time the weights anew; more than
// kMostPackedRows are better multiplied by an expanded copy (expand). Numbers of a block:
// checkpoint.h's DequantizeRows, rounded to `type`.
//
// Shapes: weight [out_features, in_features / block values] blocks, rows behind each other, at an
// even address, with 16 readable bytes behind the last; x [rows, in_features] of 16 bits, dense; y
// [rows], rows `y_stride` elements apart. in_features a multiple of the block's values. Threads:
// the stream's. Errors: none. Source: GGUF's blocks; ours.
#pragma once

#include "common/checkpoint/dtype.h"
#include "worker_proc/cuda/kernels/embedding.h"
#include "worker_proc/cuda/kernels/gemv.h"

namespace flotilla::cuda {

inline constexpr uint32_t kPackedRows = 32;
// With more the weights are read more often than it costs to expand them.
inline constexpr uint32_t kMostPackedRows = 256;
inline constexpr uint32_t kPackedEnd = 16;  // readable bytes behind a matrix

// A block of 8-bit floats: their factor, a float, and the values.
inline constexpr uint32_t kFloat8Values = 128;
inline constexpr uint32_t kFloat8Bytes = 4 + kFloat8Values;

struct PackedGemmArgs {
  GemvArgs matrix;  // may be gated, into y of `type`
  DType weight_dtype = DType::kQ4_0;
  uint32_t rows = 0;
  uint32_t y_stride = 0;
};

// `to` becomes what the blocks say.
struct ExpandArgs {
  const void* blocks = nullptr;
  DType dtype = DType::kQ4_0;
  uint64_t values = 0;
  void* to = nullptr;
  Element type = Element::kBFloat16;
};

// embedding.h's, of a table in blocks: as if its numbers had been rounded to table_type.
struct PackedEmbeddingArgs {
  EmbeddingArgs embedding;
  DType table_dtype = DType::kQ4_0;
};

}  // namespace flotilla::cuda
