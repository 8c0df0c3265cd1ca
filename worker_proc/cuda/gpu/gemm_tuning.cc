#include "worker_proc/cuda/gpu/gemm_tuning.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <optional>
#include <random>

#include "worker_proc/cuda/gpu/cuda_status.h"
#include "worker_proc/cuda/plan/algo_cache.h"

namespace flotilla::cuda {
namespace {

// The library's candidates are asked for these rows, so many of each.
constexpr uint32_t kCandidatesOf[] = {1, 16, 64, 256, 1024, 4096};
constexpr int kCandidates = 8;

Status Allocate(uint64_t bytes, void** memory) {
  return ToStatus(cudaMalloc(memory, std::max<uint64_t>(bytes, 1)),
                  "memory to time matrix products in");
}

}  // namespace

Status LtGemm::Tuning::PrepareToTime() {
  if (begin_ != nullptr) return OkStatus();
  for (const uint32_t rows : kCandidatesOf) {
    ASSIGN_OR_RETURN(const std::vector<cublasLtMatmulAlgo_t> algos,
                     gemm_.Heuristics(matrix_, rows, kCandidates));
    for (const cublasLtMatmulAlgo_t& algo : algos) {
      const bool known = std::any_of(candidates_.begin(), candidates_.end(),
                                     [&](const cublasLtMatmulAlgo_t& other) {
                                       return std::memcmp(&algo, &other, sizeof(algo)) == 0;
                                     });
      if (!known) candidates_.push_back(algo);
    }
  }
  for (cudaEvent_t* event : {&begin_, &end_}) {
    RETURN_IF_ERROR(ToStatus(cudaEventCreate(event), "cudaEventCreate"));
  }
  num_copies_ =
      weight_bytes_ > 2 * gemm_.l2_bytes_ ? 0 : WeightCopies(weight_bytes_, gemm_.l2_bytes_);
  RETURN_IF_ERROR(Allocate(num_copies_ * weight_bytes_, &copies_));
  for (uint32_t i = 0; i < num_copies_; ++i) {
    RETURN_IF_ERROR(
        ToStatus(cudaMemcpyAsync(static_cast<std::byte*>(copies_) + i * weight_bytes_,
                                 matrix_.weight, weight_bytes_, cudaMemcpyDeviceToDevice, stream_),
                 "copy of a weight"));
  }
  return OkStatus();
}

Status LtGemm::Tuning::Prepare(uint32_t most_rows) {
  const uint64_t x_values = uint64_t{most_rows} * matrix_.in_features;
  RETURN_IF_ERROR(Allocate(x_values * ElementBytes(matrix_.type), &x_));
  RETURN_IF_ERROR(
      Allocate(uint64_t{most_rows} * matrix_.out_features * ElementBytes(matrix_.y_type), &y_));
  // Both types of 16 bits have numbers around 1 there.
  std::vector<uint16_t> values(x_values);
  std::minstd_rand random(1);
  const uint32_t one = matrix_.type == Element::kBFloat16 ? 0x3f00 : 0x3800;
  for (uint16_t& value : values) {
    const auto bits = static_cast<uint32_t>(random());
    value = static_cast<uint16_t>((bits & 0x8000) | (one + (bits & 0xff)));
  }
  RETURN_IF_ERROR(ToStatus(
      cudaMemcpyAsync(x_, values.data(), x_values * 2, cudaMemcpyHostToDevice, stream_), "rows"));
  return ToStatus(cudaStreamSynchronize(stream_), "the GPU");
}

GemvArgs LtGemm::Tuning::Here() const {
  GemvArgs matrix = matrix_;
  matrix.x = x_;
  matrix.y = y_;
  return matrix;
}

GemvArgs LtGemm::Tuning::Next() {
  GemvArgs matrix = Here();
  if (next_ > 0) {
    matrix.weight = static_cast<const std::byte*>(copies_) + (next_ - 1) * weight_bytes_;
  }
  next_ = next_ == num_copies_ ? 0 : next_ + 1;
  return matrix;
}

StatusOr<std::vector<std::byte>> LtGemm::Tuning::ResultsFrom(uint32_t begin, uint32_t count) const {
  const uint64_t row_bytes = uint64_t{matrix_.out_features} * ElementBytes(matrix_.y_type);
  std::vector<std::byte> result(count * row_bytes);
  RETURN_IF_ERROR(
      ToStatus(cudaMemcpyAsync(result.data(), static_cast<const std::byte*>(y_) + begin * row_bytes,
                               result.size(), cudaMemcpyDeviceToHost, stream_),
               "copy to the host"));
  RETURN_IF_ERROR(ToStatus(cudaStreamSynchronize(stream_), "a matrix product"));
  return result;
}

Status LtGemm::Tuning::AfterFailure() const {
  cudaGetLastError();  // it was the algorithm's
  return ToStatus(cudaStreamSynchronize(stream_), "a matrix product");
}

StatusOr<float> LtGemm::Tuning::MillisecondsOf(uint32_t rows, const Algo& algo) {
  RETURN_IF_ERROR(gemm_.Multiply(Next(), rows, algo, stream_));  // its code is loaded
  RETURN_IF_ERROR(ToStatus(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal),
                           "capture of matrix products"));
  Status status = OkStatus();
  for (int run = 0; run < kRuns && status.ok(); ++run) {
    status = gemm_.Multiply(Next(), rows, algo, stream_);
  }
  cudaGraph_t graph = nullptr;
  const cudaError_t captured = cudaStreamEndCapture(stream_, &graph);
  status.Update(ToStatus(captured, "capture of matrix products"));
  cudaGraphExec_t launchable = nullptr;
  if (status.ok()) {
    status = ToStatus(cudaGraphInstantiate(&launchable, graph, 0), "cudaGraphInstantiate");
  }
  float best = 0;
  for (int launch = 0; launch < kLaunches && status.ok(); ++launch) {
    const StatusOr<float> ms = MillisecondsOf(launchable);
    status = ms.status();
    if (ms.ok() && (launch == 0 || *ms < best)) best = *ms;
  }
  if (launchable != nullptr) cudaGraphExecDestroy(launchable);
  if (graph != nullptr) cudaGraphDestroy(graph);
  RETURN_IF_ERROR(status);
  return best / kRuns;
}

StatusOr<float> LtGemm::Tuning::MillisecondsOf(cudaGraphExec_t graph) {
  RETURN_IF_ERROR(ToStatus(cudaEventRecord(begin_, stream_), "cudaEventRecord"));
  RETURN_IF_ERROR(ToStatus(cudaGraphLaunch(graph, stream_), "cudaGraphLaunch"));
  RETURN_IF_ERROR(ToStatus(cudaEventRecord(end_, stream_), "cudaEventRecord"));
  RETURN_IF_ERROR(ToStatus(cudaEventSynchronize(end_), "a matrix product"));
  float ms = 0;
  RETURN_IF_ERROR(ToStatus(cudaEventElapsedTime(&ms, begin_, end_), "cudaEventElapsedTime"));
  return ms;
}

// Also at an odd number of rows, which a step without a graph may have.
StatusOr<bool> LtGemm::Tuning::HasOurBits(uint32_t rows, const Algo& algo) const {
  if (!algo.has_value()) return true;
  for (const uint32_t count : {rows, (rows / 2) | 1}) {
    const StatusOr<bool> same = HasOurBitsOf(count, algo);
    if (!same.ok()) RETURN_IF_ERROR(AfterFailure());  // not for so many rows
    if (!same.value_or(false)) return false;
  }
  return true;
}

StatusOr<bool> LtGemm::Tuning::HasOurBitsOf(uint32_t rows, const Algo& algo) const {
  const uint32_t some = RowsToCompare(rows);
  const uint32_t begins[] = {0, rows - some};
  RETURN_IF_ERROR(gemm_.Multiply(Here(), rows, algo, stream_));
  std::vector<std::byte> results[std::size(begins)];
  for (size_t i = 0; i < std::size(begins); ++i) {
    ASSIGN_OR_RETURN(results[i], ResultsFrom(begins[i], some));
  }
  for (size_t i = 0; i < std::size(begins); ++i) {
    GemvArgs ours = Here();
    ours.x = static_cast<const std::byte*>(x_) +
             uint64_t{begins[i]} * matrix_.in_features * ElementBytes(matrix_.type);
    RETURN_IF_ERROR(gemm_.Multiply(ours, some, std::nullopt, stream_));
    ASSIGN_OR_RETURN(const std::vector<std::byte> expected, ResultsFrom(0, some));
    if (expected != results[i]) return false;
  }
  return true;
}

StatusOr<LtGemm::Algo> LtGemm::Tuning::Fastest(uint32_t rows) {
  RETURN_IF_ERROR(PrepareToTime());
  std::vector<Timed> timed;
  for (const cublasLtMatmulAlgo_t& candidate : candidates_) {
    const StatusOr<float> ms = MillisecondsOf(rows, candidate);
    if (!ms.ok()) {
      RETURN_IF_ERROR(AfterFailure());  // not for so many rows
      continue;
    }
    timed.push_back({candidate, *ms});
  }
  if (rows <= kSkinnyRows) {
    ASSIGN_OR_RETURN(const float ms, MillisecondsOf(rows, std::nullopt));
    timed.push_back({std::nullopt, ms});
  }
  std::sort(timed.begin(), timed.end(), [](const Timed& a, const Timed& b) { return a.ms < b.ms; });
  for (const Timed& candidate : timed) {
    ASSIGN_OR_RETURN(const bool good, HasOurBits(rows, candidate.algo));
    if (good) return candidate.algo;
  }
  return Algo();
}

}  // namespace flotilla::cuda
