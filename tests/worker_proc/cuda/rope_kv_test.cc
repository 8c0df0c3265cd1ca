// Head norms, RoPE and the write into the paged cache in one kernel, emulated: against fp64.
#include <gtest/gtest.h>

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
  uint32_t heads, kv_heads, qk_dim, v_dim, rope_dim;
  bool interleaved;
  bool norms;
};
const Shape kShapes[] = {
    {9, 3, 64, 64, 64, true, false},      // SmolLM2 as GGUF has it
    {9, 3, 64, 64, 64, false, false},     // and as safetensors have it
    {4, 1, 256, 256, 256, false, true},   // Gemma 3 270M
    {16, 8, 128, 128, 128, false, true},  // Qwen3-0.6B
    {2, 1, 20, 12, 8, true, true},       {3, 3, 17, 9, 6, false, false},
    {1, 1, 2, 1, 2, false, true},
};
constexpr uint32_t kTokens = 5, kPageSize = 3, kPages = 4, kPositions = 50;

struct Problem {
  explicit Problem(const Shape& shape)
      : cols((shape.heads + shape.kv_heads) * shape.qk_dim + shape.kv_heads * shape.v_dim),
        qkv(RandomFloats(size_t{kTokens} * cols, 1)),
        q_norm(RandomFloats(shape.qk_dim, 2)),
        k_norm(RandomFloats(shape.qk_dim, 3)) {
    for (uint32_t p = 0; p < kPositions; ++p) {
      for (uint32_t i = 0; i < shape.rope_dim / 2; ++i) {
        const double angle = p * std::pow(10000.0, -2.0 * i / shape.rope_dim);
        table.push_back(static_cast<float>(std::cos(angle)));
        table.push_back(static_cast<float>(std::sin(angle)));
      }
    }
  }
  uint32_t cols;
  std::vector<float> qkv, q_norm, k_norm, table;
  std::vector<uint32_t> positions = {49, 0, 7, 8, 1};
  std::vector<int64_t> slots = {11, 0, -1, 4, 5};  // the third is padding
};

std::vector<double> Exact(const Shape& s, const Problem& problem) {
  std::vector<double> out(problem.qkv.begin(), problem.qkv.end());
  for (uint32_t t = 0; t < kTokens; ++t) {
    for (uint32_t h = 0; h < s.heads + s.kv_heads; ++h) {
      double* const x = &out[size_t{t} * problem.cols + h * s.qk_dim];
      if (s.norms) {
        double squares = 0;
        for (uint32_t d = 0; d < s.qk_dim; ++d) squares += x[d] * x[d];
        const auto& weight = h < s.heads ? problem.q_norm : problem.k_norm;
        for (uint32_t d = 0; d < s.qk_dim; ++d)
          x[d] *= weight[d] / std::sqrt(squares / s.qk_dim + 1e-6);
      }
      for (uint32_t i = 0; i < s.rope_dim / 2; ++i) {
        const size_t angle = (size_t{problem.positions[t]} * (s.rope_dim / 2) + i) * 2;
        const double cos = problem.table[angle], sin = problem.table[angle + 1];
        double& a = x[s.interleaved ? 2 * i : i];
        double& b = x[s.interleaved ? 2 * i + 1 : i + s.rope_dim / 2];
        const double rotated = a * cos - b * sin;
        b = b * cos + a * sin;
        a = rotated;
      }
    }
  }
  return out;
}

// The cache's element d of the token's row of a kv head.
size_t InCache(int64_t slot, uint32_t head, uint32_t heads, uint32_t dim) {
  const auto page = static_cast<size_t>(slot) / kPageSize;
  return ((page * heads + head) * kPageSize + static_cast<size_t>(slot) % kPageSize) * dim;
}

TEST(RopeKvTest, MatchesDoubleAndWritesOnlyTheSlots) {
  for (const Shape& s : kShapes) {
    for (const Element type : kElements) {
      for (const uint64_t seed : kSeeds) {
        emulation::SetSeed(seed);
        Problem problem(s);
        const std::vector<double> exact = Exact(s, problem);
        const size_t rows = size_t{kPages} * s.kv_heads * kPageSize;
        Values k(type, std::vector<float>(rows * s.qk_dim, 77));
        Values v(type, std::vector<float>(rows * s.v_dim, 77));
        RopeKvArgs args;
        args.qkv = problem.qkv.data();
        args.tokens = kTokens;
        args.num_heads = s.heads;
        args.kv = {k.data(), v.data(), type, kPageSize, s.kv_heads, s.qk_dim, s.v_dim};
        if (s.norms) {
          args.q_norm = problem.q_norm.data();
          args.k_norm = problem.k_norm.data();
        }
        args.eps = 1e-6f;
        args.table = problem.table.data();
        args.rope_dim = s.rope_dim;
        args.interleaved = s.interleaved;
        args.positions = problem.positions.data();
        args.slot_mapping = problem.slots.data();
        Table().rope_kv(args, nullptr);
        EXPECT_LT(RelativeError(problem.qkv, exact), 2e-6) << s.qk_dim;
        size_t written = 0;
        for (uint32_t t = 0; t < kTokens; ++t) {
          if (problem.slots[t] < 0) continue;
          for (uint32_t h = 0; h < s.kv_heads; ++h) {
            const double* const x = &exact[size_t{t} * problem.cols];
            for (uint32_t d = 0; d < s.qk_dim; ++d, ++written) {
              const double want = x[(s.heads + h) * s.qk_dim + d];
              EXPECT_NEAR(k.At(InCache(problem.slots[t], h, s.kv_heads, s.qk_dim) + d), want,
                          std::abs(want) * 2 * Tolerance(type) + 2e-6);
            }
            for (uint32_t d = 0; d < s.v_dim; ++d, ++written) {
              const double want = x[(s.heads + s.kv_heads) * s.qk_dim + h * s.v_dim + d];
              EXPECT_NEAR(v.At(InCache(problem.slots[t], h, s.kv_heads, s.v_dim) + d), want,
                          std::abs(want) * 2 * Tolerance(type) + 2e-6);
            }
          }
        }
        size_t untouched = 0;
        for (size_t i = 0; i < k.size(); ++i) untouched += k.At(i) == 77 ? 1 : 0;
        for (size_t i = 0; i < v.size(); ++i) untouched += v.At(i) == 77 ? 1 : 0;
        EXPECT_EQ(untouched + written, k.size() + v.size());
      }
    }
  }
}

TEST(RopeKvTest, ALayerThatSharesACacheWritesNothing) {
  const Shape s = kShapes[0];
  Problem problem(s);
  Values k(Element::kBFloat16, std::vector<float>(size_t{kPages} * 3 * kPageSize * 64, 77));
  Values v = k;
  RopeKvArgs args;
  args.qkv = problem.qkv.data();
  args.tokens = kTokens;
  args.num_heads = s.heads;
  args.kv = {k.data(), v.data(), Element::kBFloat16, kPageSize, 3, 64, 64};
  args.writes_kv = false;
  args.table = problem.table.data();
  args.rope_dim = s.rope_dim;
  args.interleaved = s.interleaved;
  args.positions = problem.positions.data();
  args.slot_mapping = problem.slots.data();
  const Values before = k;
  Table().rope_kv(args, nullptr);
  EXPECT_TRUE(k == before && v == before);
}

}  // namespace
}  // namespace flotilla::cuda
