// Mixtures of experts, emulated: routes, products and sums of a step against plain loops in double
// precision, in every type, for widths of whole packs and odd ones; a token's bits whatever else is
// in its step, for tiles of either height, and for any order of threads.
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "tests/worker_proc/cuda/device_values.h"

namespace flotilla::cuda {
namespace {

using testing::kElements;
using testing::kSeeds;
using testing::RandomFloats;
using testing::RelativeError;
using testing::Table;
using testing::Tolerance;
using testing::Values;

struct Shape {
  uint32_t tokens, num_experts, top_k, hidden, inner;
  bool renormalize = true;
};

// What nobody has written.
constexpr uint32_t kUnset = 0xdeadbeef;

// What route_tokens says of a step.
struct Routes {
  explicit Routes(const Shape& shape)
      : logits(size_t{shape.tokens} * shape.num_experts, NAN),
        experts(size_t{shape.tokens} * shape.top_k, kUnset),
        weights(experts.size(), NAN),
        row_tokens(experts.size(), kUnset),
        token_rows(experts.size(), kUnset) {}

  std::vector<float> logits;
  std::vector<uint32_t> experts;
  std::vector<float> weights;
  std::vector<uint32_t> row_tokens, token_rows;
  std::vector<ExpertTile> tiles;
  uint32_t tile_rows = 0;
};

Routes Route(const Shape& shape, const Values& x, Element type, const std::vector<float>& router,
             uint32_t tile_rows = 0) {
  Routes routes(shape);
  const auto rows = static_cast<uint32_t>(routes.experts.size());
  routes.tile_rows = tile_rows > 0 ? tile_rows : TileRowsOf(rows, shape.num_experts);
  routes.tiles.assign(MostTiles(rows, shape.num_experts, routes.tile_rows), {kUnset, kUnset, 1});
  Table().route_tokens(
      {x.data(), type, router.data(), shape.tokens, shape.hidden, shape.num_experts, shape.top_k,
       shape.renormalize, routes.logits.data(), routes.experts.data(), routes.weights.data(),
       routes.row_tokens.data(), routes.token_rows.data(), routes.tiles.data(), routes.tile_rows,
       static_cast<uint32_t>(routes.tiles.size())},
      nullptr);
  return routes;
}

void ExpectLogits(const Shape& shape, const Values& x, const std::vector<float>& router,
                  const Routes& routes) {
  std::vector<double> exact;
  for (uint32_t t = 0; t < shape.tokens; ++t) {
    for (uint32_t e = 0; e < shape.num_experts; ++e) {
      double sum = 0;
      for (uint32_t k = 0; k < shape.hidden; ++k)
        sum += double{x.At(size_t{t} * shape.hidden + k)} * router[size_t{e} * shape.hidden + k];
      exact.push_back(sum);
    }
  }
  EXPECT_LT(RelativeError(routes.logits, exact), Tolerance(Element::kFloat32));
}

// Of a token by its logits: its experts, by number, and their weights.
void ExpectChoice(const Shape& shape, const Routes& routes, uint32_t t) {
  const float* const logits = routes.logits.data() + size_t{t} * shape.num_experts;
  std::vector<uint32_t> order(shape.num_experts);
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](uint32_t a, uint32_t b) { return logits[a] > logits[b]; });
  double sum = 0;
  for (uint32_t i = 0; i < (shape.renormalize ? shape.top_k : shape.num_experts); ++i)
    sum += std::exp(double{logits[order[i]]} - logits[order[0]]);
  const float largest = logits[order[0]];
  order.resize(shape.top_k);
  std::sort(order.begin(), order.end());
  for (uint32_t k = 0; k < shape.top_k; ++k) {
    const size_t at = size_t{t} * shape.top_k + k;
    ASSERT_EQ(routes.experts[at], order[k]) << "token " << t;
    const double weight = std::exp(double{logits[order[k]]} - largest) / sum;
    EXPECT_NEAR(routes.weights[at], weight, 1e-6) << "token " << t;
  }
}

// Rows by expert, tokens in their order; tiles over them.
void ExpectRows(const Shape& shape, const Routes& routes) {
  uint32_t row = 0;
  auto tile = routes.tiles.begin();
  for (uint32_t e = 0; e < shape.num_experts; ++e) {
    const uint32_t begin = row;
    for (uint32_t i = 0; i < routes.experts.size(); ++i) {
      if (routes.experts[i] != e) continue;
      ASSERT_EQ(routes.row_tokens[row], i / shape.top_k);
      ASSERT_EQ(routes.token_rows[i], row);
      ++row;
    }
    for (uint32_t first = begin; first < row; first += routes.tile_rows) {
      ASSERT_NE(tile, routes.tiles.end());
      EXPECT_EQ(tile->expert, e);
      EXPECT_EQ(tile->first_row, first);
      EXPECT_EQ(tile->rows, std::min(routes.tile_rows, row - first));
      ++tile;
    }
  }
  EXPECT_EQ(row, routes.experts.size());
  for (; tile != routes.tiles.end(); ++tile) EXPECT_EQ(tile->rows, 0u);
}

void ExpectRoutes(const Shape& shape, const Routes& routes) {
  for (uint32_t t = 0; t < shape.tokens; ++t) ExpectChoice(shape, routes, t);
  ExpectRows(shape, routes);
}

// ---- Routes -----------------------------------------------------------------------------------

constexpr Shape kRoutes[] = {{1, 5, 2, 64, 0},           {37, 5, 2, 64, 0},
                             {33, 12, 4, 96, 0, false},  {200, 128, 8, 40, 0},
                             {3, 1024, 40, 8, 0},        {34, 1024, 33, 8, 0, false},
                             {40, 3, 3, 33, 0},          {7, 1, 1, 7, 0},
                             {32, 33, 1, 100, 0, false}, {300, 8, 2, 16, 0, false}};

TEST(RouteTest, MatchesDoubleInAnyOrderOfThreads) {
  for (const Shape& shape : kRoutes) {
    SCOPED_TRACE(StrCat(shape.tokens, " tokens of ", shape.num_experts));
    for (const Element type : kElements) {
      const Values x(type, RandomFloats(size_t{shape.tokens} * shape.hidden, 1));
      const auto router = RandomFloats(size_t{shape.num_experts} * shape.hidden, 2, 0.3f);
      std::vector<Routes> runs;
      for (const uint64_t seed : {kSeeds[0], kSeeds[1]}) {
        emulation::SetSeed(seed);
        runs.push_back(Route(shape, x, type, router));
      }
      ExpectLogits(shape, x, router, runs[0]);
      ExpectRoutes(shape, runs[0]);
      EXPECT_EQ(runs[0].logits, runs[1].logits);
      EXPECT_EQ(runs[0].weights, runs[1].weights);
      EXPECT_EQ(runs[0].row_tokens, runs[1].row_tokens);
    }
  }
}

// Of a token's routes the other tokens change nothing but the rows.
TEST(RouteTest, ATokenIsRoutedAlike) {
  const Shape shape = {70, 20, 6, 72, 0, false};
  const Values x(Element::kFloat32, RandomFloats(size_t{shape.tokens} * shape.hidden, 3));
  const auto router = RandomFloats(size_t{shape.num_experts} * shape.hidden, 4, 0.3f);
  const Routes all = Route(shape, x, Element::kFloat32, router);
  for (const uint32_t t : {0u, 5u, 31u, 32u, 69u}) {
    Shape one = shape;
    one.tokens = 1;
    const auto floats = x.floats();
    const auto begin = floats.begin() + t * shape.hidden;
    const Values of_token(Element::kFloat32, std::vector<float>(begin, begin + shape.hidden));
    const Routes alone = Route(one, of_token, Element::kFloat32, router);
    for (uint32_t k = 0; k < shape.top_k; ++k) {
      EXPECT_EQ(alone.experts[k], all.experts[t * shape.top_k + k]);
      EXPECT_EQ(alone.weights[k], all.weights[t * shape.top_k + k]);
    }
  }
}

TEST(RouteTest, OfEqualLogitsTheFirst) {
  for (const uint32_t tokens : {1u, 37u}) {
    for (const bool renormalize : {false, true}) {
      const Shape shape = {tokens, 50, 7, 24, 0, renormalize};
      const Values x(Element::kBFloat16, RandomFloats(size_t{tokens} * shape.hidden, 5));
      // All equal, of both signs; then each the same as four others.
      std::vector<float> router(size_t{shape.num_experts} * shape.hidden, 0.0f);
      for (size_t i = 0; i < router.size(); i += 3) router[i] = -0.0f;
      const Routes equal = Route(shape, x, Element::kBFloat16, router);
      for (uint32_t i = 0; i < equal.experts.size(); ++i) {
        EXPECT_EQ(equal.experts[i], i % shape.top_k);
        EXPECT_FLOAT_EQ(equal.weights[i], 1.0f / (renormalize ? shape.top_k : shape.num_experts));
      }
      ExpectRows(shape, equal);
      const auto ten = RandomFloats(size_t{10} * shape.hidden, 6);
      for (size_t i = 0; i < router.size(); ++i) router[i] = ten[i % ten.size()];
      ExpectRoutes(shape, Route(shape, x, Element::kBFloat16, router));
    }
  }
}

// Whatever a row of a graph's padding has: it gets experts of its own.
TEST(RouteTest, WhatIsNoNumberGetsExpertsToo) {
  const Shape shape = {40, 9, 3, 16, 0};
  auto floats = RandomFloats(size_t{shape.tokens} * shape.hidden, 7);
  std::fill_n(floats.begin() + 2 * shape.hidden, 2 * shape.hidden, NAN);
  floats[5 * shape.hidden] = INFINITY;
  const Values x(Element::kFloat32, floats);
  const auto router = RandomFloats(size_t{shape.num_experts} * shape.hidden, 8);
  const Routes routes = Route(shape, x, Element::kFloat32, router);
  ExpectRows(shape, routes);
  for (uint32_t t = 0; t < shape.tokens; ++t) {
    if (t == 2 || t == 3) {
      for (uint32_t k = 0; k < shape.top_k; ++k) EXPECT_EQ(routes.experts[t * shape.top_k + k], k);
    } else if (t != 5) {
      ExpectChoice(shape, routes, t);
    }
  }
}

// ---- Products ---------------------------------------------------------------------------------

// A layer's matrices and a step's inputs.
struct Layer {
  Layer(const Shape& layer, Element element, HiddenAct hidden_act)
      : shape(layer),
        type(element),
        act(hidden_act),
        x(type, RandomFloats(size_t{shape.tokens} * shape.hidden, 9)),
        router(RandomFloats(size_t{shape.num_experts} * shape.hidden, 10, 0.3f)),
        gate_up(type,
                RandomFloats(size_t{2} * shape.num_experts * shape.inner * shape.hidden, 11, 0.2f)),
        down(type, RandomFloats(size_t{shape.num_experts} * shape.hidden * shape.inner, 12, 0.2f)) {
  }

  Shape shape;
  Element type;
  HiddenAct act;
  Values x;
  std::vector<float> router;
  Values gate_up, down;
};

struct Result {
  Routes routes;
  Values activated;         // by row
  std::vector<float> rows;  // by row
  std::vector<float> out;   // by token
};

Result RunLayer(const Layer& layer, uint32_t tile_rows = 0) {
  const Shape& shape = layer.shape;
  const size_t rows = size_t{shape.tokens} * shape.top_k;
  Result result = {Route(shape, layer.x, layer.type, layer.router, tile_rows),
                   Values(layer.type, rows * shape.inner),
                   std::vector<float>(rows * shape.hidden, NAN),
                   std::vector<float>(size_t{shape.tokens} * shape.hidden, NAN)};
  const Routes& routes = result.routes;
  const auto num_tiles = static_cast<uint32_t>(routes.tiles.size());
  Table().expert_gemm({layer.gate_up.data(), layer.type, shape.inner, shape.hidden, layer.x.data(),
                       routes.row_tokens.data(), routes.tiles.data(), routes.tile_rows, num_tiles,
                       true, layer.act, result.activated.data()},
                      nullptr);
  Table().expert_gemm(
      {layer.down.data(), layer.type, shape.hidden, shape.inner, result.activated.data(), nullptr,
       routes.tiles.data(), routes.tile_rows, num_tiles, false, layer.act, result.rows.data()},
      nullptr);
  Table().combine_experts({result.rows.data(), routes.token_rows.data(), routes.weights.data(),
                           shape.tokens, shape.top_k, shape.hidden, result.out.data()},
                          nullptr);
  return result;
}

double Dot(const Values& matrix, size_t row, const Values& x, size_t x_row, uint32_t cols) {
  double sum = 0;
  for (uint32_t k = 0; k < cols; ++k)
    sum += double{matrix.At(row * cols + k)} * x.At(x_row * cols + k);
  return sum;
}

double ActOf(HiddenAct act, double x) {
  if (act == HiddenAct::kSilu) return x / (1 + std::exp(-x));
  return 0.5 * x * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
}

// Each step against plain loops over what the step before gave.
void ExpectLayer(const Layer& layer, const Result& result) {
  const Shape& shape = layer.shape;
  const Routes& routes = result.routes;
  std::vector<double> activated(result.activated.size());
  std::vector<double> out(result.out.size(), 0.0);
  for (uint32_t i = 0; i < routes.experts.size(); ++i) {
    const size_t t = i / shape.top_k, e = routes.experts[i], row = routes.token_rows[i];
    for (uint32_t c = 0; c < shape.inner; ++c) {
      const size_t gate = e * 2 * shape.inner + c;
      activated[row * shape.inner + c] =
          ActOf(layer.act, Dot(layer.gate_up, gate, layer.x, t, shape.hidden)) *
          Dot(layer.gate_up, gate + shape.inner, layer.x, t, shape.hidden);
    }
    for (uint32_t c = 0; c < shape.hidden; ++c) {
      out[t * shape.hidden + c] += routes.weights[i] * Dot(layer.down, e * shape.hidden + c,
                                                           result.activated, row, shape.inner);
    }
  }
  // Of 16 bits, gate and up are rounded before they are multiplied.
  EXPECT_LT(RelativeError(result.activated.floats(), activated), 2 * Tolerance(layer.type));
  EXPECT_LT(RelativeError(result.out, out), Tolerance(Element::kFloat32));
}

// The sum's order: each token's experts from the first on, rounded as it goes.
void ExpectOrderOfSums(const Layer& layer, const Result& result) {
  const Shape& shape = layer.shape;
  for (uint32_t t = 0; t < shape.tokens; ++t) {
    for (uint32_t c = 0; c < shape.hidden; ++c) {
      float sum = 0;
      for (uint32_t k = 0; k < shape.top_k; ++k) {
        const size_t at = size_t{t} * shape.top_k + k;
        sum = std::fma(result.routes.weights[at],
                       result.rows[size_t{result.routes.token_rows[at]} * shape.hidden + c], sum);
      }
      ASSERT_EQ(result.out[size_t{t} * shape.hidden + c], sum);
    }
  }
}

// One token, a few and many; widths of whole chunks and of less, and odd ones.
constexpr Shape kLayers[] = {{1, 5, 2, 96, 160},  {37, 5, 2, 96, 160}, {20, 12, 4, 64, 48, false},
                             {37, 4, 3, 100, 33}, {9, 3, 1, 7, 1},     {70, 2, 1, 128, 36},
                             {150, 4, 2, 48, 80}};

TEST(ExpertsTest, MatchDoubleInAnyOrderOfThreads) {
  for (const Shape& shape : kLayers) {
    SCOPED_TRACE(StrCat(shape.tokens, " tokens of ", shape.num_experts, ", ", shape.hidden));
    for (const Element type : kElements) {
      const Layer layer(shape, type, shape.top_k == 2 ? HiddenAct::kSilu : HiddenAct::kGeluTanh);
      emulation::SetSeed(kSeeds[0]);
      const Result result = RunLayer(layer);
      ExpectLayer(layer, result);
      ExpectOrderOfSums(layer, result);
      emulation::SetSeed(kSeeds[1]);
      EXPECT_EQ(RunLayer(layer).out, result.out);
    }
  }
}

TEST(ExpertsTest, AllTokensOnOneExpert) {
  for (const uint32_t tile_rows : {kNarrowTileRows, kWideTileRows}) {
    for (const Element type : kElements) {
      Layer layer({75, 6, 1, 64, 40}, type, HiddenAct::kSilu);
      for (size_t i = 0; i < layer.router.size(); ++i)  // of the fourth: far above
        layer.router[i] = i / layer.shape.hidden == 3 ? 1.0f : -1.0f;
      for (size_t i = 0; i < layer.x.size(); ++i) layer.x.Set(i, std::abs(layer.x.At(i)));
      const Result result = RunLayer(layer, tile_rows);
      for (const uint32_t expert : result.routes.experts) ASSERT_EQ(expert, 3u);
      ExpectRows(layer.shape, result.routes);
      ExpectLayer(layer, result);
    }
  }
}

// In another step, and in tiles of another height.
TEST(ExpertsTest, ATokensBitsAreItsOwn) {
  for (const Shape& shape : {Shape{90, 3, 2, 96, 80}, {40, 3, 2, 50, 33}}) {
    for (const Element type : kElements) {
      const Layer layer(shape, type, HiddenAct::kSilu);
      const Result narrow = RunLayer(layer, kNarrowTileRows);
      const Result wide = RunLayer(layer, kWideTileRows);
      EXPECT_EQ(narrow.out, wide.out);
      EXPECT_TRUE(narrow.activated == wide.activated);
      for (const uint32_t t : {0u, 16u, 39u}) {
        Layer one = layer;
        one.shape.tokens = 1;
        one.x = Values(type, shape.hidden);
        for (uint32_t k = 0; k < shape.hidden; ++k)
          one.x.Set(k, layer.x.At(size_t{t} * shape.hidden + k));
        const auto begin = wide.out.begin() + t * shape.hidden;
        EXPECT_EQ(RunLayer(one).out, std::vector<float>(begin, begin + shape.hidden));
      }
    }
  }
}

// A row that is no number stays alone with it.
TEST(ExpertsTest, WhatIsNoNumberStaysInItsRow) {
  for (const Element type : kElements) {
    Layer layer({33, 2, 1, 64, 40}, type, HiddenAct::kSilu);
    const std::vector<float> expected = RunLayer(layer).out;
    const uint32_t hidden = layer.shape.hidden;
    for (uint32_t k = 0; k < hidden; ++k) layer.x.Set(32 * hidden + k, NAN);
    const std::vector<float> out = RunLayer(layer).out;
    for (uint32_t i = 0; i < 32 * hidden; ++i) ASSERT_EQ(out[i], expected[i]);
    for (uint32_t i = 32 * hidden; i < out.size(); ++i) ASSERT_TRUE(std::isnan(out[i]));
  }
}

}  // namespace
}  // namespace flotilla::cuda
