#include "worker_proc/cuda/gpu/gemm.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <random>

#include "common/base/log.h"
#include "worker_proc/cuda/gpu/cuda_status.h"
#include "worker_proc/cuda/plan/algo_cache.h"

namespace flotilla::cuda {
namespace {

// Of what all steps multiply with one algorithm: a tile that suits decodes and prompts alike.
constexpr uint32_t kInvariantRows = 64;
// The library's candidates are asked for these rows, so many of each.
constexpr uint32_t kCandidatesOf[] = {1, 16, 64, 256, 1024, 4096};
constexpr int kCandidates = 8;
// Rows up to this are chosen for at once.
constexpr uint32_t kLeastTunedRows = 256;

// Choices are made for 1, 2, 4 … rows: which of them so many take.
size_t BucketOf(uint32_t rows) { return static_cast<size_t>(std::bit_width(rows - 1)); }

Status LtStatus(cublasStatus_t status, std::string_view what) {
  if (status == CUBLAS_STATUS_SUCCESS) return OkStatus();
  const std::string text = StrCat(what, ": ", cublasLtGetStatusString(status));
  if (status == CUBLAS_STATUS_NOT_SUPPORTED) return absl::UnimplementedError(text);
  return absl::InternalError(text);
}

cudaDataType_t TypeOf(Element element) {
  switch (element) {
    case Element::kFloat32:
      return CUDA_R_32F;
    case Element::kBFloat16:
      return CUDA_R_16BF;
    case Element::kFloat16:
      return CUDA_R_16F;
  }
  return CUDA_R_32F;
}

// The library's descriptors are destroyed with this.
template <typename T, cublasStatus_t (*destroy)(T)>
class Owned {
 public:
  Owned() = default;
  ~Owned() {
    if (handle_ != nullptr) destroy(handle_);
  }
  Owned(const Owned&) = delete;
  Owned& operator=(const Owned&) = delete;
  T* out() { return &handle_; }
  operator T() const { return handle_; }  // NOLINT(google-explicit-constructor)

 private:
  T handle_ = nullptr;
};

}  // namespace

// The library's matrices are column-major: W, row-major, is its transpose there, and so is y. So
// y^T [out, rows] = (W^T)^T x^T.
struct LtGemm::Problem {
  Owned<cublasLtMatmulDesc_t, cublasLtMatmulDescDestroy> operation;
  Owned<cublasLtMatrixLayout_t, cublasLtMatrixLayoutDestroy> weight, x, y;

  Status Describe(const GemvArgs& matrix, uint32_t rows) {
    RETURN_IF_ERROR(LtStatus(
        cublasLtMatmulDescCreate(operation.out(), CUBLAS_COMPUTE_32F, CUDA_R_32F), "operation"));
    const cublasOperation_t transposed = CUBLAS_OP_T;
    RETURN_IF_ERROR(Set(CUBLASLT_MATMUL_DESC_TRANSA, transposed));
    if (matrix.bias != nullptr) {
      const cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_BIAS;
      const cudaDataType_t bias_type = CUDA_R_32F;
      RETURN_IF_ERROR(Set(CUBLASLT_MATMUL_DESC_EPILOGUE, epilogue));
      RETURN_IF_ERROR(Set(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, bias_type));
      RETURN_IF_ERROR(Set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, matrix.bias));
    }
    const uint64_t in = matrix.in_features;
    const uint64_t out = matrix.out_features;
    const auto ld = [](uint64_t columns) { return static_cast<int64_t>(columns); };
    const cudaDataType_t type = TypeOf(matrix.type);
    RETURN_IF_ERROR(
        LtStatus(cublasLtMatrixLayoutCreate(weight.out(), type, in, out, ld(in)), "weight"));
    RETURN_IF_ERROR(LtStatus(cublasLtMatrixLayoutCreate(x.out(), type, in, rows, ld(in)), "x"));
    return LtStatus(cublasLtMatrixLayoutCreate(y.out(), TypeOf(matrix.y_type), out, rows, ld(out)),
                    "y");
  }

 private:
  template <typename T>
  Status Set(cublasLtMatmulDescAttributes_t attribute, const T& value) {
    return LtStatus(cublasLtMatmulDescSetAttribute(operation, attribute, &value, sizeof(value)),
                    "operation");
  }
};

LtGemm::~LtGemm() {
  if (workspace_ != nullptr) cudaFree(workspace_);
  if (handle_ != nullptr) cublasLtDestroy(handle_);
}

Status LtGemm::Open(uint64_t l2_bytes) {
  l2_bytes_ = l2_bytes;
  RETURN_IF_ERROR(LtStatus(cublasLtCreate(&handle_), "cublasLtCreate"));
  return ToStatus(cudaMalloc(&workspace_, kWorkspaceBytes), "workspace of matrix products");
}

// The library's best, the best first. None of them splits k.
StatusOr<std::vector<cublasLtMatmulAlgo_t>> LtGemm::Heuristics(const GemvArgs& matrix,
                                                               uint32_t rows, int most) const {
  Problem problem;
  RETURN_IF_ERROR(problem.Describe(matrix, rows));
  Owned<cublasLtMatmulPreference_t, cublasLtMatmulPreferenceDestroy> preference;
  RETURN_IF_ERROR(LtStatus(cublasLtMatmulPreferenceCreate(preference.out()), "preference"));
  const size_t bytes = kWorkspaceBytes;
  RETURN_IF_ERROR(
      LtStatus(cublasLtMatmulPreferenceSetAttribute(
                   preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &bytes, sizeof(bytes)),
               "preference"));
  const uint32_t no_splits = CUBLASLT_REDUCTION_SCHEME_NONE;
  RETURN_IF_ERROR(LtStatus(
      cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
                                           &no_splits, sizeof(no_splits)),
      "preference"));
  std::vector<cublasLtMatmulHeuristicResult_t> results(static_cast<size_t>(most));
  int found = 0;
  const cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(
      handle_, problem.operation, problem.weight, problem.x, problem.y, problem.y, preference, most,
      results.data(), &found);
  if (status != CUBLAS_STATUS_NOT_SUPPORTED) {
    RETURN_IF_ERROR(LtStatus(status, "choice of a matrix product"));
  }
  std::vector<cublasLtMatmulAlgo_t> algos;
  for (int i = 0; i < found; ++i) algos.push_back(results[static_cast<size_t>(i)].algo);
  return algos;
}

StatusOr<cublasLtMatmulAlgo_t> LtGemm::FirstChoice(const Key& key, const GemvArgs& matrix) {
  if (const auto found = chosen_.find(key); found != chosen_.end()) return found->second;
  ASSIGN_OR_RETURN(const std::vector<cublasLtMatmulAlgo_t> algos, Heuristics(matrix, key.rows, 1));
  if (algos.empty()) {
    return absl::UnimplementedError(StrCat("no matrix product of ", matrix.out_features, " x ",
                                           matrix.in_features, " for ", key.rows, " rows"));
  }
  chosen_.emplace(key, algos[0]);
  return algos[0];
}

Status LtGemm::Multiply(const GemvArgs& matrix, uint32_t rows, const Algo& algo,
                        cudaStream_t stream) const {
  if (!algo.has_value()) {
    SkinnyGemmArgs part = {matrix, 0};
    const size_t x_bytes = size_t{matrix.in_features} * ElementBytes(matrix.type);
    const size_t y_bytes = size_t{matrix.out_features} * ElementBytes(matrix.y_type);
    for (uint32_t row = 0; row < rows; row += part.rows) {
      part.rows = std::min(kSkinnyRows, rows - row);
      part.matrix.x = static_cast<const std::byte*>(matrix.x) + row * x_bytes;
      part.matrix.y = static_cast<std::byte*>(matrix.y) + row * y_bytes;
      gpu::Kernels().skinny_gemm(part, stream);
    }
    return OkStatus();
  }
  Problem problem;
  RETURN_IF_ERROR(problem.Describe(matrix, rows));
  const float one = 1;
  const float zero = 0;
  return LtStatus(cublasLtMatmul(handle_, problem.operation, &one, matrix.weight, problem.weight,
                                 matrix.x, problem.x, &zero, matrix.y, problem.y, matrix.y,
                                 problem.y, &*algo, workspace_, kWorkspaceBytes, stream),
                  StrCat("matrix product of ", matrix.out_features, " x ", matrix.in_features,
                         " for ", rows, " rows"));
}

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
  // The fastest with our kernel's bits.
  StatusOr<Algo> Fastest(uint32_t rows);

 private:
  struct Timed {
    Algo algo;
    float ms = 0;
  };
  static constexpr int kRuns = 8;
  static constexpr int kLaunches = 3;
  // Rows of which bits are compared, and fewer of very long ones.
  uint32_t RowsToCompare(uint32_t rows) const {
    constexpr uint32_t kLong = 32 << 10;
    return std::min(rows, matrix_.out_features > kLong ? 1 : kSkinnyRows);
  }
  StatusOr<std::vector<std::byte>> ResultOf(uint32_t rows, const Algo& algo) const;
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

Status LtGemm::Tuning::Prepare(uint32_t most_rows) {
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
  const uint64_t x_values = uint64_t{most_rows} * matrix_.in_features;
  const auto allocate = [](void** memory, uint64_t bytes) {
    return ToStatus(cudaMalloc(memory, std::max<uint64_t>(bytes, 1)),
                    "memory to time matrix products in");
  };
  RETURN_IF_ERROR(allocate(&x_, x_values * ElementBytes(matrix_.type)));
  RETURN_IF_ERROR(
      allocate(&y_, uint64_t{most_rows} * matrix_.out_features * ElementBytes(matrix_.y_type)));
  RETURN_IF_ERROR(allocate(&copies_, num_copies_ * weight_bytes_));
  for (uint32_t i = 0; i < num_copies_; ++i) {
    RETURN_IF_ERROR(
        ToStatus(cudaMemcpyAsync(static_cast<std::byte*>(copies_) + i * weight_bytes_,
                                 matrix_.weight, weight_bytes_, cudaMemcpyDeviceToDevice, stream_),
                 "copy of a weight"));
  }
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

StatusOr<std::vector<std::byte>> LtGemm::Tuning::ResultOf(uint32_t rows, const Algo& algo) const {
  RETURN_IF_ERROR(gemm_.Multiply(Here(), rows, algo, stream_));
  std::vector<std::byte> result(uint64_t{RowsToCompare(rows)} * matrix_.out_features *
                                ElementBytes(matrix_.y_type));
  RETURN_IF_ERROR(
      ToStatus(cudaMemcpyAsync(result.data(), y_, result.size(), cudaMemcpyDeviceToHost, stream_),
               "copy to the host"));
  RETURN_IF_ERROR(ToStatus(cudaStreamSynchronize(stream_), "a matrix product"));
  return result;
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
  if (status.ok()) status = ToStatus(captured, "capture of matrix products");
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

StatusOr<LtGemm::Algo> LtGemm::Tuning::Fastest(uint32_t rows) {
  std::vector<Timed> timed;
  for (const cublasLtMatmulAlgo_t& candidate : candidates_) {
    const StatusOr<float> ms = MillisecondsOf(rows, candidate);
    if (absl::IsUnimplemented(ms.status())) continue;  // not for so many rows
    RETURN_IF_ERROR(ms.status());
    timed.push_back({candidate, *ms});
  }
  if (rows <= kSkinnyRows) {
    ASSIGN_OR_RETURN(const float ms, MillisecondsOf(rows, std::nullopt));
    timed.push_back({std::nullopt, ms});
  }
  std::sort(timed.begin(), timed.end(), [](const Timed& a, const Timed& b) { return a.ms < b.ms; });
  ASSIGN_OR_RETURN(const std::vector<std::byte> expected,
                   ResultOf(RowsToCompare(rows), std::nullopt));
  for (const Timed& candidate : timed) {
    if (!candidate.algo.has_value()) return candidate.algo;
    ASSIGN_OR_RETURN(const std::vector<std::byte> result, ResultOf(rows, candidate.algo));
    if (result == expected) return candidate.algo;
  }
  return Algo();
}

StatusOr<const std::vector<LtGemm::Algo>*> LtGemm::Tuned(const GemmArgs& args,
                                                         cudaStream_t stream) {
  const GemvArgs& matrix = args.matrix;
  std::vector<Algo>& choices = tuned_[{matrix.out_features, matrix.in_features, matrix.type,
                                       matrix.y_type, matrix.bias != nullptr}];
  if (choices.size() > BucketOf(args.rows)) return &choices;
  const uint32_t most_rows = std::bit_ceil(std::max(args.rows, kLeastTunedRows));
  Tuning tuning(*this, matrix, stream);
  RETURN_IF_ERROR(tuning.Prepare(most_rows));
  std::string ours;
  while (choices.size() <= BucketOf(most_rows)) {
    ASSIGN_OR_RETURN(const Algo algo, tuning.Fastest(1u << choices.size()));
    if (!algo.has_value()) ours += StrCat(ours.empty() ? "" : ",", 1u << choices.size());
    choices.push_back(algo);
  }
  Log().info("matrix product timed {} {} {} {}", Kv("out", matrix.out_features),
             Kv("in", matrix.in_features), Kv("up_to_rows", most_rows),
             Kv("own_kernel_for_rows", ours));
  return &choices;
}

Status LtGemm::Run(const GemmArgs& args, cudaStream_t stream) {
  const GemvArgs& matrix = args.matrix;
  if (args.rows == 0) return OkStatus();
  if (args.batch_invariant && HasSkinnyGemm(matrix)) {
    ASSIGN_OR_RETURN(const std::vector<Algo>* const choices, Tuned(args, stream));
    return Multiply(matrix, args.rows, (*choices)[BucketOf(args.rows)], stream);
  }
  const uint32_t chosen_for = args.batch_invariant ? kInvariantRows : std::bit_ceil(args.rows);
  ASSIGN_OR_RETURN(const cublasLtMatmulAlgo_t algo,
                   FirstChoice({{matrix.out_features, matrix.in_features, matrix.type,
                                 matrix.y_type, matrix.bias != nullptr},
                                chosen_for},
                               matrix));
  return Multiply(matrix, args.rows, algo, stream);
}

}  // namespace flotilla::cuda
