#include "worker_proc/cuda/cuda_weights.h"

#include <algorithm>
#include <utility>

#include "common/checkpoint/half.h"
#include "worker_proc/model/rope_angles.h"

namespace flotilla::cuda {
namespace {

constexpr uint64_t kChunkValues = uint64_t{1} << 20;
constexpr uint64_t kChunkBytes = uint64_t{4} << 20;

bool SameType(DType file, Element element) {
  return (file == DType::kF32 && element == Element::kFloat32) ||
         (file == DType::kF16 && element == Element::kFloat16) ||
         (file == DType::kBF16 && element == Element::kBFloat16);
}

}  // namespace

// In chunks, so that little memory is needed beside the device's.
void WeightStore::UploadRows(const WeightRows& rows, std::byte* to) {
  const TensorView& view = *rows.view;
  const uint64_t row_bytes = view.cols * ElementBytes(element_);
  const uint64_t chunk = std::max<uint64_t>(1, kChunkValues / view.cols);
  for (uint64_t begin = rows.begin; begin < rows.end; begin += chunk) {
    const uint64_t end = std::min(rows.end, begin + chunk);
    const uint64_t values = (end - begin) * view.cols;
    heartbeat_.Beat();
    if (SameType(view.dtype, element_)) {
      device_.Upload(view.data.data() + begin * view.row_bytes(), (end - begin) * row_bytes, to);
    } else {
      floats_.resize(values);
      DequantizeRows(view, begin, end, floats_.data());
      const void* from = floats_.data();
      if (element_ != Element::kFloat32) {
        halves_.resize(values);
        std::transform(floats_.begin(), floats_.end(), halves_.begin(),
                       element_ == Element::kFloat16 ? FloatToHalf : FloatToBFloat16);
        from = halves_.data();
      }
      device_.Upload(from, values * ElementBytes(element_), to);
    }
    to += (end - begin) * row_bytes;
  }
}

Status WeightStore::UploadPackedRows(const WeightRows& rows, std::byte* to) {
  const TensorView& view = *rows.view;
  const uint64_t row_bytes = PackedRowBytes(view);
  const uint64_t chunk = std::max<uint64_t>(1, kChunkBytes / row_bytes);
  for (uint64_t begin = rows.begin; begin < rows.end; begin += chunk) {
    const uint64_t end = std::min(rows.end, begin + chunk);
    const uint8_t* from = view.data.data() + begin * view.row_bytes();
    heartbeat_.Beat();
    if (view.dtype == DType::kF8E4M3) {
      blocks_.resize((end - begin) * row_bytes);
      RETURN_IF_ERROR(PackFloat8(view, begin, end, blocks_.data()));
      from = blocks_.data();
    }
    device_.Upload(from, (end - begin) * row_bytes, to);
    to += (end - begin) * row_bytes;
  }
  return OkStatus();
}

// Neighbours of one type are one matrix.
StatusOr<SharedMatrix> WeightStore::PackedMatrix(std::span<const WeightRows> rows) {
  uint64_t bytes = kPackedEnd;
  for (const WeightRows& part : rows) {
    bytes += (part.end - part.begin) * PackedRowBytes(*part.view);
  }
  auto matrix = std::make_shared<CudaMatrix>();
  ASSIGN_OR_RETURN(matrix->buffer, device_.Allocate(bytes));
  std::byte* to = matrix->buffer.data();
  std::vector<PackedRows>& packed = matrix->packed;
  for (const WeightRows& part : rows) {
    const TensorView& view = *part.view;
    if (packed.empty() || packed.back().dtype != view.dtype) packed.push_back({view.dtype, 0, to});
    packed.back().rows += static_cast<uint32_t>(part.end - part.begin);
    RETURN_IF_ERROR(UploadPackedRows(part, to));
    to += (part.end - part.begin) * PackedRowBytes(view);
  }
  matrix_bytes_ += bytes;
  return SharedMatrix(std::move(matrix));
}

StatusOr<SharedMatrix> WeightStore::Matrix(std::span<const WeightRows> rows) {
  if (std::all_of(rows.begin(), rows.end(),
                  [&](const WeightRows& part) { return MayStayPacked(*part.view); })) {
    return PackedMatrix(rows);
  }
  uint64_t bytes = 0;
  for (const WeightRows& part : rows) {
    bytes += (part.end - part.begin) * part.view->cols * ElementBytes(element_);
  }
  ASSIGN_OR_RETURN(DeviceBuffer buffer, device_.Allocate(bytes));
  std::byte* to = buffer.data();
  for (const WeightRows& part : rows) {
    UploadRows(part, to);
    to += (part.end - part.begin) * part.view->cols * ElementBytes(element_);
  }
  matrix_bytes_ += bytes;
  return SharedMatrix(std::make_shared<const CudaMatrix>(CudaMatrix{std::move(buffer)}));
}

StatusOr<SharedMatrix> WeightStore::WholeMatrix(const TensorView& view) {
  SharedMatrix& matrix = whole_[view.data.data()];
  if (matrix == nullptr) {
    const WeightRows rows[] = {{&view, 0, view.rows}};
    ASSIGN_OR_RETURN(matrix, Matrix(rows));
  }
  return matrix;
}

StatusOr<DeviceBuffer> WeightStore::Floats(std::span<const float> values) {
  ASSIGN_OR_RETURN(DeviceBuffer buffer, device_.Allocate(values.size_bytes()));
  device_.Upload(values.data(), values.size_bytes(), buffer.data());
  other_bytes_ += values.size_bytes();
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
    ASSIGN_OR_RETURN(weight->bias, Floats(bias));
  }
  return std::unique_ptr<LinearWeight>(std::move(weight));
}

StatusOr<std::unique_ptr<VectorWeight>> WeightStore::LoadVector(const TensorView& view,
                                                                float offset) {
  std::vector<float> values(view.cols);
  DequantizeRows(view, 0, 1, values.data());
  for (float& value : values) value += offset;
  auto weight = std::make_unique<CudaVector>();
  weight->size = static_cast<uint32_t>(view.cols);
  ASSIGN_OR_RETURN(weight->values, Floats(values));
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
    RopeAngles(frequencies, position, table.data() + static_cast<size_t>(position) * spec.dim);
  }
  ASSIGN_OR_RETURN(rope->table, Floats(table));
  return std::unique_ptr<RopeTable>(std::move(rope));
}

}  // namespace flotilla::cuda
