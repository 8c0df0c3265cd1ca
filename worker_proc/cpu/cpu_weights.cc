#include "worker_proc/cpu/cpu_weights.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "common/base/check.h"

namespace flotilla::cpu {
namespace {

constexpr size_t kChunkBytes = size_t{64} << 20;

// Panels [begin, end) of the concatenation of `rows`: whole rows as floats, then transposed.
void PackFloatPanels(std::span<const WeightRows> rows, uint32_t begin, uint32_t end,
                     float* packed) {
  const uint64_t k = rows.front().view->cols;
  std::vector<float> panel_rows(kPanelRows * k);
  for (uint64_t panel = begin; panel < end; ++panel) {
    std::fill(panel_rows.begin(), panel_rows.end(), 0.0f);
    uint64_t part_begin = 0;  // the matrix's row where a part begins
    for (const WeightRows& part : rows) {
      const uint64_t part_end = part_begin + (part.end - part.begin);
      const uint64_t first = std::max(part_begin, panel * kPanelRows);
      const uint64_t last = std::min(part_end, (panel + 1) * kPanelRows);
      if (first < last) {
        DequantizeRows(*part.view, part.begin + first - part_begin, part.begin + last - part_begin,
                       panel_rows.data() + first % kPanelRows * k);
      }
      part_begin = part_end;
    }
    float* out = packed + panel * kPanelRows * k;
    for (uint64_t i = 0; i < k; ++i) {
      for (uint32_t r = 0; r < kPanelRows; ++r) *out++ = panel_rows[r * k + i];
    }
  }
}

}  // namespace

WeightStore::WeightStore(ThreadPool* pool, const Heartbeat& heartbeat)
    : pool_(pool), heartbeat_(heartbeat), matrices_("weights", kChunkBytes) {}

uint64_t WeightStore::WeightBytes(const TensorView& view) const {
  return view.rows * view.cols * sizeof(float);
}

StatusOr<std::unique_ptr<LinearWeight>> WeightStore::LoadLinear(std::span<const WeightRows> rows) {
  auto weight = std::make_unique<CpuLinear>();
  const uint64_t k = rows.front().view->cols;
  uint64_t out = 0;
  for (const WeightRows& part : rows) {
    CHECK(part.view->cols == k && part.begin <= part.end && part.end <= part.view->rows);
    out += part.end - part.begin;
  }
  weight->in_features = static_cast<uint32_t>(k);
  weight->out_features = static_cast<uint32_t>(out);
  const uint32_t panels = NumPanels(weight->out_features);
  ASSIGN_OR_RETURN(std::byte * memory, matrices_.Allocate(panels * kPanelRows * k * sizeof(float)));
  auto* packed = reinterpret_cast<float*>(memory);
  weight->packed = packed;
  pool_->ParallelFor(panels, pool_->Grain(panels), [&](uint32_t begin, uint32_t end, uint32_t) {
    PackFloatPanels(rows, begin, end, packed);
  });
  heartbeat_.Beat();
  return std::unique_ptr<LinearWeight>(std::move(weight));
}

std::unique_ptr<VectorWeight> WeightStore::LoadVector(const TensorView& view) {
  auto weight = std::make_unique<CpuVector>();
  weight->size = static_cast<uint32_t>(view.cols);
  weight->values.resize(view.cols);
  DequantizeRows(view, 0, 1, weight->values.data());
  other_bytes_ += weight->values.size() * sizeof(float);
  return weight;
}

std::unique_ptr<EmbeddingWeight> WeightStore::LoadEmbedding(const TensorView& view) const {
  auto weight = std::make_unique<CpuEmbedding>();
  weight->rows = static_cast<uint32_t>(view.rows);
  weight->cols = static_cast<uint32_t>(view.cols);
  weight->view = &view;
  return weight;
}

std::unique_ptr<RopeTable> WeightStore::MakeRope(const RopeSpec& spec) {
  auto rope = std::make_unique<CpuRope>();
  rope->spec = spec;
  const uint32_t half = spec.dim / 2;
  rope->table.resize(static_cast<size_t>(spec.max_positions) * half * 2);
  std::vector<double> frequencies(half);
  for (uint32_t i = 0; i < half; ++i) {
    frequencies[i] = std::pow(static_cast<double>(spec.theta), -2.0 * i / spec.dim);
  }
  const auto fill = [&](uint32_t begin, uint32_t end, uint32_t) {
    float* out = rope->table.data() + static_cast<size_t>(begin) * half * 2;
    for (uint32_t position = begin; position < end; ++position) {
      for (uint32_t i = 0; i < half; ++i) {
        const double angle = position * frequencies[i];
        *out++ = static_cast<float>(std::cos(angle));
        *out++ = static_cast<float>(std::sin(angle));
      }
    }
  };
  pool_->ParallelFor(spec.max_positions, pool_->Grain(spec.max_positions), fill);
  other_bytes_ += rope->table.size() * sizeof(float);
  return rope;
}

}  // namespace flotilla::cpu
