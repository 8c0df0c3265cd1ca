#include "worker_proc/cuda/cuda_experts.h"

#include <utility>

namespace flotilla::cuda {
namespace {

CudaRoutes& Get(ExpertRoutes* routes) { return *static_cast<CudaRoutes*>(routes); }

}  // namespace

StatusOr<DeviceBuffer> CudaExperts::Allocate(uint64_t bytes) {
  ASSIGN_OR_RETURN(DeviceBuffer buffer, device_.Allocate(bytes));
  bytes_ += bytes;
  return buffer;
}

StatusOr<ExpertRoutes*> CudaExperts::NewRoutes(const ExpertRouting& routing,
                                               const ExpertBounds& bounds) {
  CHECK(routing.top_k >= 1 && routing.top_k <= routing.num_experts);
  CHECK(routing.num_experts <= kMostExperts);
  const uint32_t rows = bounds.tokens * routing.top_k;
  const uint64_t row_bytes = uint64_t{rows} * sizeof(float);
  CudaRoutes routes;
  routes.routing = routing;
  routes.max_tokens = bounds.tokens;
  ASSIGN_OR_RETURN(routes.logits,
                   Allocate(uint64_t{bounds.tokens} * routing.num_experts * sizeof(float)));
  ASSIGN_OR_RETURN(routes.experts, Allocate(row_bytes));
  ASSIGN_OR_RETURN(routes.weights, Allocate(row_bytes));
  ASSIGN_OR_RETURN(routes.row_tokens, Allocate(row_bytes));
  ASSIGN_OR_RETURN(routes.token_rows, Allocate(row_bytes));
  // Narrow ones are more than wide ones, for as many rows.
  const uint64_t tiles = MostTiles(rows, routing.num_experts, kNarrowTileRows);
  ASSIGN_OR_RETURN(routes.tiles, Allocate(tiles * sizeof(ExpertTile)));
  ASSIGN_OR_RETURN(routes.products, Allocate(row_bytes * bounds.out_features));
  routes_.push_back(std::move(routes));
  return &routes_.back();
}

void CudaExperts::Route(const LinearWeight& router, Tensor x, ExpertRoutes* to) {
  CudaRoutes& routes = Get(to);
  const ExpertRouting& routing = routes.routing;
  DCHECK(TypeOf(x) == dtype_ && x.cols == router.in_features);
  DCHECK(router.out_features == routing.num_experts);
  CHECK(x.rows <= routes.max_tokens);
  routes.tokens = x.rows;
  routes.tile_rows = TileRowsOf(routes.rows(), routing.num_experts);
  routes.num_tiles = MostTiles(routes.rows(), routing.num_experts, routes.tile_rows);
  RouteArgs args;
  args.x = Data(x);
  args.type = dtype_;
  args.router = static_cast<const CudaLinear&>(router).matrix->buffer.as<const float>();
  args.tokens = x.rows;
  args.in_features = x.cols;
  args.num_experts = routing.num_experts;
  args.top_k = routing.top_k;
  args.renormalize = routing.renormalize;
  args.logits = routes.logits.as<float>();
  args.experts = routes.experts.as<uint32_t>();
  args.weights = routes.weights.as<float>();
  args.row_tokens = routes.row_tokens.as<uint32_t>();
  args.token_rows = routes.token_rows.as<uint32_t>();
  args.tiles = routes.tiles.as<ExpertTile>();
  args.tile_rows = routes.tile_rows;
  args.num_tiles = routes.num_tiles;
  kernels_.route_tokens(args, device_.stream());
}

// Without y, and x's rows are the routes'.
ExpertGemmArgs CudaExperts::ProductOf(const ExpertsWeight& weight, const CudaRoutes& routes,
                                      Tensor x) const {
  DCHECK(TypeOf(x) == dtype_ && x.cols == weight.in_features);
  ExpertGemmArgs args;
  args.weights = static_cast<const CudaExpertsWeight&>(weight).matrices.data();
  args.type = dtype_;
  args.out_features = weight.out_features;
  args.in_features = weight.in_features;
  args.x = Data(x);
  args.tiles = routes.tiles.as<const ExpertTile>();
  args.tile_rows = routes.tile_rows;
  args.num_tiles = routes.num_tiles;
  return args;
}

void CudaExperts::ActMul(const ExpertsGateUp& gate, ExpertRoutes* of, Tensor x, Tensor out) {
  const CudaRoutes& routes = Get(of);
  DCHECK(x.rows == routes.tokens && out.rows == routes.rows() && TypeOf(out) == dtype_);
  DCHECK(gate.weight.out_features == 2 * out.cols);
  ExpertGemmArgs args = ProductOf(gate.weight, routes, x);
  args.row_tokens = routes.row_tokens.as<const uint32_t>();
  args.gated = true;
  args.act = gate.act;
  args.out_features = out.cols;
  args.y = Data(out);
  kernels_.expert_gemm(args, device_.stream());
}

void CudaExperts::Linear(const ExpertsWeight& weight, ExpertRoutes* of, Tensor x, Tensor out) {
  const CudaRoutes& routes = Get(of);
  DCHECK(x.rows == routes.rows() && out.rows == routes.tokens);
  DCHECK(weight.out_features == out.cols && TypeOf(out) == Element::kFloat32);
  CHECK(uint64_t{x.rows} * out.cols * sizeof(float) <= routes.products.bytes());
  ExpertGemmArgs args = ProductOf(weight, routes, x);
  args.y = routes.products.data();
  kernels_.expert_gemm(args, device_.stream());
  CombineArgs combine;
  combine.y = routes.products.as<const float>();
  combine.token_rows = routes.token_rows.as<const uint32_t>();
  combine.weights = routes.weights.as<const float>();
  combine.tokens = routes.tokens;
  combine.top_k = routes.routing.top_k;
  combine.cols = out.cols;
  combine.out = Floats(out);
  kernels_.combine_experts(combine, device_.stream());
}

}  // namespace flotilla::cuda
