#include "worker_proc/model/feed_forward.h"

namespace flotilla {

FeedForward::FeedForward(const ModelEnv& env)
    : env_(env),
      backend_(*env.backend),
      routing_{env.config->num_experts, env.config->num_experts_per_tok,
               env.config->norm_topk_prob},
      rows_a_token_(routing_.num_experts > 0 ? routing_.top_k : 1) {
  for (const RowRange& range : env.partition.intermediate) cols_.push_back(range.size());
}

StatusOr<FeedForwardWeights> FeedForward::LoadWeights(const std::string& prefix,
                                                      WeightLoader* loader) const {
  const ModelConfig& config = *env_.config;
  const TpPartition& tp = env_.partition;
  const Shard inner = {config.intermediate_size, tp.my(tp.intermediate)};
  const Shard gate_up[] = {inner, inner};
  const Shard down[] = {{config.hidden_size, tp.my(tp.hidden)}};
  const LinearShape of_hidden = {config.hidden_size}, of_inner = {config.intermediate_size};
  FeedForwardWeights weights;
  if (routing_.num_experts == 0) {
    ASSIGN_OR_RETURN(weights.gate_up, loader->Linear(prefix + "gate_up_proj", gate_up, of_hidden));
    ASSIGN_OR_RETURN(weights.down, loader->Linear(prefix + "down_proj", down, of_inner));
    return weights;
  }
  ASSIGN_OR_RETURN(weights.router,
                   loader->Router(prefix + "gate", routing_.num_experts, config.hidden_size));
  ASSIGN_OR_RETURN(weights.experts_gate_up,
                   loader->Experts(prefix + "experts.", routing_.num_experts, "gate_up_proj",
                                   gate_up, of_hidden));
  ASSIGN_OR_RETURN(weights.experts_down, loader->Experts(prefix + "experts.", routing_.num_experts,
                                                         "down_proj", down, of_inner));
  return weights;
}

Status FeedForward::AllocateBuffers() {
  const TpPartition& tp = env_.partition;
  const uint32_t rows = env_.max_tokens * rows_a_token_;
  TensorUse gate_up_use = TensorUse::kGateUp;
  if (routing_.num_experts > 0) {
    gate_up_use = TensorUse::kExpertsGateUp;
    const ExpertBounds bounds = {env_.max_tokens, env_.config->hidden_size,
                                 tp.my(tp.hidden).size()};
    ASSIGN_OR_RETURN(routes_, backend_.NewExpertRoutes(routing_, bounds));
  }
  ASSIGN_OR_RETURN(gate_up_, backend_.NewTensor(gate_up_use, rows, 2 * cols_[tp.rank]));
  ASSIGN_OR_RETURN(activated_, backend_.NewTensor(TensorUse::kLinearInput, rows,
                                                  env_.config->intermediate_size));
  activated_local_ = activated_;
  if (tp.size == 1) return OkStatus();
  ASSIGN_OR_RETURN(activated_local_,
                   backend_.NewShard(TensorUse::kLinearInput, rows, cols_, tp.rank));
  return OkStatus();
}

StatusOr<Projection> FeedForward::Run(const FeedForwardWeights& weights, Tensor x,
                                      Tensor out_local) {
  const HiddenAct act = env_.config->hidden_act;
  const uint32_t rows = x.rows * rows_a_token_;
  const Tensor local = activated_local_.First(rows);
  const Tensor whole = activated_.First(rows);
  if (routes_ != nullptr) {
    backend_.RouteTokens(*weights.router, x, routes_);
    backend_.ExpertsActMul({*weights.experts_gate_up, act}, routes_, x, gate_up_.First(rows),
                           local);
  } else {
    backend_.LinearActMul({*weights.gate_up, act}, x, gate_up_.First(rows), local);
  }
  if (env_.partition.size > 1) {
    RETURN_IF_ERROR(backend_.AllGatherColumns(*env_.collective, cols_, local, whole));
  }
  if (routes_ == nullptr) return Projection{weights.down.get(), whole};
  backend_.ExpertsLinear(*weights.experts_down, routes_, whole, out_local);
  return Projection{};
}

}  // namespace flotilla
