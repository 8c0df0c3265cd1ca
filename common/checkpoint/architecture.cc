#include "common/checkpoint/architecture.h"

#include <map>

#include "absl/strings/numbers.h"
#include "absl/strings/str_replace.h"
#include "common/checkpoint/gguf_cursor.h"

namespace flotilla::internal {
namespace {

constexpr Architecture kArchitectures[] = {
    // A GGUF of Mistral and one of Mixtral, with experts, say "llama", too.
    {.gguf = "llama", .hf = "LlamaForCausalLM", .gguf_permutes_qk = true},
    {.gguf = "llama",
     .hf = "MixtralForCausalLM",
     .experts = true,
     .gguf_permutes_qk = true,
     .finish_gguf = FinishExpertsGguf,
     .finish_hf = FinishMixtralHf},
    {.gguf = "", .hf = "MistralForCausalLM", .finish_hf = FinishMistralHf},
    {.gguf = "qwen2", .hf = "Qwen2ForCausalLM", .qkv_bias = true, .finish_hf = FinishQwenHf},
    {.gguf = "qwen3", .hf = "Qwen3ForCausalLM", .qk_norm = true, .finish_hf = FinishQwenHf},
    {.gguf = "qwen3moe",
     .hf = "Qwen3MoeForCausalLM",
     .qk_norm = true,
     .experts = true,
     .finish_gguf = FinishExpertsGguf,
     .finish_hf = FinishQwen3MoeHf},
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

// The first of them that has experts or not, as asked, or else the first.
StatusOr<const Architecture*> FindBy(std::string_view Architecture::*key, std::string_view field,
                                     std::string_view name, bool experts) {
  std::string known;
  std::string_view last;
  const Architecture* found = nullptr;
  for (const Architecture& architecture : kArchitectures) {
    const std::string_view own = architecture.*key;
    if (own.empty()) continue;
    if (own == name && architecture.experts == experts) return &architecture;
    if (own == name && found == nullptr) found = &architecture;
    if (own != last) StrAppend(&known, known.empty() ? "" : ", ", own);
    last = own;
  }
  if (found != nullptr) return found;
  return absl::InvalidArgumentError(StrCat(field, " is ", Quote(name), "; supported: ", known));
}

struct Shape {
  uint64_t rows;
  uint64_t cols;
};
using Shapes = std::map<std::string, Shape>;

void AddFeedForward(const ModelConfig& config, const std::string& prefix, Shapes* expected) {
  const uint64_t hidden = config.hidden_size;
  const uint64_t inner = config.intermediate_size;
  (*expected)[prefix + "gate_proj.weight"] = {inner, hidden};
  (*expected)[prefix + "up_proj.weight"] = {inner, hidden};
  (*expected)[prefix + "down_proj.weight"] = {hidden, inner};
}

void AddLayer(const ModelConfig& config, const std::string& prefix, Shapes* expected) {
  const uint64_t hidden = config.hidden_size;
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
  if (config.num_experts == 0) return AddFeedForward(config, prefix + "mlp.", expected);
  add("mlp.gate.weight", config.num_experts, hidden);
  for (uint32_t i = 0; i < config.num_experts; ++i)
    AddFeedForward(config, StrCat(prefix, "mlp.experts.", i, "."), expected);
}

// GGUF has the experts' matrices of a kind in one tensor. parent: "model.layers.3.mlp.experts." Of
// other layers than there are no names are made: there might be any number.
bool IsOfAllExperts(const ModelConfig& config, std::string_view parent, const TensorView& view) {
  constexpr std::string_view kLayers = "model.layers.", kExperts = ".mlp.experts.";
  uint32_t layer = 0;
  if (config.num_experts == 0 || view.rows % config.num_experts != 0) return false;
  if (!parent.starts_with(kLayers) || !parent.ends_with(kExperts)) return false;
  const std::string_view number =
      parent.substr(kLayers.size(), parent.size() - kLayers.size() - kExperts.size());
  return absl::SimpleAtoi(absl::string_view(number.data(), number.size()), &layer) &&
         layer < config.num_hidden_layers;
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

StatusOr<const Architecture*> FindGgufArchitecture(std::string_view name, bool experts) {
  return FindBy(&Architecture::gguf, "metadata general.architecture", name, experts);
}

StatusOr<const Architecture*> FindHfArchitecture(std::string_view name) {
  return FindBy(&Architecture::hf, "config.json: architectures[0]", name, false);
}

std::string ModelTensorName(const ModelConfig& config, std::string_view name) {
  if (config.architecture != "MixtralForCausalLM") return std::string(name);
  return absl::StrReplaceAll({name.data(), name.size()}, {{".block_sparse_moe.", ".mlp."},
                                                          {".w1.", ".gate_proj."},
                                                          {".w2.", ".down_proj."},
                                                          {".w3.", ".up_proj."}});
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
  uint64_t fused_rows = 0;
  for (const auto& [part, size] : parts) fused_rows += size;
  std::vector<NamedTensor> split;
  uint64_t row = 0;
  const auto take = [&](std::string part, uint64_t size) {
    TensorView rows_of = view;
    rows_of.rows = size;
    rows_of.data = view.data.subspan(row * view.row_bytes(), size * view.row_bytes());
    split.push_back({std::move(part), rows_of});
    row += size;
  };
  if (config.fused_projections && !parts.empty() && fused_rows == view.rows) {
    for (const auto& [part, size] : parts)
      take(StrCat(whole.substr(0, leaf), part, ".weight"), size);
  } else if (IsOfAllExperts(config, whole.substr(0, leaf), view)) {
    for (uint32_t i = 0; i < config.num_experts; ++i)
      take(StrCat(whole.substr(0, leaf), i, ".", of), view.rows / config.num_experts);
  } else {
    split.push_back({std::move(name), view});
  }
  return split;
}

Status CheckTensors(const ModelConfig& config, const std::vector<TensorView>& tensors) {
  // Before as many names are made.
  const uint64_t of_experts = uint64_t{3} * config.num_experts * config.num_hidden_layers;
  if (of_experts > tensors.size()) {
    return absl::InvalidArgumentError(StrCat(
        "there are ", tensors.size(), " tensors, but ", config.num_experts, " experts in ",
        config.num_hidden_layers, " layers need ", of_experts, "; download the model again"));
  }
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
