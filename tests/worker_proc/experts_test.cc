// Experts on the CPU: which of them a token goes to, and that its result has the same bits whatever
// other tokens, threads and instruction sets there are.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>

#include "tests/worker_proc/tiles_emulated.h"
#include "worker_proc/cpu/cpu_backend.h"
#include "worker_proc/cpu/cpu_experts.h"
#include "worker_proc/cpu/isa.h"
#include "worker_proc/cpu/quantize_weights.h"

namespace flotilla {
namespace {

constexpr uint32_t kHidden = 160, kInner = 96, kExperts = 6, kTopK = 2;
constexpr uint32_t kMaxTokens = 300;

// A matrix in memory, in float or as Q8_0.
struct Matrix {
  std::vector<float> floats;
  std::vector<uint8_t> blocks;
  TensorView view;
};

Matrix Random(uint32_t rows, uint32_t cols, bool quantised, std::mt19937* random) {
  Matrix matrix;
  std::normal_distribution<float> normal(0, 1 / std::sqrt(static_cast<float>(cols)));
  for (uint32_t i = 0; i < rows * cols; ++i) matrix.floats.push_back(normal(*random));
  matrix.view = {"random", DType::kF32, rows, cols, {}};
  matrix.view.data = {reinterpret_cast<const uint8_t*>(matrix.floats.data()),
                      matrix.floats.size() * sizeof(float)};
  if (!quantised) return matrix;
  matrix.view.dtype = DType::kQ8_0;
  matrix.blocks.resize(rows * matrix.view.row_bytes());
  CHECK(cpu::QuantizeQ8_0(matrix.floats, matrix.blocks.data()));
  matrix.view.data = matrix.blocks;
  return matrix;
}

struct Weights {
  explicit Weights(bool quantised) {
    std::mt19937 random(7);
    router = Random(kExperts, kHidden, false, &random);
    for (uint32_t e = 0; e < kExperts; ++e) {
      gate.push_back(Random(kInner, kHidden, quantised, &random));
      up.push_back(Random(kInner, kHidden, quantised, &random));
      down.push_back(Random(kHidden, kInner, quantised, &random));
    }
  }
  Matrix router;
  std::vector<Matrix> gate, up, down;
};

struct Arithmetic {
  std::string isa = "reference";
  uint32_t threads = 1;
  bool tiles = false;
};

// A layer's experts, loaded once.
class Layer {
 public:
  Layer(const Weights& weights, bool quantised, const Arithmetic& arithmetic,
        const ExpertRouting& routing = {kExperts, kTopK, true})
      : routing_(routing) {
    CpuBackendOptions options;
    options.kernels = *cpu::SelectKernels(arithmetic.isa);
    options.quant_kernels = arithmetic.tiles ? cpu::testing::EmulatedTilesAvx2().table
                                             : *cpu::SelectQuantKernels(arithmetic.isa);
    options.dtype = quantised ? cpu::ComputeType::kInt8 : cpu::ComputeType::kFloat32;
    options.threads.threads = arithmetic.threads;
    backend_ = MakeCpuBackend(options);
    std::vector<std::vector<WeightRows>> gate_up, down;
    for (uint32_t e = 0; e < kExperts; ++e) {
      gate_up.push_back({{&weights.gate[e].view, 0, kInner}, {&weights.up[e].view, 0, kInner}});
      down.push_back({{&weights.down[e].view, 0, kHidden}});
    }
    gate_up_ = *backend_->LoadExperts(gate_up);
    down_ = *backend_->LoadExperts(down);
    router_ = *backend_->LoadRouter(weights.router.view);
    norm_values_.assign(kHidden, 1);
    norm_view_ = {"norm",
                  DType::kF32,
                  1,
                  kHidden,
                  {reinterpret_cast<const uint8_t*>(norm_values_.data()), kHidden * sizeof(float)}};
    norm_ = *backend_->LoadVector(norm_view_, {});
    const uint32_t rows = kMaxTokens * routing.top_k;
    routes_ = *backend_->NewExpertRoutes(routing, {kMaxTokens, kHidden, kHidden});
    in_ = *backend_->NewTensor(TensorUse::kHidden, kMaxTokens, kHidden);
    x_ = *backend_->NewTensor(TensorUse::kRouterInput, kMaxTokens, kHidden);
    wide_ = *backend_->NewTensor(TensorUse::kExpertsGateUp, rows, 2 * kInner);
    activated_ = *backend_->NewTensor(TensorUse::kLinearInput, rows, kInner);
    out_ = *backend_->NewTensor(TensorUse::kHidden, kMaxTokens, kHidden);
    CHECK_OK(backend_->Warmup({kMaxTokens, 1, kMaxTokens, 16}));
  }

  std::vector<float> Run(const std::vector<float>& tokens) {
    const auto n = static_cast<uint32_t>(tokens.size() / kHidden);
    std::memcpy(cpu::F32(in_), tokens.data(), tokens.size() * sizeof(float));
    backend_->RmsNorm(in_.First(n), *norm_, 1e-6f, x_.First(n));
    backend_->RouteTokens(*router_, x_.First(n), routes_);
    const uint32_t rows = n * routing_.top_k;
    backend_->ExpertsActMul({*gate_up_}, routes_, x_.First(n), wide_.First(rows),
                            activated_.First(rows));
    backend_->ExpertsLinear(*down_, routes_, activated_.First(rows), out_.First(n));
    return {cpu::F32(out_), cpu::F32(out_) + tokens.size()};
  }
  const cpu::CpuRoutes& routes() const { return static_cast<const cpu::CpuRoutes&>(*routes_); }

 private:
  const ExpertRouting routing_;
  std::unique_ptr<Backend> backend_;
  std::vector<float> norm_values_;
  TensorView norm_view_;
  std::unique_ptr<ExpertsWeight> gate_up_, down_;
  std::unique_ptr<LinearWeight> router_;
  std::unique_ptr<VectorWeight> norm_;
  ExpertRoutes* routes_ = nullptr;
  Tensor in_, x_, wide_, activated_, out_;
};

std::vector<float> RandomTokens(uint32_t tokens) {
  std::mt19937 random(tokens);
  std::normal_distribution<float> normal;
  std::vector<float> values(size_t{tokens} * kHidden);
  for (float& value : values) value = normal(random);
  return values;
}

// ---- Which experts -----------------------------------------------------------------------------

// A router whose logits are what a test says: token t is the unit vector t, so logit e of token t
// is proportional to the router's element [e][t].
std::vector<std::pair<uint32_t, float>> Choose(const std::vector<float>& logits,
                                               const ExpertRouting& routing) {
  Weights weights(false);
  const float unit = std::sqrt(static_cast<float>(kHidden));  // of one that is normed
  for (uint32_t e = 0; e < kExperts; ++e)
    weights.router.floats[size_t{e} * kHidden] = logits[e] / unit;
  Layer layer(weights, false, {}, routing);
  std::vector<float> token(kHidden);
  token[0] = 1e6f;
  layer.Run(token);
  std::vector<std::pair<uint32_t, float>> chosen;
  for (uint32_t k = 0; k < routing.top_k; ++k)
    chosen.emplace_back(layer.routes().experts[k], layer.routes().weights[k]);
  return chosen;
}

TEST(ExpertsTest, TheMostLikelyAreTakenAndOfEqualOnesTheFirst) {
  const auto two = Choose({0, 3, 1, 3, -5, 2}, {kExperts, 2, true});
  EXPECT_EQ(two[0].first, 1u);
  EXPECT_EQ(two[1].first, 3u);
  EXPECT_EQ(two[0].second, 0.5f);
  EXPECT_EQ(two[1].second, 0.5f);
  const auto equal = Choose({1, 1, 1, 1, 1, 1}, {kExperts, 3, false});
  for (uint32_t k = 0; k < 3; ++k) {
    EXPECT_EQ(equal[k].first, k);
    EXPECT_NEAR(equal[k].second, 1.0 / 6, 1e-6);
  }
}

TEST(ExpertsTest, WeightsAreOfAllExpertsOrOfTheChosen) {
  const std::vector<float> logits = {0, 2, -1, 1, 0.5f, -2};
  double all = 0;
  for (const float logit : logits) all += std::exp(logit);
  const double chosen = std::exp(2.0) + std::exp(1.0);
  const auto of_all = Choose(logits, {kExperts, 2, false});
  EXPECT_NEAR(of_all[0].second, std::exp(2.0) / all, 1e-5);
  EXPECT_NEAR(of_all[1].second, std::exp(1.0) / all, 1e-5);
  const auto of_chosen = Choose(logits, {kExperts, 2, true});
  EXPECT_EQ(of_chosen[1].first, 3u);
  EXPECT_NEAR(of_chosen[0].second, std::exp(2.0) / chosen, 1e-5);
  EXPECT_NEAR(of_chosen[1].second, std::exp(1.0) / chosen, 1e-5);
}

// What is no number stays in its row, and stays none.
TEST(ExpertsTest, ATokenThatIsNoNumberSpoilsNoOther) {
  const Weights weights(false);
  Layer layer(weights, false, {});
  std::vector<float> tokens = RandomTokens(3);
  const std::vector<float> expected = layer.Run(tokens);
  tokens[kHidden + 5] = std::numeric_limits<float>::quiet_NaN();
  const std::vector<float> out = layer.Run(tokens);
  for (uint32_t i = 0; i < kHidden; ++i) {
    EXPECT_EQ(out[i], expected[i]);
    EXPECT_TRUE(std::isnan(out[kHidden + i]));
    EXPECT_EQ(out[2 * kHidden + i], expected[2 * kHidden + i]);
  }
}

TEST(ExpertsTest, RowsLieByExpertWithTokensInTheirOrder) {
  const Weights weights(false);
  Layer layer(weights, false, {});
  layer.Run(RandomTokens(50));
  const cpu::CpuRoutes& routes = layer.routes();
  EXPECT_EQ(routes.row_begin.front(), 0u);
  EXPECT_EQ(routes.row_begin.back(), 50 * kTopK);
  uint32_t seen = 0;
  for (uint32_t e = 0; e < kExperts; ++e) {
    for (uint32_t row = routes.row_begin[e]; row < routes.row_begin[e + 1]; ++row, ++seen) {
      if (row > routes.row_begin[e]) {
        EXPECT_LT(routes.row_tokens[row - 1], routes.row_tokens[row]);
      }
      const size_t first = size_t{routes.row_tokens[row]} * kTopK;
      const size_t k = routes.experts[first] == e ? first : first + 1;
      EXPECT_EQ(routes.experts[k], e);
      EXPECT_EQ(routes.row_weights[row], routes.weights[k]);
    }
  }
  EXPECT_EQ(seen, 50 * kTopK);
}

// ---- Bits --------------------------------------------------------------------------------------

class ExpertsBitsTest : public ::testing::TestWithParam<bool> {};

// More rows than a tile, a slice or an expert's share of a step has, and fewer.
TEST_P(ExpertsBitsTest, ATokensResultIsItsOwn) {
  const Weights weights(GetParam());
  Layer alone(weights, GetParam(), {});
  const std::vector<float> tokens = RandomTokens(kMaxTokens);
  std::vector<float> expected;
  for (uint32_t t = 0; t < kMaxTokens; ++t) {
    const auto begin = tokens.begin() + static_cast<ptrdiff_t>(t) * kHidden;
    const std::vector<float> out = alone.Run({begin, begin + kHidden});
    expected.insert(expected.end(), out.begin(), out.end());
  }
  const uint64_t before = *cpu::testing::EmulatedTilesAvx2().products;
  std::vector<Arithmetic> cases = {{"avx2", 1, true}, {"avx2", 3, true}};
  for (const std::string& isa : cpu::SupportedIsas()) {
    for (const uint32_t threads : {1u, 2u, 3u}) cases.push_back({isa, threads});
  }
  for (const Arithmetic& arithmetic : cases) {
    SCOPED_TRACE(arithmetic.isa + " by " + std::to_string(arithmetic.threads));
    Layer layer(weights, GetParam(), arithmetic);
    for (const uint32_t n : {kMaxTokens, 1u, 77u, 16u}) {
      const size_t values = size_t{n} * kHidden;
      const std::vector<float> out = layer.Run({tokens.data(), tokens.data() + values});
      ASSERT_EQ(std::memcmp(out.data(), expected.data(), values * sizeof(float)), 0) << n;
    }
  }
  EXPECT_EQ(*cpu::testing::EmulatedTilesAvx2().products > before, GetParam());
}

INSTANTIATE_TEST_SUITE_P(Types, ExpertsBitsTest, ::testing::Bool(),
                         [](const auto& info) { return info.param ? "Q8_0" : "Float32"; });

}  // namespace
}  // namespace flotilla
