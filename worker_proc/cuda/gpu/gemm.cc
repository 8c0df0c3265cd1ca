#include "worker_proc/cuda/gpu/gemm.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <filesystem>
#include <system_error>

#include "common/base/build_revision.h"
#include "common/base/log.h"
#include "worker_proc/cuda/gpu/cuda_status.h"
#include "worker_proc/cuda/gpu/gemm_tuning.h"

namespace flotilla::cuda {
namespace {

// Of what all steps multiply with one algorithm: a tile that suits decodes and prompts alike.
constexpr uint32_t kInvariantRows = 64;
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

// Of elements and epilogue.
uint32_t TypeCode(const GemvArgs& matrix) {
  return static_cast<uint32_t>(matrix.type) << 16 | static_cast<uint32_t>(matrix.y_type) << 8 |
         (matrix.bias != nullptr ? 1 : 0);
}

// All zeros, which are none of the library's: our kernel.
std::optional<cublasLtMatmulAlgo_t> FromCache(const GemmAlgo& bytes) {
  if (bytes == GemmAlgo{}) return std::nullopt;
  cublasLtMatmulAlgo_t algo;
  static_assert(sizeof(algo) == sizeof(bytes));
  std::memcpy(&algo, bytes.data(), sizeof(algo));
  return algo;
}

GemmAlgo ForCache(const std::optional<cublasLtMatmulAlgo_t>& algo) {
  GemmAlgo bytes = {};
  if (algo.has_value()) std::memcpy(bytes.data(), &*algo, sizeof(bytes));
  return bytes;
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

Status LtGemm::Open(const Options& options) {
  l2_bytes_ = options.l2_bytes;
  RETURN_IF_ERROR(LtStatus(cublasLtCreate(&handle_), "cublasLtCreate"));
  cache_.emplace(options.gpu,
                 StrCat("cuBLASLt ", cublasLtGetVersion(), ", kernels of ", BuildRevision()));
  if (!options.cache_dir.empty()) {
    std::string gpu = options.gpu;
    std::replace_if(
        gpu.begin(), gpu.end(), [](char c) { return c == ' ' || c == '/'; }, '-');
    cache_path_ = StrCat(options.cache_dir, "/algorithms-", gpu, ".bin");
    const Status loaded = cache_->Load(cache_path_);
    Log().info("algorithms of matrix products {} {} {}", Kv("file", cache_path_),
               Kv("known", cache_->size()), Kv("status", std::string(loaded.message())));
  }
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
  for (int i = 0; i < found; ++i) {
    const cublasLtMatmulHeuristicResult_t& result = results[static_cast<size_t>(i)];
    if (result.state == CUBLAS_STATUS_SUCCESS) algos.push_back(result.algo);
  }
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
  const cublasStatus_t status = cublasLtMatmul(
      handle_, problem.operation, &one, matrix.weight, problem.weight, matrix.x, problem.x, &zero,
      matrix.y, problem.y, matrix.y, problem.y, &*algo, workspace_, kWorkspaceBytes, stream);
  if (status == CUBLAS_STATUS_SUCCESS) return OkStatus();
  const std::string what = StrCat("matrix product of ", matrix.out_features, " x ",
                                  matrix.in_features, " for ", rows, " rows");
  // So it says of an algorithm that is not for so many rows, or not with our workspace.
  if (status == CUBLAS_STATUS_INVALID_VALUE || status == CUBLAS_STATUS_ARCH_MISMATCH) {
    return absl::UnimplementedError(StrCat(what, ": ", cublasLtGetStatusString(status)));
  }
  return LtStatus(status, what);
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
  bool slow = false;
  while (choices.size() <= BucketOf(most_rows)) {
    const uint32_t rows = 1u << choices.size();
    ASSIGN_OR_RETURN(const Algo algo, Choose(matrix, rows, &tuning));
    if (!algo.has_value()) ours += StrCat(ours.empty() ? "" : ",", rows);
    slow = slow || (!algo.has_value() && rows > kSkinnyRows);
    choices.push_back(algo);
  }
  if (slow) {
    Log().warn("a matrix product is slow for many rows {} {} {} {}", Kv("out", matrix.out_features),
               Kv("in", matrix.in_features),
               Kv("because", "no algorithm of the library adds in the order of our kernel"),
               Kv("use", "--disable-batch-invariance"));
  }
  Log().info("matrix product timed {} {} {} {}", Kv("out", matrix.out_features),
             Kv("in", matrix.in_features), Kv("up_to_rows", most_rows),
             Kv("own_kernel_for_rows", ours));
  KeepChoices();
  return &choices;
}

StatusOr<LtGemm::Algo> LtGemm::Choose(const GemvArgs& matrix, uint32_t rows, Tuning* tuning) {
  const GemmKey key = {rows, matrix.out_features, matrix.in_features, TypeCode(matrix)};
  if (const GemmAlgo* known = cache_->Find(key)) {
    const Algo algo = FromCache(*known);
    const StatusOr<bool> good = tuning->HasOurBits(rows, algo);  // whatever is wrong: timed again
    if (good.ok() && *good) return algo;
  }
  ASSIGN_OR_RETURN(const Algo algo, tuning->Fastest(rows));
  cache_->Remember(key, ForCache(algo));
  return algo;
}

void LtGemm::KeepChoices() {
  if (cache_path_.empty() || !cache_->changed()) return;
  std::error_code error;
  std::filesystem::create_directories(std::filesystem::path(cache_path_).parent_path(), error);
  const Status saved = cache_->Save(cache_path_);
  if (saved.ok()) return;
  Log().warn("algorithms of matrix products are not kept {}",
             Kv("error", std::string(saved.message())));
  cache_path_.clear();
}

Status LtGemm::Run(const GemmArgs& args, cudaStream_t stream) {
  const GemvArgs& matrix = args.matrix;
  if (args.rows == 0 || matrix.out_features == 0) return OkStatus();
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
