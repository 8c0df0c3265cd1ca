#include "worker_proc/cuda/cuda_products.h"

#include <utility>

namespace flotilla::cuda {
// Before anything is captured: no later step is larger. What is freed has been used: that waits.
bool CudaProducts::MakeRoom(uint64_t bytes) {
  if (bytes <= expanded_.bytes()) return true;
  if (has_no_room_) return false;
  expanded_ = DeviceBuffer();
  StatusOr<DeviceBuffer> room = device_.Allocate(bytes);
  has_no_room_ = !room.ok();
  if (room.ok()) expanded_ = std::move(*room);
  return room.ok();
}

GemvArgs CudaProducts::ProductOf(const CudaLinear& w, Tensor x, Tensor out) const {
  DCHECK(x.cols == w.in_features && x.rows == out.rows && TypeOf(x) == dtype_);
  return {w.matrix->buffer.data(),  dtype_,    out.cols,   w.in_features, Data(x),
          w.bias.as<const float>(), Data(out), TypeOf(out)};
}

bool CudaProducts::LinearAdd(const CudaLinear& w, Tensor x, Tensor out) {
  SkinnyGemmArgs args = {ProductOf(w, x, out), x.rows};
  args.matrix.adds = true;
  if (!w.matrix->packed.empty() || !batch_invariant_ || !HasAddingGemm(args)) return false;
  kernels_.skinny_gemm(args, device_.stream());
  return true;
}

void CudaProducts::NormForNext(const RmsNormArgs& norm) {
  CHECK(!norm_for_next_.has_value());
  norm_for_next_ = norm;
}

bool CudaProducts::TakeNorm(const CudaLinear& w, SkinnyGemmArgs* args) {
  if (!norm_for_next_.has_value()) return false;
  const RmsNormArgs norm = *std::exchange(norm_for_next_, std::nullopt);
  CHECK(args->matrix.x == norm.out && args->rows == norm.rows);
  if (!w.matrix->packed.empty() || !batch_invariant_ || !HasNormedGemm(*args)) {
    kernels_.rms_norm(norm, device_.stream());
    return false;
  }
  args->matrix.x = norm.x;
  args->matrix.norm_weight = norm.weight;
  args->matrix.norm_eps = norm.eps;
  return true;
}

void CudaProducts::Linear(const CudaLinear& w, Tensor x, Tensor out) {
  DCHECK(out.cols == w.out_features);
  SkinnyGemmArgs few = {ProductOf(w, x, out), x.rows};
  if (TakeNorm(w, &few)) return kernels_.skinny_gemm(few, device_.stream());
  const GemvArgs& args = few.matrix;
  if (!w.matrix->packed.empty()) return PackedLinear(w, args, x.rows);
  if (x.rows == 1 && !batch_invariant_) {
    kernels_.gemv(args, device_.stream());
  } else {
    device_.Gemm({args, x.rows, batch_invariant_});
  }
}

void CudaProducts::PackedLinear(const CudaLinear& w, GemvArgs args, uint32_t rows) {
  const uint64_t expanded = uint64_t{w.out_features} * w.in_features * ElementBytes(dtype_);
  if (rows > kMostPackedRows && MakeRoom(expanded)) {
    Expand(w);
    args.weight = expanded_.data();
    args.weight_is_new = true;
    return device_.Gemm({args, rows, batch_invariant_});
  }
  const uint32_t y_stride = w.out_features;
  for (const PackedRows& part : w.matrix->packed) {
    args.weight = part.blocks;
    args.out_features = part.rows;
    kernels_.packed_gemm({args, part.dtype, rows, y_stride}, device_.stream());
    if (args.bias != nullptr) args.bias += part.rows;
    args.y = static_cast<std::byte*>(args.y) + uint64_t{part.rows} * ElementBytes(args.y_type);
  }
}

void CudaProducts::Expand(const CudaLinear& w) {
  std::byte* to = expanded_.data();
  for (const PackedRows& part : w.matrix->packed) {
    const uint64_t values = uint64_t{part.rows} * w.in_features;
    kernels_.expand({part.blocks, part.dtype, values, to, dtype_}, device_.stream());
    to += values * ElementBytes(dtype_);
  }
}

void CudaProducts::LinearActMul(const CudaLinear& w, HiddenAct act, Tensor x, Tensor gate_up,
                                Tensor out) {
  DCHECK(w.out_features == 2 * out.cols);
  SkinnyGemmArgs args = {ProductOf(w, x, out), x.rows};
  args.matrix.gated = true;
  args.matrix.act = act;
  const std::vector<PackedRows>& packed = w.matrix->packed;
  if (out.cols > 0 && w.bias.data() == nullptr) {
    if (TakeNorm(w, &args)) return kernels_.skinny_gemm(args, device_.stream());
    if (!packed.empty()) {
      if (packed.size() == 1 && x.rows <= kMostPackedRows) {
        return kernels_.packed_gemm({args.matrix, packed[0].dtype, x.rows, out.cols},
                                    device_.stream());
      }
    } else if (x.rows == 1 && !batch_invariant_) {
      return kernels_.gemv(args.matrix, device_.stream());
    } else if (HasGatedGemm(args)) {
      return kernels_.skinny_gemm(args, device_.stream());
    }
  }
  Linear(w, x, gate_up);
  kernels_.act_mul({Data(gate_up), dtype_, act, x.rows, out.cols, Data(out)}, device_.stream());
}

}  // namespace flotilla::cuda
