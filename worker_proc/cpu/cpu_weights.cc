#include "worker_proc/cpu/cpu_weights.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <optional>
#include <vector>

#include "common/base/check.h"
#include "common/base/xxh64.h"
#include "common/checkpoint/half.h"
#include "worker_proc/cpu/quant_pack.h"
#include "worker_proc/cpu/quantize_weights.h"
#include "worker_proc/model/rope_angles.h"

namespace flotilla::cpu {
namespace {

constexpr size_t kChunkBytes = size_t{64} << 20;

WeightType FloatTypeOf(DType dtype) {
  switch (dtype) {
    case DType::kF16:
      return WeightType::kFloat16;
    case DType::kBF16:
      return WeightType::kBFloat16;
    default:
      return WeightType::kFloat32;
  }
}

// Rows [begin, end) as elements of a panel.
void ReadRows(const TensorView& view, uint64_t begin, uint64_t end, float* out) {
  DequantizeRows(view, begin, end, out);
}
void ReadRows(const TensorView& view, uint64_t begin, uint64_t end, uint16_t* out) {
  if (view.dtype == DType::kF8E4M3) {
    std::vector<float> values((end - begin) * view.cols);
    DequantizeRows(view, begin, end, values.data());
    std::transform(values.begin(), values.end(), out, FloatToBFloat16);
    return;
  }
  std::memcpy(out, view.data.data() + begin * view.row_bytes(), (end - begin) * view.row_bytes());
}

// The rows of one panel of the concatenation of `rows`, [kPanelRows, cols]; returns how many there
// are, the others are zero.
template <typename Element>
uint32_t ReadPanel(std::span<const WeightRows> rows, uint64_t panel, std::vector<Element>* out) {
  const uint64_t k = rows.front().view->cols;
  out->assign(kPanelRows * k, Element{0});
  uint32_t count = 0;
  uint64_t part_begin = 0;  // the matrix's row where a part begins
  for (const WeightRows& part : rows) {
    const uint64_t part_end = part_begin + (part.end - part.begin);
    const uint64_t first = std::max(part_begin, panel * kPanelRows);
    const uint64_t last = std::min(part_end, (panel + 1) * kPanelRows);
    if (first < last) {
      ReadRows(*part.view, part.begin + first - part_begin, part.begin + last - part_begin,
               out->data() + first % kPanelRows * k);
      count += static_cast<uint32_t>(last - first);
    }
    part_begin = part_end;
  }
  return count;
}

// Panels [begin, end) of the concatenation of `rows`: whole rows first, then transposed.
template <typename Element>
void PackFloatPanels(std::span<const WeightRows> rows, uint32_t begin, uint32_t end,
                     std::byte* memory) {
  const uint64_t k = rows.front().view->cols;
  Element* const packed = reinterpret_cast<Element*>(memory);
  std::vector<Element> panel_rows;
  for (uint64_t panel = begin; panel < end; ++panel) {
    ReadPanel(rows, panel, &panel_rows);
    Element* out = packed + panel * kPanelRows * k;
    for (uint64_t i = 0; i < k; ++i) {
      for (uint32_t r = 0; r < kPanelRows; ++r) *out++ = panel_rows[r * k + i];
    }
  }
}

// The same quantised first. False: a weight does not fit.
bool QuantizePanels(std::span<const WeightRows> rows, uint32_t begin, uint32_t end,
                    uint8_t* packed) {
  const uint64_t k = rows.front().view->cols;
  std::vector<float> values;
  std::vector<uint8_t> blocks;
  TensorView view = {"panel", DType::kQ8_0, 0, k, {}};
  for (uint64_t panel = begin; panel < end; ++panel) {
    view.rows = ReadPanel(rows, panel, &values);
    values.resize(view.rows * k);
    blocks.resize(view.rows * view.row_bytes());
    if (!QuantizeQ8_0(values, blocks.data())) return false;
    view.data = blocks;
    const WeightRows all[] = {{&view, 0, view.rows}};
    PackQuantPanels(all, 0, 1, packed + panel * PackedQuantBytes(*QuantFormatOf(view.dtype), 1, k));
  }
  return true;
}

// Names and rows of what a part is made of.
uint64_t HashOf(std::span<const WeightRows> rows) {
  uint64_t hash = 0;
  for (const WeightRows& part : rows) {
    const uint64_t range[] = {part.begin, part.end, static_cast<uint64_t>(part.view->dtype)};
    hash = Xxh64(range, sizeof(range), Xxh64(part.view->name, hash));
  }
  return hash;
}

// What tells the layout of panels of this type.
uint64_t FormatNumber(DType stored) {
  const std::optional<QuantFormat> format = QuantFormatOf(stored);
  if (!format) return static_cast<uint64_t>(FloatTypeOf(stored));
  return format->bits | uint64_t{format->has_min} << 8 | uint64_t{format->super_blocks} << 9 |
         static_cast<uint64_t>(format->zero_point) << 16;
}

}  // namespace

const char* ComputeTypeName(ComputeType compute) {
  switch (compute) {
    case ComputeType::kFloat32:
      return "float32";
    case ComputeType::kInt8:
      return "int8";
    case ComputeType::kInt8OfFloats:
      return "int8-q8_0";
  }
  return "unknown";
}

WeightStore::WeightStore(ComputeType compute, ThreadPool* pool, const Heartbeat& heartbeat,
                         const PackCacheOptions& cache)
    : compute_(compute),
      pool_(pool),
      heartbeat_(heartbeat),
      matrices_("weights", kChunkBytes),
      cache_(cache, ComputeTypeName(compute), pool, heartbeat) {}

DType WeightStore::StoredType(const TensorView& view) const {
  if (QuantFormatOf(view.dtype).has_value()) {  // whole blocks: the file is checked
    return compute_ == ComputeType::kFloat32 ? DType::kF32 : view.dtype;
  }
  if (compute_ == ComputeType::kInt8OfFloats && CanBecomeQ8_0(view)) return DType::kQ8_0;
  return view.dtype == DType::kF8E4M3 ? DType::kBF16 : view.dtype;
}

uint64_t WeightStore::WeightBytes(const TensorView& view) const {
  const DType stored = StoredType(view);
  const std::optional<QuantFormat> format = QuantFormatOf(stored);
  return format ? PackedQuantBytes(*format, view.rows, view.cols)
                : view.rows * view.cols * WeightTypeBytes(FloatTypeOf(stored));
}

StatusOr<std::unique_ptr<LinearWeight>> WeightStore::LoadLinear(std::span<const WeightRows> rows) {
  auto weight = std::make_unique<CpuLinear>();
  weight->in_features = static_cast<uint32_t>(rows.front().view->cols);
  LoadBias(rows, weight.get());
  while (!rows.empty()) {
    // As many tensors as are stored alike make one part.
    const DType stored = StoredType(*rows.front().view);
    const auto differs = [&](const WeightRows& other) { return StoredType(*other.view) != stored; };
    const auto end = std::find_if(rows.begin(), rows.end(), differs);
    const auto count = static_cast<size_t>(end - rows.begin());
    RETURN_IF_ERROR(LoadPart(rows.first(count), weight.get()));
    rows = rows.subspan(count);
  }
  has_split_ |= weight->parts.size() > 1;
  heartbeat_.Beat();
  return std::unique_ptr<LinearWeight>(std::move(weight));
}

StatusOr<std::unique_ptr<ExpertsWeight>> WeightStore::LoadExperts(
    std::span<const std::vector<WeightRows>> experts) {
  auto all = std::make_unique<CpuExperts>();
  for (const std::vector<WeightRows>& rows : experts) {
    ASSIGN_OR_RETURN(all->experts.emplace_back(), LoadLinear(rows));
  }
  all->num_experts = static_cast<uint32_t>(experts.size());
  all->in_features = all->of(0).in_features;
  all->out_features = all->of(0).out_features;
  return std::unique_ptr<ExpertsWeight>(std::move(all));
}

StatusOr<std::unique_ptr<LinearWeight>> WeightStore::LoadRouter(const TensorView& view) {
  const WeightRows all[] = {{&view, 0, view.rows}};
  LinearPart part;
  part.rows = static_cast<uint32_t>(view.rows);
  const uint64_t bytes = NumPanels(part.rows) * kPanelRows * view.cols * sizeof(float);
  ASSIGN_OR_RETURN(part.floats,
                   Panels(all, DType::kF32,
                          {HashOf(all), FormatNumber(DType::kF32), part.rows, view.cols, bytes}));
  auto router = std::make_unique<CpuLinear>();
  router->in_features = static_cast<uint32_t>(view.cols);
  router->out_features = part.rows;
  router->num_panels = NumPanels(part.rows);
  router->parts.push_back(part);
  return std::unique_ptr<LinearWeight>(std::move(router));
}

Status WeightStore::LoadPart(std::span<const WeightRows> rows, CpuLinear* weight) {
  const uint64_t k = weight->in_features;
  LinearPart part;
  part.row_begin = weight->out_features;
  part.panel_begin = weight->num_panels;
  for (const WeightRows& r : rows) {
    CHECK(r.view->cols == k && r.begin <= r.end && r.end <= r.view->rows);
    part.rows += static_cast<uint32_t>(r.end - r.begin);
  }
  if (part.rows == 0) return OkStatus();
  const DType stored = StoredType(*rows.front().view);
  const std::optional<QuantFormat> format = QuantFormatOf(stored);
  const WeightType type = FloatTypeOf(stored);
  const uint32_t panels = NumPanels(part.rows);
  const uint64_t bytes = format ? PackedQuantBytes(*format, part.rows, k)
                                : panels * kPanelRows * k * WeightTypeBytes(type);
  ASSIGN_OR_RETURN(const std::byte* const memory,
                   Panels(rows, stored, {HashOf(rows), FormatNumber(stored), part.rows, k, bytes}));
  if (format) {
    part.format = *format;
    part.quant = reinterpret_cast<const uint8_t*>(memory);
    has_quant_ = true;
    ShareWithEmbedding(rows, stored, part);
  } else {
    part.type = type;
    part.floats = memory;
    has_float_ = true;
  }
  weight->out_features += part.rows;
  weight->num_panels += panels;
  weight->parts.push_back(part);
  return OkStatus();
}

StatusOr<const std::byte*> WeightStore::Panels(std::span<const WeightRows> rows, DType stored,
                                               const PackPart& part) {
  const std::byte* const cached = cache_.Next(part);
  if (cached != nullptr) return cached;
  ASSIGN_OR_RETURN(std::byte* const memory, matrices_.Allocate(part.bytes));
  const bool quantised = QuantFormatOf(stored).has_value();
  const bool wide = FloatTypeOf(stored) == WeightType::kFloat32;
  const bool as_in_file = std::all_of(
      rows.begin(), rows.end(), [&](const WeightRows& each) { return each.view->dtype == stored; });
  std::atomic<bool> fits{true};
  const auto pack = [&](uint32_t begin, uint32_t end, uint32_t) {
    auto* const bytes = reinterpret_cast<uint8_t*>(memory);
    if (quantised && !as_in_file) {
      if (!QuantizePanels(rows, begin, end, bytes)) fits = false;
    } else if (quantised) {
      PackQuantPanels(rows, begin, end, bytes);
    } else if (wide) {
      PackFloatPanels<float>(rows, begin, end, memory);
    } else {
      PackFloatPanels<uint16_t>(rows, begin, end, memory);
    }
  };
  const uint32_t panels = NumPanels(static_cast<uint32_t>(part.rows));
  pool_->ParallelFor(panels, pool_->Grain(panels), pack);
  if (!fits) {
    return absl::InvalidArgumentError(
        StrCat("tensor ", rows.front().view->name,
               " has weights that are not finite or too large for --dtype int8; use float32"));
  }
  cache_.Add(part, memory);
  return memory;
}

void WeightStore::LoadBias(std::span<const WeightRows> rows, CpuLinear* weight) {
  for (const WeightRows& part : rows) {
    if (part.bias == nullptr) continue;
    CHECK(part.bias->rows == 1 && part.bias->cols == part.view->rows);
    std::vector<float> values(part.bias->cols);
    DequantizeRows(*part.bias, 0, 1, values.data());
    weight->bias.insert(weight->bias.end(), values.data() + part.begin, values.data() + part.end);
  }
  other_bytes_ += weight->bias.size() * sizeof(float);
}

std::unique_ptr<VectorWeight> WeightStore::LoadVector(const TensorView& view,
                                                      const VectorChange& change) {
  auto weight = std::make_unique<CpuVector>();
  weight->size = static_cast<uint32_t>(view.cols);
  weight->values.resize(view.cols);
  DequantizeRows(view, 0, 1, weight->values.data());
  for (float& value : weight->values) value = change.Of(value);
  other_bytes_ += weight->values.size() * sizeof(float);
  return weight;
}

std::unique_ptr<EmbeddingWeight> WeightStore::LoadEmbedding(const TensorView& view) {
  auto weight = std::make_unique<CpuEmbedding>();
  weight->rows = static_cast<uint32_t>(view.rows);
  weight->cols = static_cast<uint32_t>(view.cols);
  weight->view = &view;
  embedding_ = weight.get();
  return weight;
}

void WeightStore::ShareWithEmbedding(std::span<const WeightRows> rows, DType stored,
                                     const LinearPart& part) {
  if (embedding_ == nullptr || rows.size() != 1 || rows[0].view != embedding_->view) return;
  if (stored != rows[0].view->dtype || part.rows != rows[0].view->rows) return;
  embedding_->format = part.format;
  embedding_->packed = part.quant;
}

std::unique_ptr<RopeTable> WeightStore::MakeRope(const RopeSpec& spec) {
  auto rope = std::make_unique<CpuRope>();
  rope->spec = spec;
  rope->table.resize(static_cast<size_t>(spec.max_positions) * spec.dim);
  const std::vector<double> frequencies = RopeFrequencies(spec);
  const auto fill = [&](uint32_t begin, uint32_t end, uint32_t) {
    for (uint32_t position = begin; position < end; ++position) {
      RopeAngles(frequencies, position, spec.magnitude,
                 rope->table.data() + static_cast<size_t>(position) * spec.dim);
    }
  };
  pool_->ParallelFor(spec.max_positions, pool_->Grain(spec.max_positions), fill);
  other_bytes_ += rope->table.size() * sizeof(float);
  return rope;
}

}  // namespace flotilla::cpu
