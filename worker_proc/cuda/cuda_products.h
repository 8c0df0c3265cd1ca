// Linear and LinearActMul of the CUDA backend: which kernel, or which product of the device,
// multiplies how many rows by a matrix of elements or by a packed one. All give the same bits, but
// with batch_invariant off.
//
// Shapes, errors: as Backend's. Memory: room to expand a packed matrix, where steps have so many
// rows (kernels/packed_gemm.h), which the largest step takes; where there is none, the matrix is
// read again and again instead. Threads: the device's. Ownership: the device outlives it.
#pragma once

#include <optional>

#include "common/checkpoint/hidden_act.h"
#include "worker_proc/cuda/cuda_tensor.h"

namespace flotilla::cuda {

class CudaProducts {
 public:
  CudaProducts(Device* device, Element dtype, bool batch_invariant)
      : device_(*device),
        kernels_(device->kernels()),
        dtype_(dtype),
        batch_invariant_(batch_invariant) {}

  void Linear(const CudaLinear& w, Tensor x, Tensor out);
  void LinearActMul(const CudaLinear& w, HiddenAct act, Tensor x, Tensor gate_up, Tensor out);
  // out += w x, in one kernel; false: nothing has happened, since there is none for this product.
  bool LinearAdd(const CudaLinear& w, Tensor x, Tensor out);
  // norm.out is what the next product multiplies, and nothing else reads it: so that product may
  // norm its row itself, and leave norm.out as it is.
  void NormForNext(const RmsNormArgs& norm);
  uint64_t bytes() const { return expanded_.bytes(); }

 private:
  GemvArgs ProductOf(const CudaLinear& w, Tensor x, Tensor out) const;
  // Whether NormForNext's norm has become a part of this product; else it is computed now.
  bool TakeNorm(const CudaLinear& w, SkinnyGemmArgs* args);
  void PackedLinear(const CudaLinear& w, GemvArgs args, uint32_t rows);
  // Whether there is room, now.
  bool MakeRoom(uint64_t bytes);
  void Expand(const CudaLinear& w);

  Device& device_;
  const KernelTable& kernels_;
  const Element dtype_;
  const bool batch_invariant_;
  std::optional<RmsNormArgs> norm_for_next_;
  DeviceBuffer expanded_;
  bool has_no_room_ = false;  // the device had none for what was asked for
};

}  // namespace flotilla::cuda
