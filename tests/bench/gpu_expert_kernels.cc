#include "tests/bench/gpu_expert_kernels.h"

#include <array>
#include <cmath>
#include <set>

#include "worker_proc/cuda/cuda_experts.h"

namespace flotilla::cuda {
namespace {

constexpr uint32_t kHidden = 2048, kInner = 768;
constexpr ExpertRouting kRouting = {.num_experts = 128, .top_k = 8, .renormalize = true};
constexpr uint32_t kMostTokens = 4096;
// Launches take turns, so that few tokens' experts are more than a cache holds.
constexpr uint32_t kSets = 8;

// An activation, and the handle that tensors have of it.
class Rows {
 public:
  Rows(BenchDevice* bench, uint32_t rows, uint32_t cols, Element type)
      : memory_(type == Element::kFloat32
                    ? bench->Allocate(uint64_t{rows} * cols * ElementBytes(type))
                    : bench->Filled(uint64_t{rows} * cols * ElementBytes(type), 1.0f)),
        handle_{memory_.data(), type},
        cols_(cols) {}
  Tensor First(uint32_t rows) { return {&handle_, rows, cols_}; }

 private:
  DeviceBuffer memory_;
  CudaTensor handle_;
  uint32_t cols_;
};

void Shape(uint32_t out_features, uint32_t in_features, BenchDevice* bench,
           CudaExpertsWeight* weight) {
  weight->num_experts = kRouting.num_experts;
  weight->out_features = out_features;
  weight->in_features = in_features;
  weight->matrices =
      bench->Filled(uint64_t{2} * kRouting.num_experts * out_features * in_features, 0.02f);
}

size_t NumExperts(Device* device, const ExpertRoutes& routes) {
  const auto& found = static_cast<const CudaRoutes&>(routes);
  std::vector<uint32_t> experts(found.rows());
  device->Download(found.experts.data(), experts.size() * sizeof(uint32_t), experts.data());
  CHECK_OK(device->Synchronize());
  return std::set(experts.begin(), experts.end()).size();
}

}  // namespace

void ExpertRows(BenchDevice* bench) {
  if (!bench->IsWanted("experts")) return;
  CudaExperts experts(bench->device(), Element::kBFloat16);
  CudaExpertsWeight gate_up, down;
  Shape(2 * kInner, kHidden, bench, &gate_up);
  Shape(kHidden, kInner, bench, &down);
  const auto router_matrix = std::make_shared<CudaMatrix>();
  router_matrix->buffer = bench->Allocate(uint64_t{kRouting.num_experts} * kHidden * sizeof(float));
  bench->FillFloats(router_matrix->buffer);
  CudaLinear router;
  router.matrix = router_matrix;
  router.out_features = kRouting.num_experts;
  router.in_features = kHidden;
  std::vector<Rows> x;
  std::array<ExpertRoutes*, kSets> routes;
  for (ExpertRoutes*& set : routes) {
    auto made = experts.NewRoutes(kRouting, {kMostTokens, kHidden, kHidden});
    CHECK_OK(made.status());
    set = *made;
    x.emplace_back(bench, kMostTokens, kHidden, Element::kBFloat16);
  }
  Rows inner(bench, kMostTokens * kRouting.top_k, kInner, Element::kBFloat16);
  Rows out(bench, kMostTokens, kHidden, Element::kFloat32);
  for (const uint32_t tokens : {1u, 8u, 64u, 256u, kMostTokens}) {
    const auto route = [&](uint32_t i) {
      experts.Route(router, x[i % kSets].First(tokens), routes[i % kSets]);
    };
    double read = 0;
    for (uint32_t i = 0; i < kSets; ++i) {
      route(i);
      read += static_cast<double>(NumExperts(bench->device(), *routes[i])) / kSets;
    }
    const auto name = [&](const char* what) {
      return "experts, " + std::string(what) + ", tokens: " + std::to_string(tokens) +
             ", read: " + std::to_string(std::lround(read));
    };
    const uint32_t rows = tokens * kRouting.top_k;
    const double matrix_bytes = 2.0 * read * kHidden * kInner;
    const double matrix_flops = 2.0 * rows * kHidden * kInner;
    const double x_bytes = 2.0 * tokens * kHidden;
    const double inner_bytes = 2.0 * rows * kInner;
    bench->Row(name("route"), 4.0 * kRouting.num_experts * kHidden + x_bytes,
               2.0 * tokens * kHidden * kRouting.num_experts, route);
    bench->Row(name("gate, up"), 2 * matrix_bytes + x_bytes + inner_bytes, 2 * matrix_flops,
               [&](uint32_t i) {
                 experts.ActMul({gate_up}, routes[i % kSets], x[i % kSets].First(tokens),
                                inner.First(rows));
               });
    // Their sums are written and read, too.
    bench->Row(name("down, added up"),
               matrix_bytes + inner_bytes + 4.0 * (2.0 * rows + tokens) * kHidden, matrix_flops,
               [&](uint32_t i) {
                 experts.Linear(down, routes[i % kSets], inner.First(rows), out.First(tokens));
               });
  }
}

}  // namespace flotilla::cuda
