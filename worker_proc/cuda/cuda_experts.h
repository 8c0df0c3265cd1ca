// Mixtures of experts on a CUDA device: a step's routes, and the products of its rows with their
// experts' matrices. The host knows how many tokens there are, the device alone which experts they
// have: launches are the same for any routes, so graphs may hold them.
//
// Bits: kernels/route.h and kernels/expert_gemm.h; a token's depend on that token only. Memory: all
// of it by NewRoutes. Shapes, errors: as Backend's. Threads: the device's. Ownership: the device
// outlives it; it owns the routes.
#pragma once

#include <deque>

#include "common/checkpoint/hidden_act.h"
#include "worker_proc/cuda/cuda_tensor.h"

namespace flotilla::cuda {

// As RouteArgs has them; rows are by expert.
struct CudaRoutes final : ExpertRoutes {
  uint32_t max_tokens = 0;
  DeviceBuffer logits, experts, weights, row_tokens, token_rows, tiles;
  DeviceBuffer products;  // float: of ExpertsLinear, before they are added up
  // Of the step, from RouteTokens on.
  uint32_t tokens = 0;
  uint32_t tile_rows = 0;
  uint32_t num_tiles = 0;

  uint32_t rows() const { return tokens * routing.top_k; }
};

class CudaExperts {
 public:
  CudaExperts(Device* device, Element dtype)
      : device_(*device), kernels_(device->kernels()), dtype_(dtype) {}

  StatusOr<ExpertRoutes*> NewRoutes(const ExpertRouting& routing, const ExpertBounds& bounds);
  void Route(const LinearWeight& router, Tensor x, ExpertRoutes* routes);
  // Gated within the product.
  void ActMul(const ExpertsGateUp& gate, ExpertRoutes* routes, Tensor x, Tensor out);
  void Linear(const ExpertsWeight& weight, ExpertRoutes* routes, Tensor x, Tensor out);
  uint64_t bytes() const { return bytes_; }

 private:
  StatusOr<DeviceBuffer> Allocate(uint64_t bytes);
  ExpertGemmArgs ProductOf(const ExpertsWeight& weight, const CudaRoutes& routes, Tensor x) const;

  Device& device_;
  const KernelTable& kernels_;
  const Element dtype_;
  std::deque<CudaRoutes> routes_;
  uint64_t bytes_ = 0;
};

}  // namespace flotilla::cuda
