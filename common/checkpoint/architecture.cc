#include "common/checkpoint/architecture.h"

#include <map>

#include "common/checkpoint/gguf_cursor.h"

namespace flotilla::internal {
namespace {

constexpr Architecture kArchitectures[] = {
    {.gguf = "llama", .hf = "LlamaForCausalLM", .gguf_permutes_qk = true},
    // A GGUF of Mistral says "llama".
    {.gguf = "", .hf = "MistralForCausalLM", .finish_hf = FinishMistralHf},
    {.gguf = "qwen2", .hf = "Qwen2ForCausalLM", .qkv_bias = true, .finish_hf = FinishQwenHf},
    {.gguf = "qwen3", .hf = "Qwen3ForCausalLM", .qk_norm = true, .finish_hf = FinishQwenHf},
    {.gguf = "smollm3",
     .hf = "SmolLM3ForCausalLM",
     .gguf_permutes_qk = true,
     .rope_theta = 2e6,
     .tied = true,
     .finish_gguf = FinishSmolLm3Gguf,
     .finish_hf = FinishSmolLm3Hf},
    {.gguf = "granite",
     .hf = "GraniteForCausalLM",
     .gguf_permutes_qk = true,
     .finish_gguf = FinishGraniteGguf,
     .finish_hf = FinishGraniteHf},
    {.gguf = "phi3",
     .hf = "Phi3ForCausalLM",
     .fused_projections = true,
     .partial_rotary = true,
     .finish_gguf = FinishPhi3Gguf,
     .finish_hf = FinishPhi3Hf},
    {.gguf = "gemma2",
     .hf = "Gemma2ForCausalLM",
     .hidden_act = HiddenAct::kGeluTanh,
     .sandwich_norms = true,
     .tied = true,
     .finish_gguf = FinishGemma2Gguf,
     .finish_hf = FinishGemma2Hf},
    {.gguf = "gemma3",
     .hf = "Gemma3ForCausalLM",
     .hidden_act = HiddenAct::kGeluTanh,
     .qk_norm = true,
     .sandwich_norms = true,
     .rope_theta = 1e6,
     .tied = true,
     .finish_gguf = FinishGemma3Gguf,
     .finish_hf = FinishGemma3Hf},
};

StatusOr<const Architecture*> FindBy(std::string_view Architecture::*key, std::string_view field,
                                     std::string_view name) {
  std::string known;
  for (const Architecture& architecture : kArchitectures) {
    if ((architecture.*key).empty()) continue;
    if (architecture.*key == name) return &architecture;
    StrAppend(&known, known.empty() ? "" : ", ", architecture.*key);
  }
  return absl::InvalidArgumentError(StrCat(field, " is ", Quote(name), "; supported: ", known));
}

struct Shape {
  uint64_t rows;
  uint64_t cols;
};
using Shapes = std::map<std::string, Shape>;

void AddLayer(const ModelConfig& config, const std::string& prefix, Shapes* expected) {
  const uint64_t hidden = config.hidden_size;
  const uint64_t inner = config.intermediate_size;
  const uint64_t q = uint64_t{config.num_attention_heads} * config.head_dim;
  const uint64_t kv = uint64_t{config.num_key_value_heads} * config.head_dim;
  const auto add = [&](const char* name, uint64_t rows, uint64_t cols) {
    (*expected)[prefix + name] = {rows, cols};
  };
  add("input_layernorm.weight", 1, hidden);
  add("post_attention_layernorm.weight", 1, hidden);
  if (config.sandwich_norms) {
    add("pre_feedforward_layernorm.weight", 1, hidden);
    add("post_feedforward_layernorm.weight", 1, hidden);
  }
  add("self_attn.q_proj.weight", q, hidden);
  add("self_attn.k_proj.weight", kv, hidden);
  add("self_attn.v_proj.weight", kv, hidden);
  add("self_attn.o_proj.weight", hidden, q);
  if (config.qkv_bias) {
    add("self_attn.q_proj.bias", 1, q);
    add("self_attn.k_proj.bias", 1, kv);
    add("self_attn.v_proj.bias", 1, kv);
  }
  if (config.qk_norm) {
    add("self_attn.q_norm.weight", 1, config.head_dim);
    add("self_attn.k_norm.weight", 1, config.head_dim);
  }
  add("mlp.gate_proj.weight", inner, hidden);
  add("mlp.up_proj.weight", inner, hidden);
  add("mlp.down_proj.weight", hidden, inner);
}

Shapes ExpectedTensors(const ModelConfig& config) {
  const uint64_t hidden = config.hidden_size;
  Shapes expected;
  expected["model.embed_tokens.weight"] = {config.vocab_size, hidden};
  expected["model.norm.weight"] = {1, hidden};
  if (!config.tie_word_embeddings) expected["lm_head.weight"] = {config.vocab_size, hidden};
  for (uint32_t layer = 0; layer < config.num_hidden_layers; ++layer) {
    AddLayer(config, StrCat("model.layers.", layer, "."), &expected);
  }
  return expected;
}

}  // namespace

StatusOr<const Architecture*> FindGgufArchitecture(std::string_view name) {
  return FindBy(&Architecture::gguf, "metadata general.architecture", name);
}

StatusOr<const Architecture*> FindHfArchitecture(std::string_view name) {
  return FindBy(&Architecture::hf, "config.json: architectures[0]", name);
}

std::vector<NamedTensor> SplitFused(const ModelConfig& config, std::string name,
                                    const TensorView& view) {
  const std::string_view whole = name;
  const size_t leaf = whole.rfind('.', whole.rfind('.') - 1) + 1;  // "qkv_proj.weight"
  const std::string_view of = whole.substr(leaf);
  const uint64_t q = uint64_t{config.num_attention_heads} * config.head_dim;
  const uint64_t kv = uint64_t{config.num_key_value_heads} * config.head_dim;
  const uint64_t inner = config.intermediate_size;
  std::vector<std::pair<const char*, uint64_t>> parts;
  // GGUF calls both halves "ffn_up".
  if (of == "qkv_proj.weight") parts = {{"q_proj", q}, {"k_proj", kv}, {"v_proj", kv}};
  if (of == "gate_up_proj.weight" || of == "up_proj.weight")
    parts = {{"gate_proj", inner}, {"up_proj", inner}};
  uint64_t rows = 0;
  for (const auto& [part, size] : parts) rows += size;
  if (!config.fused_projections || parts.empty() || rows != view.rows) {
    std::vector<NamedTensor> one;
    one.push_back({std::move(name), view});
    return one;
  }
  std::vector<NamedTensor> split;
  uint64_t row = 0;
  for (const auto& [part, size] : parts) {
    TensorView rows_of = view;
    rows_of.rows = size;
    rows_of.data = view.data.subspan(row * view.row_bytes(), size * view.row_bytes());
    split.push_back({StrCat(whole.substr(0, leaf), part, ".weight"), rows_of});
    row += size;
  }
  return split;
}

Status CheckTensors(const ModelConfig& config, const std::vector<TensorView>& tensors) {
  Shapes missing = ExpectedTensors(config);
  for (const TensorView& tensor : tensors) {
    const auto it = missing.find(std::string(tensor.name));
    if (it == missing.end()) {
      return absl::InvalidArgumentError(
          StrCat("tensor ", Quote(tensor.name), " is not one of this ", config.architecture, " (",
                 config.num_hidden_layers, " layers); this variant is not supported"));
    }
    if (tensor.rows != it->second.rows || tensor.cols != it->second.cols) {
      return absl::InvalidArgumentError(
          StrCat("tensor ", Quote(tensor.name), " has shape [", tensor.rows, ", ", tensor.cols,
                 "]; the hyperparameters ask for [", it->second.rows, ", ", it->second.cols, "]"));
    }
    missing.erase(it);
  }
  if (!missing.empty()) {
    return absl::InvalidArgumentError(StrCat("tensor ", Quote(missing.begin()->first),
                                             " is missing (", missing.size(),
                                             " in all); download the model again"));
  }
  return OkStatus();
}

}  // namespace flotilla::internal
