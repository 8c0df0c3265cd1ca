// RMSNorm, embedding, gates, rows, soft cap and the matrix-vector product: emulated, against fp64,
// in every type, over the widths of SmolLM2, Gemma 3 and Qwen3 and odd ones.
#include <gtest/gtest.h>

#include "tests/worker_proc/cuda/device_values.h"
#include "worker_proc/cuda/emulation/launch_queue.h"
#include "worker_proc/runner/forward_batch.h"

namespace flotilla::cuda {
namespace {

using testing::kElements;
using testing::kSeeds;
using testing::RandomFloats;
using testing::RelativeError;
using testing::Table;
using testing::Tolerance;
using testing::Values;

// SmolLM2's, Gemma 3 270M's and Qwen3's hidden sizes; odd ones.
constexpr uint32_t kWidths[] = {576, 640, 1024, 2560, 1, 7, 33, 100, 257};

TEST(RmsNormTest, MatchesDoubleInAnyOrderOfThreads) {
  constexpr uint32_t kRows = 3;
  for (const uint32_t cols : kWidths) {
    for (const Element type : kElements) {
      for (const bool adds : {false, true}) {
        const auto x = RandomFloats(size_t{kRows} * cols, 1, 2.0f);
        const auto start = RandomFloats(size_t{kRows} * cols, 2, 2.0f);
        const auto weight = RandomFloats(cols, 3);
        std::vector<double> exact;
        for (uint32_t r = 0; r < kRows; ++r) {
          double squares = 0;
          const auto value = [&](uint32_t c) {
            return x[r * cols + c] + (adds ? start[r * cols + c] : 0.0f);
          };
          for (uint32_t c = 0; c < cols; ++c) squares += double{value(c)} * value(c);
          const double scale = 1 / std::sqrt(squares / cols + 1e-5);
          for (uint32_t c = 0; c < cols; ++c) exact.push_back(value(c) * scale * weight[c]);
        }
        Values first(type);
        for (const uint64_t seed : kSeeds) {
          emulation::SetSeed(seed);
          std::vector<float> residual = start;
          Values out(type, x.size());
          Table().rms_norm({x.data(), adds ? residual.data() : nullptr, weight.data(), 1e-5f, kRows,
                            cols, out.data(), type},
                           nullptr);
          EXPECT_LT(RelativeError(out.floats(), exact), Tolerance(type)) << cols;
          for (size_t i = 0; i < residual.size(); ++i) {
            EXPECT_EQ(residual[i], adds ? start[i] + x[i] : start[i]);
          }
          EXPECT_TRUE(seed == kSeeds[0] || out == first) << cols;
          first = out;
        }
      }
    }
  }
}

TEST(RmsNormTest, InPlace) {
  auto x = RandomFloats(2 * 640, 1);
  const auto weight = RandomFloats(640, 2);
  std::vector<float> out(x.size());
  const auto run = [&](float* to) {
    Table().rms_norm({x.data(), nullptr, weight.data(), 1e-6f, 2, 640, to, Element::kFloat32},
                     nullptr);
  };
  run(out.data());
  run(x.data());
  EXPECT_EQ(x, out);
}

TEST(EmbeddingTest, GathersAndScales) {
  for (const uint32_t cols : kWidths) {
    for (const Element type : kElements) {
      const Values table(type, RandomFloats(size_t{11} * cols, 4));
      const std::vector<int32_t> ids = {10, 0, 3, 3};
      std::vector<float> out(ids.size() * cols);
      const auto expect = [&](const std::vector<size_t>& rows) {
        for (size_t t = 0; t < ids.size(); ++t) {
          for (uint32_t c = 0; c < cols; ++c) {
            ASSERT_EQ(out[t * cols + c], 2.5f * table.At(rows[t] * cols + c)) << t;
          }
        }
      };
      Table().embedding({table.data(), type, ids.data(), 4, cols, 2.5f, out.data()}, nullptr);
      expect({10, 0, 3, 3});
      // What slots 2, 0 and 1 sampled last, of which the last had no finite logits.
      const std::vector<int32_t> of_slots = {TokenOfSlot(2), 5, TokenOfSlot(0), TokenOfSlot(1)};
      const std::vector<int32_t> last_tokens = {9, -1, 4};
      Table().embedding(
          {table.data(), type, of_slots.data(), 4, cols, 2.5f, out.data(), last_tokens.data()},
          nullptr);
      expect({4, 5, 9, 0});
    }
  }
}

TEST(ActMulTest, MatchesDouble) {
  for (const HiddenAct act : {HiddenAct::kSilu, HiddenAct::kGeluTanh}) {
    for (const uint32_t cols : {1536u, 2048u, 3072u, 1u, 33u, 129u}) {
      for (const Element type : kElements) {
        const Values gate_up(type, RandomFloats(size_t{2} * 2 * cols, 5, 3.0f));
        Values out(type, size_t{2} * cols);
        Table().act_mul({gate_up.data(), type, act, 2, cols, out.data()}, nullptr);
        std::vector<double> exact;
        for (size_t r = 0; r < 2; ++r) {
          for (uint32_t c = 0; c < cols; ++c) {
            const double x = gate_up.At(r * 2 * cols + c);
            const double u = std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x);
            const double gate =
                act == HiddenAct::kSilu ? x / (1 + std::exp(-x)) : 0.5 * x * (1 + std::tanh(u));
            exact.push_back(gate * gate_up.At(r * 2 * cols + cols + c));
          }
        }
        EXPECT_LT(RelativeError(out.floats(), exact), Tolerance(type)) << cols;
      }
    }
  }
}

TEST(SelectRowsTest, CopiesWhateverTheBytesAre) {
  for (const Element type : kElements) {
    for (const uint32_t cols : {576u, 33u}) {
      const Values x(type, RandomFloats(size_t{5} * cols, 6));
      const std::vector<uint32_t> rows = {4, 0, 0, 2};
      Values out(type, rows.size() * cols);
      Table().select_rows({x.data(), rows.data(), 4, cols * ElementBytes(type), out.data()},
                          nullptr);
      for (size_t i = 0; i < out.size(); ++i)
        EXPECT_EQ(out.At(i), x.At(rows[i / cols] * cols + i % cols));
    }
  }
}

TEST(SoftCapTest, MatchesDouble) {
  const auto before = RandomFloats(2 * 301, 7, 40.0f);
  auto x = before;
  Table().soft_cap({x.data(), 2, 301, 30.0f}, nullptr);
  for (size_t i = 0; i < x.size(); ++i) EXPECT_NEAR(x[i], 30 * std::tanh(before[i] / 30.0), 3e-5);
}

// SmolLM2's matrices (without the head, which is only longer), and odd ones.
TEST(GemvTest, MatchesDoubleInAnyOrderOfThreads) {
  struct Shape {
    uint32_t out, in;
  };
  for (const Shape shape :
       {Shape{960, 576}, {576, 1536}, {256, 640}, {5, 33}, {1, 1}, {130, 257}}) {
    for (const Element type : kElements) {
      const Values weight(type, RandomFloats(size_t{shape.out} * shape.in, 8));
      const Values x(type, RandomFloats(shape.in, 9));
      const auto bias = RandomFloats(shape.out, 10);
      for (const bool biased : {false, true}) {
        std::vector<double> exact;
        for (uint32_t r = 0; r < shape.out; ++r) {
          double sum = biased ? bias[r] : 0.0;
          for (uint32_t k = 0; k < shape.in; ++k) {
            sum += double{weight.At(size_t{r} * shape.in + k)} * x.At(k);
          }
          exact.push_back(sum);
        }
        for (const Element y_type : {Element::kFloat32, type}) {
          Values first(y_type);
          for (const uint64_t seed : {kSeeds[0], kSeeds[1]}) {
            emulation::SetSeed(seed);
            Values y(y_type, shape.out);
            Table().gemv({weight.data(), type, shape.out, shape.in, x.data(),
                          biased ? bias.data() : nullptr, y.data(), y_type},
                         nullptr);
            EXPECT_LT(RelativeError(y.floats(), exact), Tolerance(y_type)) << shape.out;
            EXPECT_TRUE(seed == kSeeds[0] || y == first);
            first = y;
          }
        }
      }
    }
  }
}

// Gates of one row or a few, with the bits of a product and the gate's kernel behind it.
TEST(GatedProductTest, HasTheBitsOfAProductAndItsGate) {
  struct Shape {
    uint32_t out, in;
  };
  for (const Shape shape : {Shape{1536, 576}, {40, 1024}, {33, 2048}, {5, 48}, {3, 33}}) {
    for (const Element type : kElements) {
      const Values weight(type, RandomFloats(size_t{2} * shape.out * shape.in, 8));
      const Values x(type, RandomFloats(size_t{kSkinnyRows} * shape.in, 9));
      for (const HiddenAct act : {HiddenAct::kSilu, HiddenAct::kGeluTanh}) {
        // rows: 0: the kernel for one vector.
        for (const uint32_t rows : {0u, 1u, 8u, 9u, kSkinnyRows}) {
          const uint32_t count = std::max(rows, 1u);
          Values gate_up(type, size_t{2} * count * shape.out);
          Values expected(type, size_t{count} * shape.out);
          Values y(type, size_t{count} * shape.out);
          GemvArgs product = {weight.data(), type,    2 * shape.out,  shape.in,
                              x.data(),      nullptr, gate_up.data(), type};
          GemvArgs gated = {weight.data(), type,     shape.out, shape.in, x.data(),
                            nullptr,       y.data(), type,      true,     act};
          if (rows > 0 && !HasGatedGemm({gated, rows})) continue;
          if (rows == 0) {
            Table().gemv(product, nullptr);
            Table().gemv(gated, nullptr);
          } else {
            Table().skinny_gemm({product, rows}, nullptr);
            Table().skinny_gemm({gated, rows}, nullptr);
          }
          Table().act_mul({gate_up.data(), type, act, count, shape.out, expected.data()}, nullptr);
          EXPECT_TRUE(y == expected) << shape.out << " x " << shape.in << ", rows " << rows;
        }
      }
    }
  }
  const GemvArgs qwen = {.out_features = 3072, .in_features = 1024, .gated = true};
  EXPECT_TRUE(HasGatedGemm({qwen, kSkinnyRows}));
  EXPECT_FALSE(HasGatedGemm({qwen, kSkinnyRows + 1}));
  const GemvArgs long_rows = {.out_features = 3072, .in_features = 4096, .gated = true};
  EXPECT_FALSE(HasGatedGemm({long_rows, 1})) << "129 KiB of a block";
}

// A row that a product norms, and a residual stream that one adds to, with the bits of the kernels
// for that; one after another, where the second must not read what the first has not yet written.
TEST(SkinnyGemmTest, NormsItsRowAndAddsToItsResult) {
  struct Shape {
    uint32_t out, in;
    bool gated;
  };
  for (const Shape shape : {Shape{960, 576, false},
                            {1536, 576, true},
                            {40, 1024, true},
                            {33, 1024, false},
                            {5, 48, false},
                            {3, 16, true}}) {
    for (const Element type : {Element::kBFloat16, Element::kFloat16}) {
      constexpr uint32_t kHidden = 272;  // of what the first product multiplies
      const Values inner(type, RandomFloats(kHidden, 1));
      const Values down(type, RandomFloats(size_t{shape.in} * kHidden, 2));
      const auto stream = RandomFloats(shape.in, 3);
      const auto norm_weight = RandomFloats(shape.in, 4);
      const Values weight(type, RandomFloats(size_t{2} * shape.out * shape.in, 5));
      const auto bias = RandomFloats(shape.out, 6);
      const Element y_type = shape.gated ? type : Element::kFloat32;

      auto sum = stream;
      std::vector<float> projected(shape.in);
      Values normed(type, shape.in), expected(y_type, shape.out), y(y_type, shape.out);
      GemvArgs first = {down.data(),  type,    shape.in,        kHidden,
                        inner.data(), nullptr, projected.data()};
      Table().skinny_gemm({first, 1}, nullptr);
      Table().rms_norm({projected.data(), sum.data(), norm_weight.data(), 1e-5f, 1, shape.in,
                        normed.data(), type},
                       nullptr);
      GemvArgs second = {weight.data(),   type,          shape.out,
                         shape.in,        normed.data(), shape.gated ? nullptr : bias.data(),
                         expected.data(), y_type,        shape.gated};
      Table().skinny_gemm({second, 1}, nullptr);

      first.adds = true;
      second.norm_weight = norm_weight.data();
      second.norm_eps = 1e-5f;
      second.y = y.data();
      ASSERT_TRUE(HasAddingGemm({first, 1}) && HasNormedGemm({second, 1}));
      for (uint64_t seed = 1; seed <= 10; ++seed) {
        emulation::SetSeed(seed);
        auto residual = stream;
        first.y = residual.data();
        second.x = residual.data();
        emulation::LaunchQueue queue;
        Table().skinny_gemm({first, 1}, &queue);
        Table().skinny_gemm({second, 1}, &queue);
        queue.Drain();
        EXPECT_EQ(std::memcmp(residual.data(), sum.data(), sum.size() * sizeof(float)), 0);
        EXPECT_TRUE(y == expected) << shape.out << " x " << shape.in << ", seed " << seed;
      }
    }
  }
  const GemvArgs down = {.out_features = 1024, .in_features = 3072};
  EXPECT_TRUE(HasAddingGemm({down, 1}));
  EXPECT_FALSE(HasAddingGemm({down, 2}));
  GemvArgs qwen = {.out_features = 4096, .in_features = 1024};
  EXPECT_TRUE(HasNormedGemm({qwen, 1}));
  EXPECT_FALSE(HasNormedGemm({qwen, 2}));
  qwen.out_features = 151936;
  EXPECT_FALSE(HasNormedGemm({qwen, 1})) << "each of 18,992 blocks would read the row";
  const GemvArgs wide = {.out_features = 4096, .in_features = 2048};
  EXPECT_FALSE(HasNormedGemm({wide, 1}));
  EXPECT_FALSE(HasAddingGemm({wide, 1})) << "its norm is a kernel, which may add";
  const GemvArgs to_elements = {.in_features = 576, .y_type = Element::kBFloat16};
  EXPECT_FALSE(HasNormedGemm({to_elements, 1}) || HasAddingGemm({to_elements, 1}));
}

// Of few rows, by the tensor cores: each row as if it were alone.
TEST(SkinnyGemmTest, MatchesDoubleAndARowDoesNotDependOnOthers) {
  struct Shape {
    uint32_t out, in;
  };
  for (const Shape shape :
       {Shape{960, 576}, {64, 1536}, {5, 48}, {130, 256}, {1, 16}, {12, 3072}, {12, 4128}}) {
    for (const Element type : {Element::kBFloat16, Element::kFloat16}) {
      const Values weight(type, RandomFloats(size_t{shape.out} * shape.in, 8));
      const Values x(type, RandomFloats(size_t{kSkinnyRows} * shape.in, 9));
      const auto bias = RandomFloats(shape.out, 10);
      const auto run = [&](uint32_t first, uint32_t rows, bool biased, Element y_type) {
        Values y(y_type, size_t{rows} * shape.out);
        const GemvArgs matrix = {weight.data(),
                                 type,
                                 shape.out,
                                 shape.in,
                                 static_cast<const uint16_t*>(x.data()) + first * shape.in,
                                 biased ? bias.data() : nullptr,
                                 y.data(),
                                 y_type};
        EXPECT_TRUE(HasSkinnyGemm(matrix));
        Table().skinny_gemm({matrix, rows}, nullptr);
        return y.floats();
      };
      for (const bool biased : {false, true}) {
        std::vector<double> exact;
        for (uint32_t row = 0; row < kSkinnyRows; ++row) {
          for (uint32_t r = 0; r < shape.out; ++r) {
            double sum = biased ? bias[r] : 0.0;
            for (uint32_t k = 0; k < shape.in; ++k) {
              sum += double{weight.At(size_t{r} * shape.in + k)} * x.At(row * shape.in + k);
            }
            exact.push_back(sum);
          }
        }
        const Element y_type = biased ? type : Element::kFloat32;
        emulation::SetSeed(kSeeds[0]);
        const auto all = run(0, kSkinnyRows, biased, y_type);
        EXPECT_LT(RelativeError(all, exact), Tolerance(y_type)) << shape.out << " " << shape.in;
        emulation::SetSeed(kSeeds[1]);
        for (const auto& [first, rows] : {std::pair{0u, 1u}, {9u, 1u}, {4u, 8u}, {3u, 9u}}) {
          const auto some = run(first, rows, biased, y_type);
          EXPECT_EQ(std::memcmp(some.data(), all.data() + size_t{first} * shape.out,
                                some.size() * sizeof(float)),
                    0)
              << shape.out << " " << shape.in << " rows " << rows;
        }
      }
    }
  }
}

}  // namespace
}  // namespace flotilla::cuda
