// What the handles of Backend point to on the CPU: activations and weights.
//
// Units: elements, rows. Ownership: the backend owns the memory of all of them. Threads: const in a
// step, but for the activations' values.
#pragma once

#include <cstdint>
#include <vector>

#include "worker_proc/cpu/kernels.h"
#include "worker_proc/model/backend.h"

namespace flotilla::cpu {

// Tensor::data. Rows are dense.
struct CpuTensor {
  float* f32 = nullptr;  // [rows, cols]
};
inline const CpuTensor& Get(const Tensor& tensor) {
  return *static_cast<const CpuTensor*>(tensor.data);
}
inline float* F32(const Tensor& tensor) { return Get(tensor).f32; }
inline float* F32Row(const Tensor& tensor, uint32_t row) {
  return F32(tensor) + static_cast<size_t>(row) * tensor.cols;
}

struct CpuLinear final : LinearWeight {
  const float* packed = nullptr;  // panels, see kernels.h
};
struct CpuVector final : VectorWeight {
  std::vector<float> values;
};
struct CpuEmbedding final : EmbeddingWeight {
  const TensorView* view = nullptr;  // rows are dequantised as they are used
};
struct CpuRope final : RopeTable {
  std::vector<float> table;
};

}  // namespace flotilla::cpu
