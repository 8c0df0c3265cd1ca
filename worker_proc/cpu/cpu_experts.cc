#include "worker_proc/cpu/cpu_experts.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "common/base/check.h"

namespace flotilla::cpu {
namespace {

constexpr uint32_t kMostExperts = 1024;

// What an expert's rows become before they are added up: small enough for the first caches.
constexpr uint32_t kScratchPanels = 8;
constexpr uint32_t kScratchRows = 4 * kTileTokens;
constexpr size_t kScratchFloats = size_t{kScratchPanels} * kPanelRows * kScratchRows;

void CopyRow(const Tensor& from, uint32_t from_row, const Tensor& to, uint32_t to_row) {
  if (F32(to) != nullptr)
    std::memcpy(F32Row(to, to_row), F32Row(from, from_row), to.cols * sizeof(float));
  if (Q8(to) != nullptr)
    std::memcpy(Q8Row(to, to_row), Q8Row(from, from_row), to.cols / kQuantBlock * sizeof(ActBlock));
}

// What is no number is the lowest.
bool IsAbove(float logit, float other) {
  return logit > other || (std::isnan(other) && !std::isnan(logit));
}

// Marks the top_k largest of `logits`, of equal ones the first; returns the largest.
float MarkTopK(const float* logits, const ExpertRouting& routing, bool* chosen) {
  std::fill_n(chosen, routing.num_experts, false);
  float largest = 0;
  for (uint32_t k = 0; k < routing.top_k; ++k) {
    uint32_t best = routing.num_experts;
    for (uint32_t e = 0; e < routing.num_experts; ++e) {
      if (chosen[e]) continue;
      if (best == routing.num_experts || IsAbove(logits[e], logits[best])) best = e;
    }
    chosen[best] = true;
    if (k == 0) largest = logits[best];
  }
  return largest;
}

// A token's experts by number, and their weights.
void ChooseExperts(const float* logits, const ExpertRouting& routing, uint32_t* experts,
                   float* weights) {
  bool chosen[kMostExperts];
  const float largest = MarkTopK(logits, routing, chosen);
  float sum = 0;
  uint32_t count = 0;
  for (uint32_t e = 0; e < routing.num_experts; ++e) {
    if (routing.renormalize && !chosen[e]) continue;
    const float exp = ReferenceExp(logits[e] - largest);
    sum += exp;
    if (!chosen[e]) continue;
    experts[count] = e;
    weights[count++] = exp;
  }
  for (uint32_t k = 0; k < routing.top_k; ++k) weights[k] /= sum;
}

// Rows by expert, tokens in their order.
void SortRows(uint32_t tokens, CpuRoutes* routes) {
  const uint32_t top_k = routes->routing.top_k;
  std::vector<uint32_t>& begin = routes->row_begin;
  std::fill(begin.begin(), begin.end(), 0);
  // Each expert's end first, as where it begins is known last.
  for (uint32_t i = 0; i < tokens * top_k; ++i) ++begin[routes->experts[i]];
  uint32_t rows = 0;
  routes->active.clear();
  for (uint32_t e = 0; e < routes->routing.num_experts; ++e) {
    if (begin[e] > 0) routes->active.push_back(e);
    rows += begin[e];
    begin[e] = rows;
  }
  begin.back() = rows;
  for (uint32_t i = tokens * top_k; i-- > 0;) {
    const uint32_t row = --begin[routes->experts[i]];
    routes->row_tokens[row] = i / top_k;
    routes->row_weights[row] = routes->weights[i];
  }
}

}  // namespace

StatusOr<std::unique_ptr<CpuRoutes>> ExpertRunner::NewRoutes(const ExpertRouting& routing,
                                                             Tensor logits, Tensor x,
                                                             Arena* arena) {
  CHECK(routing.top_k >= 1 && routing.top_k <= routing.num_experts);
  CHECK(routing.num_experts <= kMostExperts);
  auto routes = std::make_unique<CpuRoutes>();
  routes->routing = routing;
  routes->logits = logits;
  routes->x = x;
  routes->experts.resize(x.rows);
  routes->weights.resize(x.rows);
  routes->row_tokens.resize(x.rows);
  routes->row_weights.resize(x.rows);
  routes->row_begin.resize(routing.num_experts + 1);
  routes->products.reserve(routing.num_experts);
  routes->active.reserve(routing.num_experts);
  ASSIGN_OR_RETURN(std::byte* const scratch,
                   arena->Allocate(pool_.threads() * kScratchFloats * sizeof(float)));
  scratch_ = reinterpret_cast<float*>(scratch);
  return routes;
}

void ExpertRunner::Route(const CpuLinear& router, Tensor x, CpuRoutes* routes) {
  const ExpertRouting& routing = routes->routing;
  const Tensor logits = routes->logits.First(x.rows);
  const Rows rows = RowsOf(x, 0, x.rows);
  pool_.ParallelFor(router.num_panels, pool_.Grain(router.num_panels),
                    [&](uint32_t begin, uint32_t end, uint32_t) {
                      products_.Panels(router, rows, begin, end, F32(logits) + router.RowOf(begin),
                                       logits.cols);
                    });
  products_.ForRows(x.rows, [&](uint32_t begin, uint32_t end) {
    for (uint32_t t = begin; t < end; ++t) {
      const size_t first = size_t{t} * routing.top_k;
      ChooseExperts(F32Row(logits, t), routing, &routes->experts[first], &routes->weights[first]);
    }
  });
  SortRows(x.rows, routes);
}

std::span<CpuProducts::Product> ExpertRunner::ProductsOf(const CpuExperts& weight, Tensor x,
                                                         CpuRoutes* routes) {
  routes->products.clear();
  for (const uint32_t e : routes->active) {
    const uint32_t begin = routes->row_begin[e];
    routes->products.push_back(
        {&weight.of(e), RowsOf(x, begin, routes->row_begin[e + 1] - begin), begin});
  }
  products_.Pack(routes->products);
  return routes->products;
}

void ExpertRunner::ActMul(const CpuExperts& gate_up_proj, HiddenAct act, CpuRoutes* routes,
                          Tensor x, Tensor gate_up, Tensor out) {
  const Tensor by_expert = routes->x.First(out.rows);
  products_.ForRows(out.rows, [&](uint32_t begin, uint32_t end) {
    for (uint32_t row = begin; row < end; ++row)
      CopyRow(x, routes->row_tokens[row], by_expert, row);
  });
  products_.LinearActMuls(ProductsOf(gate_up_proj, by_expert, routes), act, gate_up, out);
}

// The columns of some panels, at most kScratchPanels.
void ExpertRunner::AddUp(const CpuRoutes& routes, uint32_t panel_begin, uint32_t panel_end,
                         float* scratch, Tensor out) {
  const CpuLinear& any = *routes.products[0].weight;
  const uint32_t column = any.RowOf(panel_begin), cols = any.RowOf(panel_end) - column;
  for (uint32_t t = 0; t < out.rows; ++t)
    std::memset(F32Row(out, t) + column, 0, cols * sizeof(float));
  for (const CpuProducts::Product& product : routes.products) {
    for (uint32_t begin = 0; begin < product.x.count; begin += kScratchRows) {
      const uint32_t rows = std::min(kScratchRows, product.x.count - begin);
      products_.Panels(*product.weight, Slice(product.x, begin, rows), panel_begin, panel_end,
                       scratch, cols);
      for (uint32_t i = 0; i < rows; ++i) {
        const uint32_t row = product.first_row + begin + i;
        float* const to = F32Row(out, routes.row_tokens[row]) + column;
        const float weight = routes.row_weights[row];
        for (uint32_t c = 0; c < cols; ++c) to[c] += weight * scratch[size_t{i} * cols + c];
      }
    }
  }
}

void ExpertRunner::Linear(const CpuExperts& down_proj, CpuRoutes* routes, Tensor x, Tensor out) {
  ProductsOf(down_proj, x, routes);
  if (routes->products.empty()) return;
  const uint32_t panels = down_proj.of(0).num_panels;
  pool_.ParallelFor(panels, std::min(kScratchPanels, pool_.Grain(panels)),
                    [&](uint32_t begin, uint32_t end, uint32_t worker) {
                      for (uint32_t panel = begin; panel < end; panel += kScratchPanels) {
                        AddUp(*routes, panel, std::min(end, panel + kScratchPanels),
                              scratch_ + worker * kScratchFloats, out);
                      }
                    });
}

}  // namespace flotilla::cpu
