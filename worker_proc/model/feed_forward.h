// A decoder layer's feed-forward: gate and up, the activation, down; one for all tokens, or experts
// that a router chooses for each.
//
// All layers of a model share one FeedForward, with its buffers. Ranks split each matrix by output
// rows, an expert's too; the router is every rank's, so all choose alike. Threads, ownership,
// errors: as Model. Source: Shazeer et al., arXiv 1701.06538; Fedus et al., arXiv 2101.03961.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "worker_proc/model/model.h"

namespace flotilla {

// A layer's. Without experts gate_up and down, with them the others.
struct FeedForwardWeights {
  std::unique_ptr<LinearWeight> gate_up, down;
  std::unique_ptr<LinearWeight> router;
  std::unique_ptr<ExpertsWeight> experts_gate_up, experts_down;
};

// A product that is still to be done; null: none.
struct Projection {
  const LinearWeight* weight = nullptr;
  Tensor x;
};

class FeedForward {
 public:
  explicit FeedForward(const ModelEnv& env);

  // prefix: "model.layers.0.mlp."
  StatusOr<FeedForwardWeights> LoadWeights(const std::string& prefix, WeightLoader* loader) const;
  Status AllocateBuffers();
  // What `x` of Run has to be.
  TensorUse input_use() const {
    return routing_.num_experts > 0 ? TensorUse::kRouterInput : TensorUse::kLinearInput;
  }
  // Whether of all ops of Run only the first reads x, and is a product.
  bool begins_with_product() const { return routing_.num_experts == 0; }
  // x [tokens, hidden] → this rank's columns of the result: in out_local, or by what is returned.
  StatusOr<Projection> Run(const FeedForwardWeights& weights, Tensor x, Tensor out_local);

 private:
  const ModelEnv& env_;
  Backend& backend_;
  const ExpertRouting routing_;
  const uint32_t rows_a_token_;
  std::vector<uint32_t> cols_;  // of each rank in what they exchange
  ExpertRoutes* routes_ = nullptr;
  // Of a step; activated_local_ is this rank's columns, the same memory if it is alone.
  Tensor gate_up_, activated_local_, activated_;
};

}  // namespace flotilla
