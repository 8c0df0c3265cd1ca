// Matrix products: y = x W^T (+ bias), sums in float, by cuBLASLt or our kernel for few rows.
//
// Batch-invariant, for elements of 16 bits: all sums are one chain over k (kernels/skinny_gemm.h),
// so any algorithm that has these bits may be taken. At a matrix's first use the library's
// candidates are timed for 1, 2, 4 … rows, over copies of the weight that no cache holds, and the
// fastest is taken whose result equals our kernel's bit for bit; if none does, our kernel. So time
// decides about speed alone, and two processes may choose differently. What was chosen is kept in a
// file, algorithms-GPU.bin; a later start of the same program times nothing, but compares the bits
// again. Of other elements, or where the shape is none of that kernel's, a matrix has one algorithm
// for all rows, the library's choice. Not batch-invariant: the library's first choice for each
// power of two of rows.
//
// Units: elements, rows, bytes. Threads: the stream's. Ownership: owns the library's handle and its
// workspace; the stream outlives it. Errors: Internal with the library's code; Unimplemented: no
// algorithm has this shape; ResourceExhausted: no memory to time in. Source: cuBLASLt's
// documentation (CUDA 13); ours.
#pragma once

#include <cublasLt.h>
#include <cuda_runtime_api.h>

#include <compare>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "worker_proc/cuda/device.h"
#include "worker_proc/cuda/plan/algo_cache.h"

namespace flotilla::cuda {

class LtGemm {
 public:
  static constexpr size_t kWorkspaceBytes = size_t{32} << 20;

  LtGemm() = default;
  ~LtGemm();
  LtGemm(const LtGemm&) = delete;
  LtGemm& operator=(const LtGemm&) = delete;

  struct Options {
    uint64_t l2_bytes = 0;
    std::string gpu = {};        // its name: what is timed on one says nothing of another
    std::string cache_dir = {};  // empty: nothing is kept
  };
  Status Open(const Options& options);
  // Within a capture only what has been run before with as many rows.
  Status Run(const GemmArgs& args, cudaStream_t stream);

 private:
  struct Shape {
    uint32_t out_features, in_features;
    Element type, y_type;
    bool bias;
    auto operator<=>(const Shape&) const = default;  // NOLINT(modernize-use-nullptr): not ours
  };
  struct Key {
    Shape shape;
    uint32_t rows;                                 // for which the choice was made
    auto operator<=>(const Key&) const = default;  // NOLINT(modernize-use-nullptr): not ours
  };
  using Algo = std::optional<cublasLtMatmulAlgo_t>;  // none: our kernel
  struct Problem;
  class Tuning;

  StatusOr<std::vector<cublasLtMatmulAlgo_t>> Heuristics(const GemvArgs& matrix, uint32_t rows,
                                                         int most) const;
  StatusOr<cublasLtMatmulAlgo_t> FirstChoice(const Key& key, const GemvArgs& matrix);
  // What rows up to the i-th power of two take.
  StatusOr<const std::vector<Algo>*> Tuned(const GemmArgs& args, cudaStream_t stream);
  StatusOr<Algo> Choose(const GemvArgs& matrix, uint32_t rows, Tuning* tuning);
  void KeepChoices();
  Status Multiply(const GemvArgs& matrix, uint32_t rows, const Algo& algo,
                  cudaStream_t stream) const;

  cublasLtHandle_t handle_ = nullptr;
  void* workspace_ = nullptr;
  uint64_t l2_bytes_ = 0;
  std::map<Key, cublasLtMatmulAlgo_t> chosen_;
  std::map<Shape, std::vector<Algo>> tuned_;
  std::string cache_path_;  // empty: none
  std::optional<AlgoCache> cache_;
};

}  // namespace flotilla::cuda
