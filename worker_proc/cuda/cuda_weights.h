// Brings a checkpoint's weights to the device: matrices as the backend's element, row-major,
// whatever the file has, or as the file packs them; biases, norms and RoPE's table as floats.
//
// Units: bytes, rows. Threads: one. Ownership: the device outlives the weights; a weight owns its
// memory, but that a table of embeddings and the head may share theirs. Errors: ResourceExhausted.
#pragma once

#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "worker_proc/cuda/cuda_tensor.h"
#include "worker_proc/cuda/float8_blocks.h"
#include "worker_proc/runner/heartbeat.h"

namespace flotilla::cuda {

class WeightStore {
 public:
  // keep_packed: matrices of blocks stay as they are, if the elements have 16 bits.
  WeightStore(Device* device, Element element, bool keep_packed, const Heartbeat& heartbeat)
      : device_(*device),
        element_(element),
        keep_packed_(keep_packed && element != Element::kFloat32),
        heartbeat_(heartbeat) {}

  // As Backend's.
  uint64_t WeightBytes(const TensorView& view) const {
    return view.rows * RowBytes(view, MayStayPacked(view));
  }
  StatusOr<std::unique_ptr<LinearWeight>> LoadLinear(std::span<const WeightRows> rows);
  StatusOr<std::unique_ptr<ExpertsWeight>> LoadExperts(
      std::span<const std::vector<WeightRows>> experts);
  StatusOr<std::unique_ptr<LinearWeight>> LoadRouter(const TensorView& view);
  StatusOr<std::unique_ptr<VectorWeight>> LoadVector(const TensorView& view,
                                                     const VectorChange& change);
  StatusOr<std::unique_ptr<EmbeddingWeight>> LoadEmbedding(const TensorView& view);
  StatusOr<std::unique_ptr<RopeTable>> MakeRope(const RopeSpec& spec);

  uint64_t matrix_bytes() const { return matrix_bytes_; }
  uint64_t other_bytes() const { return other_bytes_; }

 private:
  // The kernels for experts read elements.
  static bool IsExperts(const TensorView& view) {
    return view.name.find(".mlp.experts.") != std::string::npos;
  }
  bool MayStayPacked(const TensorView& view) const {
    return keep_packed_ && !IsExperts(view) && (IsQuantised(view.dtype) || MayBeFloat8Blocks(view));
  }
  static uint64_t PackedRowBytes(const TensorView& view) {
    return view.dtype == DType::kF8E4M3 ? Float8RowBytes(view) : view.row_bytes();
  }
  // On the device.
  uint64_t RowBytes(const TensorView& view, bool packed) const {
    return packed ? PackedRowBytes(view) : view.cols * ElementBytes(element_);
  }
  // The matrix that is all of `view`, from an earlier call if there was one.
  StatusOr<SharedMatrix> WholeMatrix(const TensorView& view);
  StatusOr<SharedMatrix> Matrix(std::span<const WeightRows> rows);
  Status UploadRows(const WeightRows& rows, bool packed, std::byte* to);
  // Rows [begin, end) as the device gets them, until the next call.
  StatusOr<const void*> BlocksOf(const TensorView& view, uint64_t begin, uint64_t end);
  const void* ElementsOf(const TensorView& view, uint64_t begin, uint64_t end);
  // Counted in `bytes`.
  StatusOr<DeviceBuffer> Floats(std::span<const float> values, uint64_t* bytes);

  Device& device_;
  const Element element_;
  const bool keep_packed_;
  const Heartbeat heartbeat_;
  std::map<const uint8_t*, SharedMatrix> whole_;  // by the view's data
  std::vector<float> floats_;
  std::vector<uint16_t> halves_;
  std::vector<uint8_t> blocks_;
  uint64_t matrix_bytes_ = 0;
  uint64_t other_bytes_ = 0;
};

}  // namespace flotilla::cuda
