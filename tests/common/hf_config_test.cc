// config.json: what each architecture's says, and what is refused by name.
#include "common/checkpoint/hf_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <boost/json.hpp>
#include <cmath>
#include <string>

namespace flotilla::internal {
namespace {

namespace json = boost::json;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

json::object Llama() {
  return json::parse(R"({"architectures": ["LlamaForCausalLM"], "hidden_act": "silu",
    "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": 320, "max_position_embeddings": 512,
    "rms_norm_eps": 1e-05, "rope_theta": 500000.0, "tie_word_embeddings": false})")
      .as_object();
}
json::object With(json::object config, const std::string& key, const std::string& value) {
  config[key] = json::parse(value);
  return config;
}
json::object Of(const std::string& architecture) {
  return With(Llama(), "architectures", "[\"" + architecture + "\"]");
}
json::object Gemma(const std::string& number) {
  json::object config =
      With(Of("Gemma" + number + "ForCausalLM"), "hidden_activation", "\"gelu_pytorch_tanh\"");
  config.erase("hidden_act");
  config.erase("rope_theta");
  config.erase("tie_word_embeddings");
  config["head_dim"] = 32;
  config["num_hidden_layers"] = 7;
  return config;
}
json::object Gemma3() { return Gemma("3"); }

StatusOr<ModelConfig> Read(const json::object& config) {
  return ReadHfConfig(json::serialize(config));
}
ModelConfig Config(const json::object& config) {
  const StatusOr<ModelConfig> read = Read(config);
  EXPECT_TRUE(read.ok()) << read.status();
  return read.ok() ? *read : ModelConfig();
}
std::string ErrorOf(const json::object& config) {
  const StatusOr<ModelConfig> read = Read(config);
  return read.ok() ? "read" : std::string(read.status().message());
}

TEST(HfConfigTest, Llama) {
  const ModelConfig config = Config(Llama());
  EXPECT_EQ(config.architecture, "LlamaForCausalLM");
  EXPECT_EQ(config.head_dim, 16u);
  EXPECT_EQ(config.rope_dim, 16u);
  EXPECT_EQ(config.num_key_value_heads, 2u);
  EXPECT_EQ(config.rope_theta, 500000.0f);
  EXPECT_EQ(config.query_pre_attn_scalar, 16.0f);
  EXPECT_FALSE(config.rope_interleaved);
  EXPECT_FALSE(config.tie_word_embeddings);
  EXPECT_FALSE(config.qkv_bias || config.qk_norm || config.sandwich_norms);
  EXPECT_FALSE(config.is_sliding(0));
  json::object all_heads = Llama();
  all_heads["num_key_value_heads"] = nullptr;  // null is as good as absent
  all_heads.erase("rope_theta");
  EXPECT_EQ(Config(all_heads).num_key_value_heads, 4u);
  EXPECT_EQ(Config(all_heads).rope_theta, 10000.0f);
}

TEST(HfConfigTest, RopeScalingOfAllSpellings) {
  EXPECT_TRUE(Config(With(Llama(), "rope_scaling", "null")).rope_divisors.empty());
  const std::string linear = R"({"type": "linear", "factor": 4})";
  EXPECT_THAT(Config(With(Llama(), "rope_scaling", linear)).rope_divisors,
              ElementsAre(4, 4, 4, 4, 4, 4, 4, 4));
  json::object config = With(Llama(), "rope_parameters",
                             R"({"rope_theta": 20000, "rope_type": "linear", "factor": 2})");
  config.erase("rope_theta");
  EXPECT_EQ(Config(config).rope_theta, 20000.0f);
  EXPECT_EQ(Config(config).rope_divisors.at(7), 2);
}

// Wavelengths of up to a quarter of the old context stay, those longer than it are stretched.
TEST(HfConfigTest, Llama3StretchesLongWavesOnly) {
  const ModelConfig config = Config(With(Llama(), "rope_scaling", R"({"rope_type": "llama3",
    "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192})"));
  ASSERT_EQ(config.rope_divisors.size(), 8u);
  int between = 0;
  for (int i = 0; i < 8; ++i) {
    const double wavelength = 2 * M_PI * std::pow(500000.0, i / 8.0);
    if (wavelength < 8192 / 4.0) {
      EXPECT_EQ(config.rope_divisors[i], 1);
    } else if (wavelength > 8192) {
      EXPECT_EQ(config.rope_divisors[i], 8);
    } else {
      ++between;
      const double smooth = (8192 / wavelength - 1) / 3;
      EXPECT_NEAR(1 / config.rope_divisors[i], (1 - smooth) / 8 + smooth, 1e-12);
    }
  }
  EXPECT_EQ(between, 1);
}

TEST(HfConfigTest, MistralSlidesEverywhereOrNowhere) {
  EXPECT_EQ(Config(Of("MistralForCausalLM")).sliding_window, 4096u);
  EXPECT_FALSE(Config(With(Of("MistralForCausalLM"), "sliding_window", "null")).is_sliding(0));
  const ModelConfig config = Config(With(Of("MistralForCausalLM"), "sliding_window", "100"));
  EXPECT_EQ(config.sliding_window, 100u);
  EXPECT_TRUE(config.is_sliding(0) && config.is_sliding(2));
  EXPECT_EQ(config.rope_local_theta, 0.0f);
}

TEST(HfConfigTest, Qwen) {
  EXPECT_TRUE(Config(Of("Qwen2ForCausalLM")).qkv_bias);
  const ModelConfig qwen3 = Config(With(Of("Qwen3ForCausalLM"), "head_dim", "32"));
  EXPECT_TRUE(qwen3.qk_norm);
  EXPECT_EQ(qwen3.head_dim, 32u);
  json::object windowed = With(Of("Qwen2ForCausalLM"), "sliding_window", "50");
  EXPECT_FALSE(Config(windowed).is_sliding(2));  // use_sliding_window is false
  windowed["use_sliding_window"] = true;
  EXPECT_THAT(ErrorOf(windowed), HasSubstr("config.json: max_window_layers is missing"));
  windowed["max_window_layers"] = 1;
  EXPECT_THAT(Config(windowed).sliding_layers, ElementsAre(false, true, true));
  windowed["layer_types"] = {"sliding_attention", "full_attention", "full_attention"};
  EXPECT_THAT(Config(windowed).sliding_layers, ElementsAre(true, false, false));
}

TEST(HfConfigTest, Gemma3) {
  const ModelConfig config = Config(Gemma3());
  EXPECT_EQ(config.hidden_act, HiddenAct::kGeluTanh);
  EXPECT_TRUE(config.sandwich_norms && config.qk_norm && config.tie_word_embeddings);
  EXPECT_EQ(config.norm_weight_offset, 1.0f);
  EXPECT_EQ(config.rope_theta, 1e6f);
  EXPECT_EQ(config.rope_local_theta, 1e4f);
  EXPECT_EQ(config.sliding_window, 4096u);
  EXPECT_THAT(config.sliding_layers, ElementsAre(true, true, true, true, true, false, true));
  json::object other = With(Gemma3(), "sliding_window_pattern", "2");
  other["query_pre_attn_scalar"] = 24;
  other["attn_logit_softcapping"] = 50.0;
  other["final_logit_softcapping"] = 30.0;
  other["rope_local_base_freq"] = 500;
  other["rope_scaling"] = json::parse(R"({"rope_type": "linear", "factor": 8.0})");
  const ModelConfig all = Config(other);
  EXPECT_THAT(all.sliding_layers, ElementsAre(true, false, true, false, true, false, true));
  EXPECT_EQ(all.query_pre_attn_scalar, 24.0f);
  EXPECT_EQ(all.attn_logit_softcapping, 50.0f);
  EXPECT_EQ(all.final_logit_softcapping, 30.0f);
  EXPECT_EQ(all.rope_local_theta, 500.0f);
  EXPECT_EQ(all.rope_divisors.at(0), 8);
  const ModelConfig by_type = Config(With(Gemma3(), "rope_parameters", R"({
    "full_attention": {"rope_theta": 3e6, "rope_type": "linear", "factor": 2},
    "sliding_attention": {"rope_theta": 700, "rope_type": "default"}})"));
  EXPECT_EQ(by_type.rope_theta, 3e6f);
  EXPECT_EQ(by_type.rope_divisors.at(3), 2);
  EXPECT_EQ(by_type.rope_local_theta, 700.0f);
}

TEST(HfConfigTest, Gemma2) {
  const ModelConfig config = Config(Gemma("2"));
  EXPECT_TRUE(config.sandwich_norms && config.tie_word_embeddings);
  EXPECT_FALSE(config.qk_norm);
  EXPECT_EQ(config.norm_weight_offset, 1.0f);
  EXPECT_EQ(config.rope_theta, 1e4f);
  EXPECT_EQ(config.rope_local_theta, 0.0f) << "sliding layers rotate as the others do";
  EXPECT_EQ(config.attn_logit_softcapping, 50.0f);
  EXPECT_EQ(config.final_logit_softcapping, 30.0f);
  EXPECT_THAT(config.sliding_layers, ElementsAre(true, false, true, false, true, false, true));
  EXPECT_EQ(Config(With(Gemma("2"), "attn_logit_softcapping", "null")).attn_logit_softcapping,
            0.0f);
}

TEST(HfConfigTest, SmolLm3) {
  const auto without = [](const json::object& config) {
    return Config(config).layers_without_rope;
  };
  json::object config = With(Of("SmolLM3ForCausalLM"), "num_hidden_layers", "5");
  EXPECT_THAT(without(config), ElementsAre(false, false, false, true, false));
  config["no_rope_layer_interval"] = 2;
  EXPECT_THAT(without(config), ElementsAre(false, true, false, true, false));
  config["no_rope_layers"] = {1, 0, 0, 1, 1, 0};  // may have more than layers
  EXPECT_THAT(without(config), ElementsAre(false, true, true, false, false));
  for (const char* wrong : {"[1, 0]", "[\"a\"]", "4"})
    EXPECT_THAT(ErrorOf(With(config, "no_rope_layers", wrong)), HasSubstr("no_rope_layers"));
  config["use_sliding_window"] = true;
  EXPECT_FALSE(Config(config).is_sliding(1)) << "without a window";
  config["sliding_window"] = 50;
  EXPECT_THAT(Config(config).sliding_layers, ElementsAre(false, true, true, false, false));
  config["layer_types"] = {"sliding_attention", "full_attention", "full_attention",
                           "full_attention", "full_attention"};
  EXPECT_THAT(Config(config).sliding_layers, ElementsAre(true, false, false, false, false));
  EXPECT_THAT(ErrorOf(With(config, "sliding_window", "0")), HasSubstr("sliding_window"));
  config.erase("no_rope_layers");
  EXPECT_THAT(ErrorOf(With(config, "no_rope_layer_interval", "0")), HasSubstr("at least 1"));
}

TEST(HfConfigTest, Phi3) {
  const ModelConfig plain = Config(Of("Phi3ForCausalLM"));
  EXPECT_TRUE(plain.fused_projections);
  EXPECT_FALSE(plain.is_sliding(0));
  EXPECT_EQ(plain.rope_original_context, 0u);
  json::object all = With(Of("Phi3ForCausalLM"), "sliding_window", "100");
  all["partial_rotary_factor"] = 0.75;
  all["original_max_position_embeddings"] = 64;
  all["rope_scaling"] = json::parse(R"({"type": "longrope", "short_factor": [1, 1, 1, 1, 1, 1.5],
      "long_factor": [1, 2, 3, 4, 5, 6.5]})");
  const ModelConfig config = Config(all);
  EXPECT_EQ(config.sliding_window, 100u);
  EXPECT_EQ(config.rope_dim, 12u);
  EXPECT_EQ(config.rope_original_context, 64u);
  EXPECT_EQ(config.rope_divisors, (std::vector<double>{1, 1, 1, 1, 1, 1.5}));
  EXPECT_EQ(config.rope_long_divisors, (std::vector<double>{1, 2, 3, 4, 5, 6.5}));
  EXPECT_NEAR(config.rope_magnitude, std::sqrt(1 + std::log(8) / std::log(64)), 1e-6);
  struct Case {
    const char *key, *value, *named;
  };
  for (const auto& [key, value, named] :
       {Case{"partial_rotary_factor", "0.7", "partial_rotary_factor"},
        Case{"partial_rotary_factor", "0", "partial_rotary_factor"},
        Case{"partial_rotary_factor", "2", "partial_rotary_factor"},
        Case{"sliding_window", "0", "sliding_window"},
        Case{"original_max_position_embeddings", "1", "original_max_position_embeddings"},
        Case{"rope_scaling", R"({"type": "su", "short_factor": [1]})", "short_factor"},
        Case{"rope_scaling", R"({"type": "su", "short_factor": 1})", "short_factor"},
        Case{"rope_scaling", R"({"type": "su", "short_factor": ["1"]})", "short_factor"},
        Case{"rope_scaling", R"({"type": "su", "short_factor": [1, 1, 1, 1, 1, 0]})",
             "short_factor"}})
    EXPECT_THAT(ErrorOf(With(all, key, value)), HasSubstr(named)) << value;
}

TEST(HfConfigTest, Granite) {
  ModelConfig config = Config(Of("GraniteForCausalLM"));
  EXPECT_EQ(config.query_pre_attn_scalar, 1.0f) << "not the heads' width";
  EXPECT_EQ(config.embedding_multiplier, 1.0f);
  json::object all = With(Of("GraniteForCausalLM"), "attention_multiplier", "0.5");
  all["embedding_multiplier"] = 12;
  all["residual_multiplier"] = 0.22;
  all["logits_scaling"] = 8.0;
  config = Config(all);
  EXPECT_EQ(config.query_pre_attn_scalar, 4.0f);
  EXPECT_EQ(config.embedding_multiplier, 12.0f);
  EXPECT_EQ(config.residual_multiplier, 0.22f);
  EXPECT_EQ(config.logits_scaling, 8.0f);
  for (const char* key :
       {"attention_multiplier", "embedding_multiplier", "residual_multiplier", "logits_scaling"}) {
    for (const char* wrong : {"0", "-1", "1e7", "\"1\""})
      EXPECT_THAT(ErrorOf(With(all, key, wrong)), HasSubstr(std::string("config.json: ") + key));
  }
}

TEST(HfConfigTest, MixtralsExpertsAreAsWideAsItsFeedForward) {
  json::object json = Of("MixtralForCausalLM");
  json["num_local_experts"] = 8;
  json["num_experts_per_tok"] = 2;
  const ModelConfig config = Config(json);
  EXPECT_EQ(config.num_experts, 8u);
  EXPECT_EQ(config.num_experts_per_tok, 2u);
  EXPECT_EQ(config.intermediate_size, 96u);
  EXPECT_TRUE(config.norm_topk_prob);
  EXPECT_FALSE(config.qk_norm || config.is_sliding(0));
  EXPECT_EQ(config.rope_theta, 500000.0f);
  json.erase("rope_theta");
  EXPECT_EQ(Config(json).rope_theta, 1e6f);
  json["sliding_window"] = 24;
  EXPECT_TRUE(Config(json).is_sliding(2));
  json["num_experts_per_tok"] = 9;
  EXPECT_THAT(ErrorOf(json),
              HasSubstr("config.json: num_experts_per_tok is 9; it must be in 1..8"));
  json.erase("num_local_experts");
  EXPECT_THAT(ErrorOf(json), HasSubstr("config.json: num_experts is missing"));
}

TEST(HfConfigTest, Qwen3MoesExpertsHaveAWidthOfTheirOwn) {
  json::object json = Of("Qwen3MoeForCausalLM");
  json["num_experts"] = 128;
  json["num_experts_per_tok"] = 8;
  json["moe_intermediate_size"] = 32;
  json["decoder_sparse_step"] = 1;
  json["mlp_only_layers"] = json::array();
  const ModelConfig config = Config(json);
  EXPECT_EQ(config.num_experts, 128u);
  EXPECT_EQ(config.intermediate_size, 32u);
  EXPECT_FALSE(config.norm_topk_prob);
  EXPECT_TRUE(config.qk_norm);
  EXPECT_TRUE(Config(With(json, "norm_topk_prob", "true")).norm_topk_prob);
  EXPECT_THAT(ErrorOf(With(json, "decoder_sparse_step", "2")),
              HasSubstr("config.json: decoder_sparse_step is 2"));
  EXPECT_THAT(ErrorOf(With(json, "mlp_only_layers", "[0]")),
              HasSubstr("config.json: mlp_only_layers"));
  EXPECT_THAT(ErrorOf(With(json, "num_experts", "100000")),
              HasSubstr("config.json: num_experts is 100000; it must be in 1..1024"));
  EXPECT_THAT(ErrorOf(With(json, "moe_intermediate_size", "0")),
              HasSubstr("config.json: moe_intermediate_size"));
}

TEST(HfConfigTest, EveryFieldIsChecked) {
  struct Case {
    const char *key, *value;
  };
  for (const auto& [key, value] :
       {Case{"hidden_size", "0"},
        Case{"hidden_size", "-64"},
        Case{"hidden_size", "65"},
        Case{"hidden_size", "\"64\""},
        Case{"intermediate_size", "1e3"},
        Case{"num_hidden_layers", "5000"},
        Case{"num_attention_heads", "0"},
        Case{"num_key_value_heads", "3"},
        Case{"head_dim", "15"},
        Case{"head_dim", "4294967296"},
        Case{"vocab_size", "99999999999"},
        Case{"max_position_embeddings", "0"},
        Case{"rms_norm_eps", "0"},
        Case{"rms_norm_eps", "2"},
        Case{"rope_theta", "0"},
        Case{"rope_theta", "1e300"},
        Case{"hidden_act", "\"gelu\""},
        Case{"attention_bias", "true"},
        Case{"mlp_bias", "true"},
        Case{"partial_rotary_factor", "0.5"},
        Case{"tie_word_embeddings", "1"},
        Case{"quantization_config", "{}"},
        Case{"rope_scaling", "[]"},
        Case{"rope_scaling", R"({"rope_type": "yarn", "factor": 2})"},
        Case{"rope_scaling", R"({"rope_type": "linear", "factor": 0})"},
        Case{"rope_scaling", R"({"rope_type": "llama3", "factor": 2, "low_freq_factor": 1,
                                 "high_freq_factor": 1, "original_max_position_embeddings": 9})"},
        Case{"architectures", "[]"},
        Case{"architectures", "[1]"}}) {
    const std::string field = std::string(key) == "hidden_size" && std::string(value) == "65"
                                  ? "num_attention_heads"
                                  : key;
    EXPECT_THAT(ErrorOf(With(Llama(), key, value)), HasSubstr("config.json: " + field))
        << key << " = " << value;
  }
  for (const auto& [key, value] :
       {Case{"sliding_window", "0"}, Case{"sliding_window_pattern", "0"},
        Case{"query_pre_attn_scalar", "0"}, Case{"attn_logit_softcapping", "-1"},
        Case{"final_logit_softcapping", "1e30"}, Case{"use_bidirectional_attention", "true"},
        Case{"layer_types", "[\"full_attention\"]"}, Case{"rope_local_base_freq", "0"},
        Case{"layer_types", R"(["a", "a", "a", "a", "a", "a", "a"])"},
        Case{"hidden_activation", "\"silu\""}}) {
    EXPECT_THAT(ErrorOf(With(Gemma3(), key, value)), HasSubstr(std::string("config.json: ") + key))
        << value;
  }
  EXPECT_THAT(ErrorOf(Of("MambaForCausalLM")),
              AllOf(HasSubstr("'MambaForCausalLM'"), HasSubstr("supported: LlamaForCausalLM, ")));
  for (const char* key : {"hidden_size", "vocab_size", "rms_norm_eps", "num_hidden_layers"}) {
    json::object config = Llama();
    config.erase(key);
    EXPECT_THAT(ErrorOf(config), HasSubstr(std::string(key) + " is missing"));
  }
  EXPECT_THAT(std::string(ReadHfConfig("[]").status().message()), HasSubstr("must be an object"));
  EXPECT_THAT(std::string(ReadHfConfig("{").status().message()), HasSubstr("config.json: "));
  EXPECT_THAT(std::string(ReadHfConfig(std::string(2 << 20, ' ')).status().message()),
              HasSubstr("at most"));
}

}  // namespace
}  // namespace flotilla::internal
