#include "worker_proc/cuda/gpu/gemm.h"

#include <bit>

#include "worker_proc/cuda/gpu/cuda_status.h"

namespace flotilla::cuda {
namespace {

// Of what all steps multiply with one algorithm: a tile that suits decodes and prompts alike.
constexpr uint32_t kInvariantRows = 64;

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

Status LtGemm::Open() {
  RETURN_IF_ERROR(LtStatus(cublasLtCreate(&handle_), "cublasLtCreate"));
  return ToStatus(cudaMalloc(&workspace_, kWorkspaceBytes), "workspace of matrix products");
}

StatusOr<cublasLtMatmulAlgo_t> LtGemm::Choose(const Key& key, const GemvArgs& matrix) {
  if (const auto found = chosen_.find(key); found != chosen_.end()) return found->second;
  Problem problem;
  RETURN_IF_ERROR(problem.Describe(matrix, key.rows));
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
  cublasLtMatmulHeuristicResult_t best = {};
  int found = 0;
  RETURN_IF_ERROR(
      LtStatus(cublasLtMatmulAlgoGetHeuristic(handle_, problem.operation, problem.weight, problem.x,
                                              problem.y, problem.y, preference, 1, &best, &found),
               "choice of a matrix product"));
  if (found == 0) {
    return absl::UnimplementedError(StrCat("no matrix product of ", key.out_features, " x ",
                                           key.in_features, " for ", key.rows, " rows"));
  }
  chosen_.emplace(key, best.algo);
  return best.algo;
}

Status LtGemm::Run(const GemmArgs& args, cudaStream_t stream) {
  const GemvArgs& matrix = args.matrix;
  const uint32_t chosen_for = args.batch_invariant ? kInvariantRows : std::bit_ceil(args.rows);
  ASSIGN_OR_RETURN(const cublasLtMatmulAlgo_t algo,
                   Choose({matrix.out_features, matrix.in_features, chosen_for, matrix.type,
                           matrix.y_type, matrix.bias != nullptr},
                          matrix));
  Problem problem;
  RETURN_IF_ERROR(problem.Describe(matrix, args.rows));
  const float one = 1;
  const float zero = 0;
  return LtStatus(cublasLtMatmul(handle_, problem.operation, &one, matrix.weight, problem.weight,
                                 matrix.x, problem.x, &zero, matrix.y, problem.y, matrix.y,
                                 problem.y, &algo, workspace_, kWorkspaceBytes, stream),
                  StrCat("matrix product of ", matrix.out_features, " x ", matrix.in_features,
                         " for ", args.rows, " rows"));
}

}  // namespace flotilla::cuda
