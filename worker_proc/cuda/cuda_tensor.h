// What the handles of Backend point to on a CUDA device: activations and weights.
//
// The residual stream, what Linear puts out and logits are float; what matrices read, the gates and
// the matrices themselves have the backend's element, but for matrices that stay packed. Rows are
// dense.
//
// Units: elements, rows. Ownership: the backend owns the memory of activations, a weight its own.
// Threads: const in a step, but for the activations' values.
#pragma once

#include <memory>
#include <vector>

#include "worker_proc/cuda/device.h"
#include "worker_proc/model/backend.h"

namespace flotilla::cuda {

// Tensor::data.
struct CudaTensor {
  std::byte* data = nullptr;
  Element type = Element::kFloat32;
};
inline const CudaTensor& Get(const Tensor& tensor) {
  return *static_cast<const CudaTensor*>(tensor.data);
}
inline std::byte* Data(const Tensor& tensor) { return Get(tensor).data; }
inline Element TypeOf(const Tensor& tensor) { return Get(tensor).type; }
inline uint32_t RowBytes(const Tensor& tensor) {
  return tensor.cols * ElementBytes(TypeOf(tensor));
}
// Of a tensor that is float.
inline float* Floats(const Tensor& tensor) { return reinterpret_cast<float*>(Data(tensor)); }

// Rows of a matrix in blocks of one type (kernels/packed_gemm.h).
struct PackedRows {
  DType dtype = DType::kQ4_0;
  uint32_t rows = 0;
  const std::byte* blocks = nullptr;
};
// [rows, cols], row-major; where it is packed, these rows below each other, else elements. A table
// of embeddings that is the head too is there once.
struct CudaMatrix {
  DeviceBuffer buffer;
  std::vector<PackedRows> packed = {};
};
using SharedMatrix = std::shared_ptr<const CudaMatrix>;

struct CudaLinear final : LinearWeight {
  SharedMatrix matrix;
  DeviceBuffer bias;  // floats [out_features], or none
};
// Never packed.
struct CudaExpertsWeight final : ExpertsWeight {
  DeviceBuffer matrices;  // [num_experts, out_features, in_features], elements
};
struct CudaVector final : VectorWeight {
  DeviceBuffer values;  // floats
};
struct CudaEmbedding final : EmbeddingWeight {
  SharedMatrix matrix;
};
struct CudaRope final : RopeTable {
  DeviceBuffer table;  // float [position][dim / 2][cos, sin]
};

}  // namespace flotilla::cuda
