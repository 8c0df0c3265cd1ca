// Model folders with matrices of 8-bit floats: the numbers, what config.json may say, and which
// factors belong to which values.
#include "common/checkpoint/fp8_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "common/checkpoint/float8.h"
#include "common/checkpoint/hf_config.h"
#include "tests/fakes/gguf_builder.h"
#include "tests/support/safetensors_builder.h"
#include "tests/support/temp_folder.h"

namespace flotilla::internal {
namespace {

using ::flotilla::testing::BytesOf;
using ::flotilla::testing::SafetensorsBuilder;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(Float8Test, AllNumbersAreThoseOfTheFormat) {
  for (uint32_t bits = 0; bits < 256; ++bits) {
    const float value = E4M3ToFloat(static_cast<uint8_t>(bits));
    if ((bits & 127) == 127) {
      EXPECT_TRUE(std::isnan(value) && IsNanE4M3(static_cast<uint8_t>(bits)));
      continue;
    }
    EXPECT_FALSE(IsNanE4M3(static_cast<uint8_t>(bits)));
    const uint32_t exponent = bits >> 3 & 15;
    const int fraction = static_cast<int>(bits & 7);
    const double magnitude = exponent == 0
                                 ? std::ldexp(fraction, -9)
                                 : std::ldexp(8 + fraction, static_cast<int>(exponent) - 10);
    EXPECT_EQ(value, bits >= 128 ? -magnitude : magnitude) << bits;
    EXPECT_EQ(std::signbit(value), bits >= 128) << bits;
  }
  EXPECT_EQ(E4M3ToFloat(0x7e), 448);
  EXPECT_EQ(E4M3ToFloat(0x01), 0x1p-9f);
}

constexpr char kConfig[] = R"({"architectures": ["Qwen3ForCausalLM"], "hidden_size": 4,
  "intermediate_size": 6, "num_hidden_layers": 1, "num_attention_heads": 2,
  "num_key_value_heads": 1, "head_dim": 2, "vocab_size": 5, "max_position_embeddings": 8,
  "rms_norm_eps": 1e-6, "tie_word_embeddings": true)";

std::string ConfigWith(const std::string& quantization) {
  return StrCat(kConfig, ", \"quantization_config\": ", quantization, "}");
}

TEST(Fp8ConfigTest, WhatEachProducerWrites) {
  struct Case {
    const char* json;
    uint32_t rows, cols;
  };
  for (const Case& c :
       {Case{R"({"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic",
                 "weight_block_size": [128, 64]})",
             128, 64},
        {R"({"quant_method": "fp8"})", 0, 0},
        {R"({"quant_method": "compressed-tensors", "format": "float-quantized", "config_groups":
             {"group_0": {"weights": {"num_bits": 8, "type": "float", "strategy": "channel"}}}})",
         0, 0},
        {R"({"quant_method": "compressed-tensors", "format": "float-quantized", "config_groups":
             {"group_0": {"weights": {"num_bits": 8, "type": "float", "strategy": "block",
                                      "block_structure": [128, 128]}}}})",
         128, 128},
        {R"({"quant_method": "modelopt", "quant_algo": "FP8"})", 0, 0}}) {
    EXPECT_TRUE(ReadHfConfig(ConfigWith(c.json)).ok()) << c.json;
    const auto fp8 = ReadHfFp8Config(ConfigWith(c.json));
    ASSERT_TRUE(fp8.ok()) << fp8.status();
    ASSERT_TRUE(fp8->has_value());
    EXPECT_EQ((*fp8)->block_rows, c.rows);
    EXPECT_EQ((*fp8)->block_cols, c.cols);
  }
  EXPECT_FALSE(ReadHfFp8Config(std::string(kConfig) + "}")->has_value());
}

TEST(Fp8ConfigTest, WhatIsNotSupportedIsNamed) {
  struct Case {
    const char *json, *message;
  };
  for (const Case& c :
       {Case{R"({"quant_method": "awq", "bits": 4})", "quant_method is 'awq', which is not"},
        {R"({})", "quantization_config.quant_method is missing"},
        {R"([])", "quantization_config must be an object"},
        {R"({"quant_method": "fp8", "weight_block_size": [128]})", "weight_block_size must be two"},
        {R"({"quant_method": "fp8", "weight_block_size": [0, 128]})", "from 1 to 1048576"},
        {R"({"quant_method": "fp8", "weight_block_size": [1, 2.5]})", "from 1 to 1048576"},
        {R"({"quant_method": "compressed-tensors", "format": "pack-quantized"})",
         "format is 'pack-quantized'"},
        {R"({"quant_method": "compressed-tensors", "format": "float-quantized"})",
         "config_groups is missing"},
        {R"({"quant_method": "compressed-tensors", "format": "float-quantized", "config_groups":
             {"group_0": {"weights": {"num_bits": 8, "type": "int"}}}})",
         "config_groups.group_0.weights.num_bits is 8 of type 'int'"},
        {R"({"quant_method": "modelopt", "quant_algo": "NVFP4"})", "quant_algo is 'NVFP4'"}}) {
    const auto config = ReadHfConfig(ConfigWith(c.json));
    EXPECT_THAT(std::string(config.status().message()), HasSubstr(c.message));
  }
}

TensorView View(const char* name, DType dtype, uint64_t rows, uint64_t cols,
                const std::string& data) {
  return {name, dtype, rows, cols, {reinterpret_cast<const uint8_t*>(data.data()), data.size()}};
}

std::vector<float> Scaled(const Fp8Config& config, uint64_t rows, uint64_t cols,
                          uint64_t factor_rows, uint64_t factor_cols) {
  const std::string ones(rows * cols, '\x38');  // 1
  TensorView matrix = View("a.weight", DType::kF8E4M3, rows, cols, ones);
  std::vector<float> numbers;
  for (uint64_t i = 1; i <= factor_rows * factor_cols; ++i)
    numbers.push_back(static_cast<float>(i));
  const std::string bytes = BytesOf(numbers);
  const auto grid = MakeScaleGrid(
      config, matrix, View("a.weight_scale", DType::kF32, factor_rows, factor_cols, bytes));
  EXPECT_TRUE(grid.ok()) << grid.status();
  if (!grid.ok()) return {};
  matrix.scales = &*grid;
  std::vector<float> values(rows * cols);
  DequantizeRows(matrix, 0, rows, values.data());
  return values;
}

TEST(ScaleGridTest, EachValueHasItsBlocksFactor) {
  EXPECT_THAT(Scaled({}, 2, 3, 1, 1), ElementsAre(1, 1, 1, 1, 1, 1)) << "a factor a matrix";
  EXPECT_THAT(Scaled({}, 2, 3, 2, 1), ElementsAre(1, 1, 1, 2, 2, 2)) << "a factor a row";
  EXPECT_THAT(Scaled({}, 2, 3, 1, 2), ElementsAre(1, 1, 1, 2, 2, 2)) << "as a vector";
  EXPECT_THAT(Scaled({2, 2}, 3, 3, 2, 2), ElementsAre(1, 1, 2, 1, 1, 2, 3, 3, 4)) << "blocks";
  EXPECT_THAT(Scaled({2, 8}, 3, 3, 2, 1), ElementsAre(1, 1, 1, 1, 1, 1, 2, 2, 2));
}

TEST(ScaleGridTest, WhatDoesNotBelongTogetherIsRefused) {
  const std::string ones(6, '\x38');
  const TensorView matrix = View("a.weight", DType::kF8E4M3, 2, 3, ones);
  const std::string two = BytesOf(std::vector<float>{1, 2});
  const auto error = [&](const Fp8Config& config, const TensorView& of, const TensorView& factors) {
    const auto grid = MakeScaleGrid(config, of, factors);
    return grid.ok() ? "made" : std::string(grid.status().message());
  };
  EXPECT_EQ(error({}, matrix, View("a.weight_scale", DType::kF32, 2, 1, two)), "made");
  EXPECT_THAT(error({1, 1}, matrix, View("a.weight_scale", DType::kF32, 2, 1, two)),
              HasSubstr("'a.weight_scale' has shape [2, 1]; its matrix [2, 3] asks for [2, 3]"));
  const std::string six = BytesOf(std::vector<float>(6, 1));
  EXPECT_THAT(error({}, matrix, View("a.weight_scale", DType::kF32, 2, 3, six)),
              HasSubstr("asks for [2, 1]"));
  EXPECT_THAT(error({}, View("a.weight", DType::kF32, 2, 3, six),
                    View("a.weight_scale", DType::kF32, 2, 1, two)),
              HasSubstr("has factors for a matrix of F32"));
  EXPECT_THAT(error({}, matrix, View("a.weight_scale", DType::kF8E4M3, 2, 3, ones)),
              HasSubstr("is F8_E4M3; factors are"));
  const std::string infinite = BytesOf(std::vector<float>{1, INFINITY});
  EXPECT_THAT(error({}, matrix, View("a.weight_scale", DType::kF32, 2, 1, infinite)),
              HasSubstr("not finite"));
}

// ---- Folders ------------------------------------------------------------------------------------

class Fp8FolderTest : public ::testing::Test {
 protected:
  struct Matrix {
    const char* name;
    uint64_t rows, cols;
  };
  static constexpr Matrix kMatrices[] = {{"self_attn.q_proj", 4, 4}, {"self_attn.k_proj", 2, 4},
                                         {"self_attn.v_proj", 2, 4}, {"self_attn.o_proj", 4, 4},
                                         {"mlp.gate_proj", 6, 4},    {"mlp.up_proj", 6, 4},
                                         {"mlp.down_proj", 4, 6}};

  void AddFloats(const std::string& name, const std::vector<uint64_t>& shape) {
    uint64_t count = 1;
    for (const uint64_t dim : shape) count *= dim;
    file_.Add(name, "F32", shape, BytesOf(std::vector<float>(count, 1)));
  }
  // All but the matrices' factors.
  void AddModel() {
    AddFloats("model.embed_tokens.weight", {5, 4});
    AddFloats("model.norm.weight", {4});
    AddFloats(kLayer + "input_layernorm.weight", {4});
    AddFloats(kLayer + "post_attention_layernorm.weight", {4});
    AddFloats(kLayer + "self_attn.q_norm.weight", {2});
    AddFloats(kLayer + "self_attn.k_norm.weight", {2});
    for (const Matrix& m : kMatrices) {
      file_.Add(StrCat(kLayer, m.name, ".weight"), "F8_E4M3", {m.rows, m.cols},
                std::string(m.rows * m.cols, '\x40'));  // 2
    }
  }
  StatusOr<std::unique_ptr<Checkpoint>> Open(const std::string& config) const {
    flotilla::testing::WriteBytes(folder_.path() + "/config.json", config);
    flotilla::testing::WriteBytes(folder_.path() + "/model.safetensors", file_.Build());
    return OpenCheckpoint(folder_.path());
  }
  std::string ErrorOf(const std::string& config) const {
    const auto opened = Open(config);
    return opened.ok() ? "opened" : std::string(opened.status().message());
  }

  const std::string kLayer = "model.layers.0.";
  const std::string kBlocks = ConfigWith(R"({"quant_method": "fp8", "weight_block_size": [2, 4]})");
  const flotilla::testing::TempFolder folder_;
  SafetensorsBuilder file_;
};

TEST_F(Fp8FolderTest, FactorsBecomeTheirMatricesScales) {
  AddModel();
  for (const Matrix& m : kMatrices) {
    const uint64_t rows = (m.rows + 1) / 2, cols = (m.cols + 3) / 4;
    file_.Add(StrCat(kLayer, m.name, ".weight_scale_inv"), "BF16", {rows, cols},
              BytesOf(std::vector<uint16_t>(rows * cols, 0x3f00)));  // a half
    file_.Add(StrCat(kLayer, m.name, ".input_scale"), "F32", {}, BytesOf(std::vector<float>{1}));
  }
  file_.Add(kLayer + "self_attn.k_proj.k_scale", "F32", {}, BytesOf(std::vector<float>{1}));
  const auto checkpoint = Open(kBlocks);
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  EXPECT_EQ((*checkpoint)->tensors().size(), 6 + std::size(kMatrices));
  for (const Matrix& m : kMatrices) {
    const TensorView* const view = (*checkpoint)->Find(StrCat(kLayer, m.name, ".weight"));
    ASSERT_NE(view, nullptr);
    std::vector<float> values(m.rows * m.cols);
    DequantizeRows(*view, 0, m.rows, values.data());
    EXPECT_EQ(values, std::vector<float>(values.size(), 1)) << m.name;
  }
}

TEST_F(Fp8FolderTest, FactorsWithoutTheirMatrixAreNamed) {
  AddModel();
  file_.Add(kLayer + "mlp.other_proj.weight_scale", "F32", {1}, BytesOf(std::vector<float>{1}));
  EXPECT_THAT(ErrorOf(kBlocks),
              HasSubstr("mlp.other_proj.weight_scale' has factors for a matrix that is not there"));
}

TEST_F(Fp8FolderTest, FactorsOfOtherNumbersOrGivenTwiceAreRefused) {
  const std::vector<float> one = {1};
  AddModel();
  SafetensorsBuilder before = file_;
  file_.Add("model.embed_tokens.weight_scale", "F32", {1}, BytesOf(one));
  EXPECT_THAT(ErrorOf(kBlocks), HasSubstr("has factors for a matrix of F32"));
  file_ = before;
  file_.Add("lm_head.weight_scale", "F32", {1}, BytesOf(one));  // of the tied head, which goes too
  file_.Add(kLayer + "mlp.up_proj.weight_scale", "F32", {1}, BytesOf(one));
  file_.Add(kLayer + "mlp.up_proj.weight_scale_inv", "F32", {1}, BytesOf(one));
  EXPECT_THAT(ErrorOf(kBlocks), HasSubstr("mlp.up_proj.weight' has factors twice"));
}

TEST_F(Fp8FolderTest, AMatrixWithoutFactorsIsNamed) {
  AddModel();
  EXPECT_THAT(ErrorOf(std::string(kConfig) + "}"),
              HasSubstr("self_attn.q_proj.weight' is F8_E4M3, and config.json has no"));
  EXPECT_THAT(ErrorOf(kBlocks), HasSubstr("self_attn.q_proj.weight' is F8_E4M3, and has no"));
  file_.Add(kLayer + "self_attn.q_proj.weight_scale_inv", "F32", {1},
            BytesOf(std::vector<float>{1}));
  EXPECT_THAT(ErrorOf(kBlocks), HasSubstr("self_attn.k_proj.weight' is F8_E4M3, and has no"));
}

}  // namespace
}  // namespace flotilla::internal
