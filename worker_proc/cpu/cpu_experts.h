// Mixtures of experts on the CPU: each token's experts, and products of the rows that each expert
// has. Rows lie together by expert, tokens in their order; a token's experts are added up from the
// first on, so its result depends on nothing else.
//
// Bits: the logits are the float kernels' (kernels.h). Then, all in fp32 with one rounding for each
// operation: e = ReferenceExp(logit - max), weight = e / (e of all experts, or of the token's,
// added up from the first on); out[c] = out[c] + weight * down[c], from 0, expert after expert.
//
// Threads: one, with the pool's. Ownership: products, pool and arena outlive it. Errors:
// ResourceExhausted.
#pragma once

#include <memory>
#include <vector>

#include "worker_proc/cpu/cpu_products.h"

namespace flotilla::cpu {

struct CpuRoutes final : ExpertRoutes {
  Tensor logits;  // [tokens, num_experts], float
  Tensor x;       // the tokens' rows by expert
  // Of each token top_k, by expert.
  std::vector<uint32_t> experts;
  std::vector<float> weights;
  // Of the step's rows by expert: whose they are.
  std::vector<uint32_t> row_tokens;
  std::vector<float> row_weights;
  std::vector<uint32_t> row_begin;             // [num_experts + 1]: where each expert's begin
  std::vector<CpuProducts::Product> products;  // of those that have any
  std::vector<uint32_t> active;                // those
};

class ExpertRunner {
 public:
  ExpertRunner(ThreadPool* pool, CpuProducts* products) : pool_(*pool), products_(*products) {}

  // logits and x as CpuRoutes says.
  StatusOr<std::unique_ptr<CpuRoutes>> NewRoutes(const ExpertRouting& routing, Tensor logits,
                                                 Tensor x, Arena* arena);
  void Route(const CpuLinear& router, Tensor x, CpuRoutes* routes);
  void ActMul(const CpuExperts& gate_up_proj, HiddenAct act, CpuRoutes* routes, Tensor x,
              Tensor gate_up, Tensor out);
  void Linear(const CpuExperts& down_proj, CpuRoutes* routes, Tensor x, Tensor out);

 private:
  // One for each expert that has rows, of x.
  std::span<CpuProducts::Product> ProductsOf(const CpuExperts& weight, Tensor x, CpuRoutes* routes);
  void AddUp(const CpuRoutes& routes, uint32_t panel_begin, uint32_t panel_end, float* scratch,
             Tensor out);

  ThreadPool& pool_;
  CpuProducts& products_;
  float* scratch_ = nullptr;  // of AddUp, for each thread
};

}  // namespace flotilla::cpu
