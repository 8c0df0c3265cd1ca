// Which algorithm multiplies one matrix fastest: a part of gemm.cc.
//
// Units: rows, bytes, ms. Threads: the stream's. Ownership: owns the memory it multiplies in; the
// product and the matrix outlive it. Errors: as LtGemm's. Source: ours.
#pragma once

#include <cublasLt.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "common/base/status.h"
#include "worker_proc/cuda/gpu/gemm.h"

namespace flotilla::cuda {

// Memory to multiply in and the times of candidates, of one matrix.
class LtGemm::Tuning {
 public:
  Tuning(const LtGemm& gemm, const GemvArgs& matrix, cudaStream_t stream)
      : gemm_(gemm),
        matrix_(matrix),
        weight_bytes_(uint64_t{matrix.out_features} * matrix.in_features *
                      ElementBytes(matrix.type)),
        stream_(stream) {}
  ~Tuning() {
    for (void* memory : {x_, y_, copies_}) cudaFree(memory);
    for (cudaEvent_t event : {begin_, end_}) {
      if (event != nullptr) cudaEventDestroy(event);
    }
  }
  Tuning(const Tuning&) = delete;
  Tuning& operator=(const Tuning&) = delete;

  Status Prepare(uint32_t most_rows);
  // The fastest with our kernel's bits. Prepares for it at the first call.
  StatusOr<Algo> Fastest(uint32_t rows);
  StatusOr<bool> HasOurBits(uint32_t rows, const Algo& algo) const;

 private:
  struct Timed {
    Algo algo;
    float ms = 0;
  };
  static constexpr int kRuns = 8;
  static constexpr int kLaunches = 3;
  // Rows of which bits are compared, the first and the last ones, and fewer of very long ones.
  uint32_t RowsToCompare(uint32_t rows) const {
    constexpr uint32_t kLong = 32 << 10;
    return std::min(rows, matrix_.out_features > kLong ? 1 : kSkinnyRows);
  }
  // Of the first `count` rows in memory, those from `begin` on; the copy lies on the host.
  StatusOr<std::vector<std::byte>> ResultsFrom(uint32_t begin, uint32_t count) const;
  StatusOr<bool> HasOurBitsOf(uint32_t rows, const Algo& algo) const;
  // An algorithm that failed is none of the matrix's, unless nothing works any more.
  Status AfterFailure() const;
  Status PrepareToTime();
  // Of one product, several behind each other in a graph, as steps have them.
  StatusOr<float> MillisecondsOf(uint32_t rows, const Algo& algo);
  StatusOr<float> MillisecondsOf(cudaGraphExec_t graph);
  // The matrix with rows and results in this memory; the next copy of the weight.
  GemvArgs Here() const;
  GemvArgs Next();

  const LtGemm& gemm_;
  const GemvArgs matrix_;
  const uint64_t weight_bytes_;
  const cudaStream_t stream_;
  std::vector<cublasLtMatmulAlgo_t> candidates_;
  void* x_ = nullptr;
  void* y_ = nullptr;
  void* copies_ = nullptr;
  uint32_t num_copies_ = 0;  // beside the weight itself
  uint32_t next_ = 0;
  cudaEvent_t begin_ = nullptr;
  cudaEvent_t end_ = nullptr;
};

}  // namespace flotilla::cuda
