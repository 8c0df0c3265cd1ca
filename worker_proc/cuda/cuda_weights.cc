#include "worker_proc/cuda/cuda_weights.h"

#include <algorithm>
#include <utility>

#include "common/checkpoint/half.h"
#include "worker_proc/model/rope_angles.h"

namespace flotilla::cuda {
namespace {

constexpr uint64_t kChunkBytes = uint64_t{2} << 20;

bool SameType(DType file, Element element) {
  return (file == DType::kF32 && element == Element::kFloat32) ||
         (file == DType::kF16 && element == Element::kFloat16) ||
         (file == DType::kBF16 && element == Element::kBFloat16);
}

}  // namespace

StatusOr<const void*> WeightStore::BlocksOf(const TensorView& view, uint64_t begin, uint64_t end) {
  if (view.dtype != DType::kF8E4M3) return view.data.data() + begin * view.row_bytes();
  blocks_.resize((end - begin) * PackedRowBytes(view));
  RETURN_IF_ERROR(PackFloat8(view, begin, end, blocks_.data()));
  return blocks_.data();
}

const void* WeightStore::ElementsOf(const TensorView& view, uint64_t begin, uint64_t end) {
  if (SameType(view.dtype, element_)) return view.data.data() + begin * view.row_bytes();
  floats_.resize((end - begin) * view.cols);
  DequantizeRows(view, begin, end, floats_.data());
  if (element_ == Element::kFloat32) return floats_.data();
  halves_.resize(floats_.size());
  std::transform(floats_.begin(), floats_.end(), halves_.begin(),
                 element_ == Element::kFloat16 ? FloatToHalf : FloatToBFloat16);
  return halves_.data();
}

// In chunks, so that little memory is needed beside the device's.
Status WeightStore::UploadRows(const WeightRows& rows, bool packed, std::byte* to) {
  const uint64_t row_bytes = RowBytes(*rows.view, packed);
  const uint64_t chunk = std::max<uint64_t>(1, kChunkBytes / row_bytes);
  for (uint64_t begin = rows.begin; begin < rows.end; begin += chunk) {
    const uint64_t end = std::min(rows.end, begin + chunk);
    heartbeat_.Beat();
    const void* from = nullptr;
    if (packed) {
      ASSIGN_OR_RETURN(from, BlocksOf(*rows.view, begin, end));
    } else {
      from = ElementsOf(*rows.view, begin, end);
    }
    device_.Upload(from, (end - begin) * row_bytes, to);
    to += (end - begin) * row_bytes;
  }
  return OkStatus();
}

// Packed neighbours of one type are one matrix.
StatusOr<SharedMatrix> WeightStore::Matrix(std::span<const WeightRows> rows) {
  const bool packed = std::all_of(
      rows.begin(), rows.end(), [&](const WeightRows& part) { return MayStayPacked(*part.view); });
  uint64_t bytes = packed ? kPackedEnd : 0;
  for (const WeightRows& part : rows) {
    bytes += (part.end - part.begin) * RowBytes(*part.view, packed);
  }
  auto matrix = std::make_shared<CudaMatrix>();
  ASSIGN_OR_RETURN(matrix->buffer, device_.Allocate(bytes));
  std::byte* to = matrix->buffer.data();
  std::vector<PackedRows>& runs = matrix->packed;
  for (const WeightRows& part : rows) {
    const uint64_t count = part.end - part.begin;
    if (packed) {
      const DType dtype = part.view->dtype;
      if (runs.empty() || runs.back().dtype != dtype) runs.push_back({dtype, 0, to});
      runs.back().rows += static_cast<uint32_t>(count);
    }
    RETURN_IF_ERROR(UploadRows(part, packed, to));
    to += count * RowBytes(*part.view, packed);
  }
  matrix_bytes_ += bytes;
  return SharedMatrix(std::move(matrix));
}

StatusOr<SharedMatrix> WeightStore::WholeMatrix(const TensorView& view) {
  SharedMatrix& matrix = whole_[view.data.data()];
  if (matrix == nullptr) {
    const WeightRows rows[] = {{&view, 0, view.rows}};
    ASSIGN_OR_RETURN(matrix, Matrix(rows));
  }
  return matrix;
}

StatusOr<DeviceBuffer> WeightStore::Floats(std::span<const float> values, uint64_t* bytes) {
  ASSIGN_OR_RETURN(DeviceBuffer buffer, device_.Allocate(values.size_bytes()));
  device_.Upload(values.data(), values.size_bytes(), buffer.data());
  *bytes += values.size_bytes();
  return buffer;
}

StatusOr<std::unique_ptr<LinearWeight>> WeightStore::LoadLinear(std::span<const WeightRows> rows) {
  auto weight = std::make_unique<CudaLinear>();
  std::vector<float> bias;
  for (const WeightRows& part : rows) {
    weight->in_features = static_cast<uint32_t>(part.view->cols);
    weight->out_features += static_cast<uint32_t>(part.end - part.begin);
    if (part.bias == nullptr) continue;
    std::vector<float> all(part.bias->cols);
    DequantizeRows(*part.bias, 0, 1, all.data());
    bias.insert(bias.end(), all.begin() + static_cast<ptrdiff_t>(part.begin),
                all.begin() + static_cast<ptrdiff_t>(part.end));
  }
  const bool whole = rows.size() == 1 && rows[0].begin == 0 && rows[0].end == rows[0].view->rows;
  ASSIGN_OR_RETURN(weight->matrix, whole ? WholeMatrix(*rows[0].view) : Matrix(rows));
  if (!bias.empty()) {
    ASSIGN_OR_RETURN(weight->bias, Floats(bias, &other_bytes_));
  }
  return std::unique_ptr<LinearWeight>(std::move(weight));
}

StatusOr<std::unique_ptr<ExpertsWeight>> WeightStore::LoadExperts(
    std::span<const std::vector<WeightRows>> experts) {
  auto all = std::make_unique<CudaExpertsWeight>();
  all->num_experts = static_cast<uint32_t>(experts.size());
  all->in_features = static_cast<uint32_t>(experts[0][0].view->cols);
  for (const WeightRows& part : experts[0]) {
    all->out_features += static_cast<uint32_t>(part.end - part.begin);
  }
  const uint64_t row_bytes = uint64_t{all->in_features} * ElementBytes(element_);
  const uint64_t bytes = experts.size() * all->out_features * row_bytes;
  ASSIGN_OR_RETURN(all->matrices, device_.Allocate(bytes));
  std::byte* to = all->matrices.data();
  for (const std::vector<WeightRows>& rows : experts) {
    for (const WeightRows& part : rows) {
      CHECK(part.bias == nullptr && IsExperts(*part.view));
      RETURN_IF_ERROR(UploadRows(part, false, to));
      to += (part.end - part.begin) * row_bytes;
    }
  }
  CHECK(to == all->matrices.data() + bytes);
  matrix_bytes_ += bytes;
  return std::unique_ptr<ExpertsWeight>(std::move(all));
}

StatusOr<std::unique_ptr<LinearWeight>> WeightStore::LoadRouter(const TensorView& view) {
  std::vector<float> values(view.rows * view.cols);
  DequantizeRows(view, 0, view.rows, values.data());
  auto matrix = std::make_shared<CudaMatrix>();
  ASSIGN_OR_RETURN(matrix->buffer, Floats(values, &matrix_bytes_));
  auto router = std::make_unique<CudaLinear>();
  router->in_features = static_cast<uint32_t>(view.cols);
  router->out_features = static_cast<uint32_t>(view.rows);
  router->matrix = std::move(matrix);
  return std::unique_ptr<LinearWeight>(std::move(router));
}

StatusOr<std::unique_ptr<VectorWeight>> WeightStore::LoadVector(const TensorView& view,
                                                                const VectorChange& change) {
  std::vector<float> values(view.cols);
  DequantizeRows(view, 0, 1, values.data());
  for (float& value : values) value = change.Of(value);
  auto weight = std::make_unique<CudaVector>();
  weight->size = static_cast<uint32_t>(view.cols);
  ASSIGN_OR_RETURN(weight->values, Floats(values, &other_bytes_));
  return std::unique_ptr<VectorWeight>(std::move(weight));
}

StatusOr<std::unique_ptr<EmbeddingWeight>> WeightStore::LoadEmbedding(const TensorView& view) {
  auto weight = std::make_unique<CudaEmbedding>();
  weight->rows = static_cast<uint32_t>(view.rows);
  weight->cols = static_cast<uint32_t>(view.cols);
  ASSIGN_OR_RETURN(weight->matrix, WholeMatrix(view));
  return std::unique_ptr<EmbeddingWeight>(std::move(weight));
}

StatusOr<std::unique_ptr<RopeTable>> WeightStore::MakeRope(const RopeSpec& spec) {
  auto rope = std::make_unique<CudaRope>();
  rope->spec = spec;
  std::vector<float> table(static_cast<size_t>(spec.max_positions) * spec.dim);
  const std::vector<double> frequencies = RopeFrequencies(spec);
  for (uint32_t position = 0; position < spec.max_positions; ++position) {
    RopeAngles(frequencies, position, spec.magnitude,
               table.data() + static_cast<size_t>(position) * spec.dim);
  }
  ASSIGN_OR_RETURN(rope->table, Floats(table, &other_bytes_));
  return std::unique_ptr<RopeTable>(std::move(rope));
}

}  // namespace flotilla::cuda
