// Matrix products by cuBLASLt: y = x W^T (+ bias), sums in float.
//
// Batch-invariant: a matrix has one algorithm for any number of rows, without splits of the summed
// dimension, so that a row's bits depend on that row only. Otherwise the library's first choice for
// each power of two of rows.
//
// Units: elements, rows, bytes. Threads: the stream's. Ownership: owns the library's handle and its
// workspace; the stream outlives it. Errors: Internal with the library's code; Unimplemented: no
// algorithm has this shape. Source: cuBLASLt's documentation (CUDA 13).
#pragma once

#include <cublasLt.h>
#include <cuda_runtime_api.h>

#include <compare>
#include <map>

#include "common/base/status.h"
#include "worker_proc/cuda/device.h"

namespace flotilla::cuda {

class LtGemm {
 public:
  static constexpr size_t kWorkspaceBytes = size_t{32} << 20;

  LtGemm() = default;
  ~LtGemm();
  LtGemm(const LtGemm&) = delete;
  LtGemm& operator=(const LtGemm&) = delete;

  Status Open();
  Status Run(const GemmArgs& args, cudaStream_t stream);

 private:
  // What algorithms are chosen by; rows: for which the choice was made.
  struct Key {
    uint32_t out_features, in_features, rows;
    Element type, y_type;
    bool bias;
    auto operator<=>(const Key&) const = default;  // NOLINT(modernize-use-nullptr): not ours
  };
  struct Problem;
  StatusOr<cublasLtMatmulAlgo_t> Choose(const Key& key, const GemvArgs& matrix);

  cublasLtHandle_t handle_ = nullptr;
  void* workspace_ = nullptr;
  std::map<Key, cublasLtMatmulAlgo_t> chosen_;
};

}  // namespace flotilla::cuda
