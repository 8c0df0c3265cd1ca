// The small random models of llama_test.cc and the arithmetics they are run in.
#pragma once

#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "tests/fakes/gguf_builder.h"
#include "worker_proc/cpu/cpu_weights.h"
#include "worker_proc/cpu/kernels.h"

namespace flotilla::testing {

// A model and the arithmetic it is run in.
struct Setup {
  std::string name;
  cpu::ComputeType dtype;
  cpu::KvType kv;
  double worst_logit_error;  // seen, with some room; logits are of order 1
  TinyLlamaOptions model;
};
inline void PrintTo(const Setup& setup, std::ostream* out) { *out << setup.name; }

inline constexpr auto kFloat = cpu::ComputeType::kFloat32;
inline constexpr auto kInt8 = cpu::ComputeType::kInt8;
inline constexpr auto kKv32 = cpu::KvType::kFloat32;
inline constexpr auto kKv16 = cpu::KvType::kBFloat16;
inline constexpr auto kKv8 = cpu::KvType::kInt8;

inline TinyLlamaOptions Model(std::vector<std::pair<std::string, DType>> other_dtypes = {}) {
  TinyLlamaOptions options;
  options.other_dtypes = std::move(other_dtypes);
  return options;
}

// Fewer kv heads than ranks: Gemma 3 270M's heads, and two kv heads for three ranks.
inline void AddSharedKvHeads(std::vector<Setup>* setups) {
  TinyLlamaOptions one = Model();
  one.num_attention_heads = 4;
  one.num_key_value_heads = 1;
  one.head_dim = 32;  // a rank's query heads are whole blocks
  setups->push_back({"FloatOneKvHead", kFloat, kKv32, 2e-5, one});
  setups->push_back({"Int8OneKvHead", kInt8, kKv16, 0.2, one});
  TinyLlamaOptions two = Model();
  two.num_attention_heads = 8;
  two.num_key_value_heads = 2;  // of 16 columns: blocks straddle query heads
  setups->push_back({"FloatTwoKvHeads", kFloat, kKv32, 2e-5, two});
  setups->push_back({"Int8TwoKvHeads", kInt8, kKv16, 0.2, two});
  one.architecture = "gemma3";
  one.num_hidden_layers = 6;
  setups->push_back({"Int8Gemma3OneKvHead", kInt8, kKv16, 0.2, one});
}

// Windows of 20 keys, so that most prompts are longer; Gemma's sixth layer is global.
inline void AddOtherArchitectures(std::vector<Setup>* setups) {
  const auto add = [&](const std::string& architecture, TinyLlamaOptions model) {
    model.architecture = architecture;
    setups->push_back({"Float_" + architecture, kFloat, kKv32, 2e-5, model});
    setups->push_back({"Int8_" + architecture, kInt8, kKv16, 0.2, model});
  };
  add("qwen2", Model());
  add("qwen3", Model());
  add("granite", Model());
  add("phi3", Model());
  TinyLlamaOptions smollm3 = Model();
  smollm3.num_hidden_layers = 5;  // the fourth does not rotate
  add("smollm3", smollm3);
  TinyLlamaOptions gemma2 = Model();
  gemma2.num_hidden_layers = 3;  // the second is global
  gemma2.softcap = 2;
  add("gemma2", gemma2);
  TinyLlamaOptions gemma = Model();
  gemma.architecture = "gemma3";
  gemma.num_hidden_layers = 6;
  gemma.rope_scale = 4;
  setups->push_back({"FloatGemma3", kFloat, kKv32, 5e-5, gemma});
  gemma.softcap = 2;
  setups->push_back({"FloatGemma3SoftCapped", kFloat, kKv32, 2e-5, gemma});
  gemma.sliding_window = 3;  // fewer keys than a tile has rows
  setups->push_back({"FloatGemma3NarrowWindow", kFloat, kKv32, 2e-5, gemma});
  setups->push_back({"Int8Gemma3", kInt8, kKv16, 0.2, gemma});
  setups->push_back({"FloatGemma3OverInt8", kFloat, kKv8, 0.1, gemma});
}

// Experts, Mixtral's and Qwen3's. Where a token is nearly between two of them, arithmetic of 8 bits
// may choose the other one: errors are small for all only where each token goes to all experts.
inline void AddExperts(std::vector<Setup>* setups) {
  const auto add = [&](const char* name, cpu::ComputeType dtype, double error,
                       const TinyLlamaOptions& model) {
    setups->push_back({name, dtype, dtype == kFloat ? kKv32 : kKv16, error, model});
  };
  TinyLlamaOptions mixtral = Model();
  mixtral.num_experts = 5;
  mixtral.num_experts_per_tok = 2;
  add("FloatMixtral", kFloat, 2e-5, mixtral);
  add("Int8Mixtral", kInt8, 1, mixtral);
  mixtral.num_experts = mixtral.num_experts_per_tok = 4;
  add("Int8MixtralAllExperts", kInt8, 0.2, mixtral);
  TinyLlamaOptions qwen = Model();
  qwen.architecture = "qwen3moe";
  qwen.num_experts = 12;
  qwen.num_experts_per_tok = 4;
  add("FloatQwen3Moe", kFloat, 2e-5, qwen);
  add("Int8Qwen3Moe", kInt8, 0.5, qwen);
  TinyLlamaOptions other = qwen;
  other.matrix_dtype = DType::kBF16;
  add("Int8OfFloatsQwen3Moe", cpu::ComputeType::kInt8OfFloats, 0.5, other);
  other = qwen;
  other.other_dtypes = {{"ffn_up_exps", DType::kQ8_0}, {"blk.1.ffn_down_exps", DType::kF16}};
  add("Int8ExpertsOfSeveralTypes", kInt8, 0.5, other);
  other.other_dtypes = {{"exps", DType::kF32}};
  other.intermediate_size = 72;  // no whole blocks
  add("Int8WithFloatExperts", kInt8, 1, other);
}

inline std::vector<Setup> Setups() {
  std::vector<Setup> setups;
  const auto add = [&](const char* name, cpu::ComputeType dtype, cpu::KvType kv, double error,
                       TinyLlamaOptions model) {
    setups.push_back({name, dtype, kv, error, std::move(model)});
  };
  add("Float", kFloat, kKv32, 2e-5, Model());
  TinyLlamaOptions untied = Model();
  untied.tie_word_embeddings = false;
  add("FloatUntied", kFloat, kKv32, 2e-5, untied);
  add("FloatOverBFloat16", kFloat, kKv16, 0.02, Model());
  add("FloatOverInt8", kFloat, kKv8, 0.1, Model());
  add("Int8OverInt8", kInt8, kKv8, 0.2, Model());
  add("Int8", kInt8, kKv16, 0.2, Model());
  TinyLlamaOptions q8 = Model();
  q8.matrix_dtype = DType::kQ8_0;
  add("Int8OfQ8OverFloat32", kInt8, kKv32, 0.2, q8);
  // The head's input is float, everything else's both.
  TinyLlamaOptions float_head = Model();
  float_head.matrix_dtype = DType::kQ4_0;
  float_head.embedding_dtype = DType::kF16;
  add("Int8WithAFloatHead", kInt8, kKv16, 0.2, float_head);
  add("Int8OfTwoTypesInOneMatrix", kInt8, kKv16, 0.2,
      Model({{"attn_v", DType::kQ8_0}, {"ffn_up", DType::kQ4_0}}));
  add("Int8AndFloatInOneMatrix", kInt8, kKv16, 0.2,
      Model({{"attn_k", DType::kF16}, {"blk.1.ffn_gate", DType::kF32}}));
  add("Int8BetweenFloats", kInt8, kKv16, 0.2,
      Model({{"attn_output", DType::kF16}, {"ffn_down", DType::kF32}}));
  add("Int8WithoutAQuantisedMatrix", kInt8, kKv32, 2e-5, Model({{"", DType::kF32}}));
  // Heads of 16 columns: blocks of 32 straddle kv heads, and at TP 2 ranks.
  TinyLlamaOptions straddling = Model();
  straddling.num_key_value_heads = 6;
  add("Int8BlocksStraddleHeads", kInt8, kKv16, 0.2, straddling);
  // Widths that are not of whole blocks can't be quantised in a file.
  TinyLlamaOptions odd_inner = Model({{"ffn_down", DType::kF16}});
  odd_inner.intermediate_size = 168;
  add("Int8OddInnerWidth", kInt8, kKv16, 0.2, odd_inner);
  TinyLlamaOptions odd_hidden = Model({{"attn_q.", DType::kF16},
                                       {"attn_k.", DType::kF16},
                                       {"attn_v.", DType::kF16},
                                       {"ffn_gate", DType::kF16},
                                       {"ffn_up", DType::kF16}});
  odd_hidden.hidden_size = 100;
  odd_hidden.embedding_dtype = DType::kF16;
  add("Int8OddHiddenWidth", kInt8, kKv16, 0.2, odd_hidden);
  // What Q4_K_M files mix, and five bits; widths of whole super-blocks, also by TP 3.
  TinyLlamaOptions k_types = Model({{"attn_k", DType::kQ5_K},
                                    {"attn_v", DType::kQ6_K},
                                    {"attn_output", DType::kQ5_0},
                                    {"ffn_down", DType::kQ5_1}});
  k_types.matrix_dtype = DType::kQ4_K;
  k_types.embedding_dtype = DType::kQ6_K;
  k_types.hidden_size = k_types.intermediate_size = 256;
  k_types.num_attention_heads = 16;
  k_types.num_key_value_heads = 4;
  add("Int8OfKTypes", kInt8, kKv16, 0.2, k_types);
  add("FloatOfKTypes", kFloat, kKv32, 2e-5, k_types);
  // Widths of 16 bits, in one matrix with others, and beside integers.
  TinyLlamaOptions halves = Model({{"attn_k", DType::kF16}, {"ffn_up", DType::kF32}});
  halves.matrix_dtype = DType::kBF16;
  halves.embedding_dtype = DType::kF16;
  add("FloatOf16Bits", kFloat, kKv32, 2e-5, halves);
  add("Int8BesideBFloat16", kInt8, kKv16, 0.2,
      Model({{"attn_q.", DType::kBF16}, {"ffn_down", DType::kBF16}}));
  // Quantised as they are loaded, but for widths that are not of whole blocks.
  constexpr auto kOfFloats = cpu::ComputeType::kInt8OfFloats;
  add("Int8OfFloats", kOfFloats, kKv16, 0.2, halves);
  TinyLlamaOptions odd_floats = halves;
  odd_floats.intermediate_size = 168;
  add("Int8OfFloatsOddInnerWidth", kOfFloats, kKv16, 0.2, odd_floats);
  AddSharedKvHeads(&setups);
  AddOtherArchitectures(&setups);
  AddExperts(&setups);
  return setups;
}

}  // namespace flotilla::testing
