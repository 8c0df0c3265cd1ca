// Matrix products of few rows: y[i] = W x[i] (+ bias) by the tensor cores, for elements of 16 bits.
//
// Each sum is one chain over k, 16 products at a time in rising order, in float. So have those of
// cuBLASLt's algorithms that do not split k, whatever their tiles: they give the same bits (seen on
// sm_90a with cuBLASLt 13.1; gpu/gemm.h looks before it believes that of one).
//
// A block has 8 columns of y. It asks for its weights before the kernel before it is done, since
// those are there already: for all of them where they and the rows find room in a block's memory
// (IsResident), so that nothing is left to do then but the chain; else for as many as its ring
// holds. A product of one row may add to y, and may norm x, each block for itself, instead of
// kernels behind and before it. Shapes: x [rows, in_features], y [rows, out_features], dense; rows
// at most kSkinnyRows, in_features a multiple of 16; what is gated, adds or norms must be resident.
// Threads: the stream's. Errors: none. Source: ours.
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

// Of k: what is copied and loaded at once.
inline constexpr uint32_t kSkinnyChunk = 128;
inline constexpr uint32_t kSkinnyColumns = 8;
// Elements from a row of shared memory to the next: rows are whole chunks, and begin in different
// banks.
inline constexpr uint32_t kSkinnyPad = 8;
inline constexpr uint32_t ResidentStride(uint32_t in_features) {
  return CeilDiv(in_features, kSkinnyChunk) * kSkinnyChunk + kSkinnyPad;
}
inline constexpr uint32_t ResidentBytes(const SkinnyGemmArgs& args) {
  const uint32_t rows = kSkinnyColumns * (args.matrix.gated ? 2 : 1) + args.rows;
  return rows * ResidentStride(args.matrix.in_features) * 2;
}
inline constexpr bool IsResident(const SkinnyGemmArgs& args) {
  return args.matrix.in_features <= 32 * kSkinnyChunk && ResidentBytes(args) <= kMostSharedBytes;
}

inline constexpr bool HasGatedGemm(const SkinnyGemmArgs& args) {
  return args.rows <= kSkinnyRows && HasSkinnyGemm(args.matrix) && IsResident(args);
}

// Of one row: the blocks read more of x, as floats, than before, and more rows or columns of y
// would cost more than a kernel less saves. kMostNormed: of a row, what a block's threads hold at
// once. Wider streams are not added to either, as their norm stays a kernel.
inline constexpr uint32_t kMostNormed = 1024;
inline constexpr uint32_t kMostNormedColumns = 16384;
inline constexpr bool HasAddingGemm(const SkinnyGemmArgs& args) {
  return args.rows == 1 && args.matrix.y_type == Element::kFloat32 &&
         args.matrix.out_features <= kMostNormed && HasSkinnyGemm(args.matrix) && IsResident(args);
}
inline constexpr bool HasNormedGemm(const SkinnyGemmArgs& args) {
  return args.rows == 1 && (args.matrix.gated || args.matrix.y_type == Element::kFloat32) &&
         args.matrix.in_features <= kMostNormed && args.matrix.out_features <= kMostNormedColumns &&
         HasSkinnyGemm(args.matrix) && IsResident(args);
}

}  // namespace flotilla::cuda
