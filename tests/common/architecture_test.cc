// What files of each architecture say besides what all say (GGUF; hf_config_test has
// config.json's).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "common/checkpoint/checkpoint.h"
#include "tests/fakes/gguf_builder.h"
#include "tests/support/gguf_file_test.h"

namespace flotilla {
namespace {

using ::flotilla::testing::GgufBuilder;
using ::flotilla::testing::TinyLlama;
using ::flotilla::testing::TinyLlamaBytes;
using ::flotilla::testing::TinyLlamaOptions;
using ::testing::HasSubstr;

class ArchitectureTest : public testing::GgufFileTest {};

TEST_F(ArchitectureTest, OtherArchitecturesOpenWithWhatIsTheirOwn) {
  TinyLlamaOptions options;
  options.rope_scale = 4;
  for (const char* architecture : {"qwen2", "qwen3", "gemma3"}) {
    options.architecture = architecture;
    options.num_hidden_layers = 7;
    const auto checkpoint = Open(TinyLlamaBytes(options));
    ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
    const ModelConfig& config = (*checkpoint)->config();
    EXPECT_EQ(config.qkv_bias, options.architecture == "qwen2");
    EXPECT_EQ(config.qk_norm, options.architecture != "qwen2");
    EXPECT_FALSE(config.rope_interleaved);
    EXPECT_EQ(config.rope_divisors, std::vector<double>(8, 4.0));
    EXPECT_EQ(config.norm_weight_offset, 0.0f);  // the converter has added it
    for (uint32_t i = 0; i < 7; ++i) {
      EXPECT_EQ(config.is_sliding(i), options.architecture == "gemma3" && i != 5) << i;
    }
  }
  const ModelConfig gemma3 = (*Open(TinyLlamaBytes(options)))->config();
  EXPECT_EQ(gemma3.sliding_window, 20u);
  EXPECT_EQ(gemma3.rope_local_theta, 500.0f);
  EXPECT_EQ(gemma3.hidden_act, HiddenAct::kGeluTanh);
  options.sliding_window = 0;
  EXPECT_THAT(ErrorOf(TinyLlamaBytes(options)), HasSubstr("gemma3.attention.sliding_window is 0"));
}

TEST_F(ArchitectureTest, GraniteSmolLm3AndGemma2OpenWithWhatIsTheirOwn) {
  TinyLlamaOptions options;
  options.num_hidden_layers = 4;
  options.architecture = "granite";
  const ModelConfig granite = (*Open(TinyLlamaBytes(options)))->config();
  EXPECT_TRUE(granite.rope_interleaved);
  EXPECT_EQ(granite.embedding_multiplier, 3.0f);
  EXPECT_EQ(granite.residual_multiplier, 0.22f);
  EXPECT_EQ(granite.logits_scaling, 2.0f);
  EXPECT_NEAR(granite.query_pre_attn_scalar, 1 / 0.09, 1e-5);
  options.architecture = "smollm3";
  const ModelConfig smollm3 = (*Open(TinyLlamaBytes(options)))->config();
  EXPECT_TRUE(smollm3.rope_interleaved);
  EXPECT_TRUE(smollm3.has_rope(0) && smollm3.has_rope(2));
  EXPECT_FALSE(smollm3.has_rope(3));
  options.architecture = "gemma2";
  const ModelConfig gemma2 = (*Open(TinyLlamaBytes(options)))->config();
  EXPECT_EQ(gemma2.attn_logit_softcapping, 50.0f);
  EXPECT_EQ(gemma2.final_logit_softcapping, 30.0f);
  EXPECT_EQ(gemma2.rope_local_theta, 0.0f);
  EXPECT_TRUE(gemma2.is_sliding(0));
  EXPECT_FALSE(gemma2.is_sliding(1));
}

TEST_F(ArchitectureTest, Phi3sFusedMatricesAreItsParts) {
  TinyLlamaOptions options;
  options.architecture = "phi3";
  const auto checkpoint = Open(TinyLlamaBytes(options));
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  const ModelConfig& config = (*checkpoint)->config();
  EXPECT_EQ(config.rope_dim, 8u);
  EXPECT_EQ(config.rope_divisors.size(), 4u);
  EXPECT_EQ(config.rope_long_divisors.size(), 4u);
  EXPECT_EQ(config.rope_original_context, 512u);
  EXPECT_EQ(config.rope_magnitude, 1.2f);
  EXPECT_TRUE(config.is_sliding(0) && config.is_sliding(1));
  const auto rows = [&](const char* name) {
    const TensorView* view = (*checkpoint)->Find(std::string("model.layers.1.") + name + ".weight");
    return view == nullptr ? 0 : view->rows;
  };
  EXPECT_EQ(rows("self_attn.q_proj"), 96u);
  EXPECT_EQ(rows("self_attn.v_proj"), 48u);
  EXPECT_EQ(rows("mlp.gate_proj"), 160u);
  EXPECT_EQ(rows("mlp.up_proj"), 160u);
  EXPECT_EQ(rows("self_attn.qkv_proj"), 0u);
  const TensorView& q = *(*checkpoint)->Find("model.layers.1.self_attn.q_proj.weight");
  const TensorView& k = *(*checkpoint)->Find("model.layers.1.self_attn.k_proj.weight");
  EXPECT_EQ(q.data.data() + q.data.size(), k.data.data()) << "one behind the other";
}

TEST_F(ArchitectureTest, Gemma3SaysWhichLayersSlide) {
  constexpr char kKey[] = "gemma3.attention.sliding_window_pattern";
  TinyLlamaOptions options;
  options.architecture = "gemma3";
  options.num_hidden_layers = 4;
  const auto sliding = [&](const GgufBuilder& builder) {
    const auto checkpoint = Open(builder.Build());
    EXPECT_TRUE(checkpoint.ok()) << checkpoint.status();
    std::string layers;
    for (uint32_t i = 0; i < 4; ++i) layers += (*checkpoint)->config().is_sliding(i) ? 's' : '-';
    return layers;
  };
  GgufBuilder number = TinyLlama(options);
  number.AddUint32(kKey, 2);
  EXPECT_EQ(sliding(number), "s-s-");
  GgufBuilder flags = TinyLlama(options);
  flags.AddInts(kKey, {1, 0, 0, 1});
  EXPECT_EQ(sliding(flags), "s--s");
  GgufBuilder zero = TinyLlama(options);
  zero.AddUint32(kKey, 0);
  EXPECT_THAT(ErrorOf(zero.Build()), HasSubstr("sliding_window_pattern is 0"));
  GgufBuilder few = TinyLlama(options);
  few.AddInts(kKey, {1, 0});
  EXPECT_THAT(ErrorOf(few.Build()), HasSubstr("has 2 entries but the model 4 layers"));
}

}  // namespace
}  // namespace flotilla
