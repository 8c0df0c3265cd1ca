// What the handles of Backend point to on the CPU: activations and weights.
//
// A kLinearInput holds its values as the loaded matrices read them: quantised for quantised ones,
// in float for others, both if the model has both. Everything else is float.
//
// Units: elements, rows; rows are dense. Ownership: the backend owns the memory of all of them.
// Threads: const in a step, but for the activations' values.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "worker_proc/cpu/kernels.h"
#include "worker_proc/cpu/quant_kernels.h"
#include "worker_proc/model/backend.h"

namespace flotilla::cpu {

// Tensor::data. What is absent is null.
struct CpuTensor {
  float* f32 = nullptr;    // [rows, cols]
  ActBlock* q8 = nullptr;  // [rows, cols / kQuantBlock]
};
inline const CpuTensor& Get(const Tensor& tensor) {
  return *static_cast<const CpuTensor*>(tensor.data);
}
inline float* F32(const Tensor& tensor) { return Get(tensor).f32; }
inline float* F32Row(const Tensor& tensor, uint32_t row) {
  return F32(tensor) + static_cast<size_t>(row) * tensor.cols;
}
inline ActBlock* Q8(const Tensor& tensor) { return Get(tensor).q8; }
inline ActBlock* Q8Row(const Tensor& tensor, uint32_t row) {
  return Q8(tensor) + static_cast<size_t>(row) * (tensor.cols / kQuantBlock);
}

// Consecutive rows of a matrix that are stored alike, as panels (kernels.h, quant_kernels.h).
struct LinearPart {
  uint32_t row_begin = 0;
  uint32_t rows = 0;
  uint32_t panel_begin = 0;      // panels are numbered over all parts of the matrix
  const void* floats = nullptr;  // elements of `type`
  WeightType type = WeightType::kFloat32;
  const uint8_t* quant = nullptr;  // if floats is null
  QuantFormat format;

  uint32_t panel_end() const { return panel_begin + NumPanels(rows); }
  // The matrix's row that a panel begins with; the part's last for panel_end().
  uint32_t RowOf(uint32_t panel) const {
    const uint32_t row = (panel - panel_begin) * kPanelRows;
    return row_begin + (row < rows ? row : rows);
  }
};
struct CpuLinear final : LinearWeight {
  std::vector<LinearPart> parts;
  uint32_t num_panels = 0;
  std::vector<float> bias;  // [out_features], or none

  // The row that a panel begins with; out_features for num_panels.
  uint32_t RowOf(uint32_t panel) const {
    for (const LinearPart& part : parts) {
      if (panel < part.panel_end()) return part.RowOf(panel);
    }
    return out_features;
  }
};

struct CpuExperts final : ExpertsWeight {
  std::vector<std::unique_ptr<LinearWeight>> experts;
  const CpuLinear& of(uint32_t expert) const {
    return static_cast<const CpuLinear&>(*experts[expert]);
  }
};

struct CpuVector final : VectorWeight {
  std::vector<float> values;
};
// Rows are dequantised as they are used: from the output head's panels where it is the same matrix,
// so that the file's pages need not stay in memory.
struct CpuEmbedding final : EmbeddingWeight {
  const TensorView* view = nullptr;
  QuantFormat format;
  const uint8_t* packed = nullptr;  // all rows; null: they are in `view` alone
};
struct CpuRope final : RopeTable {
  std::vector<float> table;
};

}  // namespace flotilla::cpu
