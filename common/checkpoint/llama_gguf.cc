#include "common/checkpoint/llama_gguf.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <string>

#include "common/checkpoint/gguf_cursor.h"

namespace flotilla::internal {
namespace {

constexpr uint64_t kMaxLayers = 1024;
constexpr uint64_t kMaxHeads = 4096;
constexpr uint64_t kMaxWidth = uint64_t{1} << 20;
constexpr uint64_t kMaxVocab = uint64_t{1} << 24;
constexpr uint64_t kMaxContext = uint64_t{1} << 24;
constexpr double kDefaultRopeTheta = 10000.0;

Status BadValue(std::string_view key, std::string_view problem) {
  return absl::InvalidArgumentError(StrCat("metadata ", key, " ", problem));
}

// An integer in 1..max.
StatusOr<uint32_t> Count(const GgufFile& gguf, std::string_view key, uint64_t max) {
  ASSIGN_OR_RETURN(const uint64_t value, gguf.GetUint(key));
  if (value < 1 || value > max) {
    return BadValue(key, StrCat("is ", value, "; it must be in 1..", max));
  }
  return static_cast<uint32_t>(value);
}

StatusOr<uint32_t> CountOr(const GgufFile& gguf, std::string_view key, uint64_t max,
                           uint32_t fallback) {
  return gguf.metadata().contains(key) ? Count(gguf, key, max) : fallback;
}

// What would change the mathematics and is not implemented is refused, not ignored.
Status RefuseUnsupported(const GgufFile& gguf) {
  constexpr std::string_view kScaling = "llama.rope.scaling.type";
  if (gguf.metadata().contains(kScaling)) {
    ASSIGN_OR_RETURN(const std::string_view type, gguf.GetString(kScaling));
    if (type != "none") {
      return BadValue(kScaling, StrCat("is ", Quote(type), "; only 'none' is supported"));
    }
  }
  constexpr std::string_view kExperts = "llama.expert_count";
  if (gguf.metadata().contains(kExperts)) {
    ASSIGN_OR_RETURN(const uint64_t experts, gguf.GetUint(kExperts));
    if (experts > 0) {
      return BadValue(kExperts, StrCat("is ", experts, "; mixtures of experts are not supported"));
    }
  }
  return OkStatus();
}

Status ReadHeads(const GgufFile& gguf, ModelConfig* config) {
  constexpr std::string_view kHeads = "llama.attention.head_count";
  constexpr std::string_view kKvHeads = "llama.attention.head_count_kv";
  constexpr std::string_view kKeyLength = "llama.attention.key_length";
  constexpr std::string_view kValueLength = "llama.attention.value_length";
  ASSIGN_OR_RETURN(config->num_attention_heads, Count(gguf, kHeads, kMaxHeads));
  const uint32_t heads = config->num_attention_heads;
  ASSIGN_OR_RETURN(config->num_key_value_heads, CountOr(gguf, kKvHeads, kMaxHeads, heads));
  if (heads % config->num_key_value_heads != 0) {
    return BadValue(kKvHeads, StrCat("is ", config->num_key_value_heads, ", which does not divide ",
                                     kHeads, " = ", heads));
  }
  if (!gguf.metadata().contains(kKeyLength) && config->hidden_size % heads != 0) {
    return BadValue(kHeads, StrCat("is ", heads,
                                   ", which does not divide "
                                   "llama.embedding_length = ",
                                   config->hidden_size));
  }
  ASSIGN_OR_RETURN(config->head_dim,
                   CountOr(gguf, kKeyLength, kMaxWidth, config->hidden_size / heads));
  if (config->head_dim == 0 || config->head_dim % 2 != 0 ||
      uint64_t{heads} * config->head_dim > kMaxWidth) {
    return BadValue(kKeyLength,
                    StrCat("(the head dimension) is ", config->head_dim,
                           "; it must be even, and all heads at most ", kMaxWidth, " wide"));
  }
  ASSIGN_OR_RETURN(const uint32_t value_dim,
                   CountOr(gguf, kValueLength, kMaxWidth, config->head_dim));
  if (value_dim != config->head_dim) {
    return BadValue(kValueLength,
                    StrCat("is ", value_dim, "; it must equal the key length ", config->head_dim));
  }
  return OkStatus();
}

Status ReadRope(const GgufFile& gguf, ModelConfig* config) {
  constexpr std::string_view kDim = "llama.rope.dimension_count";
  constexpr std::string_view kTheta = "llama.rope.freq_base";
  ASSIGN_OR_RETURN(config->rope_dim, CountOr(gguf, kDim, kMaxWidth, config->head_dim));
  if (config->rope_dim % 2 != 0 || config->rope_dim > config->head_dim) {
    return BadValue(
        kDim, StrCat("is ", config->rope_dim, "; it must be even and at most the head dimension ",
                     config->head_dim));
  }
  double theta = kDefaultRopeTheta;
  if (gguf.metadata().contains(kTheta)) {
    ASSIGN_OR_RETURN(theta, gguf.GetFloat(kTheta));
  }
  if (!(theta >= 1.0 && theta <= 1e12)) {
    return BadValue(kTheta, StrCat("is ", theta, "; it must be in 1..1e12"));
  }
  config->rope_theta = static_cast<float>(theta);
  // The converter to GGUF permutes the rows of q and k for rotation of adjacent pairs.
  config->rope_interleaved = true;
  return OkStatus();
}

const TensorView* FindTensor(const GgufFile& gguf, std::string_view gguf_name) {
  for (const TensorView& tensor : gguf.tensors()) {
    if (tensor.name == gguf_name) return &tensor;
  }
  return nullptr;
}

// The embedding's rows decide; what the metadata says must agree.
Status ReadVocab(const GgufFile& gguf, ModelConfig* config) {
  constexpr std::string_view kVocab = "llama.vocab_size";
  constexpr std::string_view kTokens = "tokenizer.ggml.tokens";
  const TensorView* embedding = FindTensor(gguf, "token_embd.weight");
  if (embedding == nullptr) {
    return absl::InvalidArgumentError("tensor 'token_embd.weight' is missing");
  }
  if (embedding->rows > kMaxVocab) {
    return absl::InvalidArgumentError(StrCat("tensor 'token_embd.weight' has ", embedding->rows,
                                             " rows; the limit is ", kMaxVocab));
  }
  config->vocab_size = static_cast<uint32_t>(embedding->rows);
  ASSIGN_OR_RETURN(const uint32_t vocab, CountOr(gguf, kVocab, kMaxVocab, config->vocab_size));
  if (vocab != config->vocab_size) {
    return BadValue(
        kVocab, StrCat("is ", vocab, " but token_embd.weight has ", config->vocab_size, " rows"));
  }
  const std::vector<std::string_view>* tokens = gguf.FindStrings(kTokens);
  if (tokens != nullptr && tokens->size() != config->vocab_size) {
    return BadValue(kTokens, StrCat("has ", tokens->size(), " entries but token_embd.weight ",
                                    config->vocab_size, " rows"));
  }
  config->tie_word_embeddings = FindTensor(gguf, "output.weight") == nullptr;
  return OkStatus();
}

struct Shape {
  uint64_t rows;
  uint64_t cols;
};

std::map<std::string, Shape> ExpectedTensors(const ModelConfig& config) {
  const uint64_t hidden = config.hidden_size;
  const uint64_t inner = config.intermediate_size;
  const uint64_t q = uint64_t{config.num_attention_heads} * config.head_dim;
  const uint64_t kv = uint64_t{config.num_key_value_heads} * config.head_dim;
  std::map<std::string, Shape> expected;
  expected["model.embed_tokens.weight"] = {config.vocab_size, hidden};
  expected["model.norm.weight"] = {1, hidden};
  if (!config.tie_word_embeddings) expected["lm_head.weight"] = {config.vocab_size, hidden};
  for (uint32_t layer = 0; layer < config.num_hidden_layers; ++layer) {
    const std::string prefix = StrCat("model.layers.", layer, ".");
    expected[prefix + "input_layernorm.weight"] = {1, hidden};
    expected[prefix + "post_attention_layernorm.weight"] = {1, hidden};
    expected[prefix + "self_attn.q_proj.weight"] = {q, hidden};
    expected[prefix + "self_attn.k_proj.weight"] = {kv, hidden};
    expected[prefix + "self_attn.v_proj.weight"] = {kv, hidden};
    expected[prefix + "self_attn.o_proj.weight"] = {hidden, q};
    expected[prefix + "mlp.gate_proj.weight"] = {inner, hidden};
    expected[prefix + "mlp.up_proj.weight"] = {inner, hidden};
    expected[prefix + "mlp.down_proj.weight"] = {hidden, inner};
  }
  return expected;
}

}  // namespace

StatusOr<ModelConfig> ReadLlamaConfig(const GgufFile& gguf) {
  RETURN_IF_ERROR(RefuseUnsupported(gguf));
  ModelConfig config;
  config.architecture = "LlamaForCausalLM";
  if (const auto name = gguf.GetString("general.name"); name.ok()) config.name = std::string(*name);
  ASSIGN_OR_RETURN(config.num_hidden_layers, Count(gguf, "llama.block_count", kMaxLayers));
  ASSIGN_OR_RETURN(config.max_position_embeddings,
                   Count(gguf, "llama.context_length", kMaxContext));
  ASSIGN_OR_RETURN(config.hidden_size, Count(gguf, "llama.embedding_length", kMaxWidth));
  ASSIGN_OR_RETURN(config.intermediate_size, Count(gguf, "llama.feed_forward_length", kMaxWidth));
  RETURN_IF_ERROR(ReadHeads(gguf, &config));
  RETURN_IF_ERROR(ReadRope(gguf, &config));
  constexpr std::string_view kEpsilon = "llama.attention.layer_norm_rms_epsilon";
  ASSIGN_OR_RETURN(const double epsilon, gguf.GetFloat(kEpsilon));
  if (!(epsilon > 0.0 && epsilon < 1.0)) {
    return BadValue(kEpsilon, StrCat("is ", epsilon, "; it must be between 0 and 1"));
  }
  config.rms_norm_eps = static_cast<float>(epsilon);
  RETURN_IF_ERROR(ReadVocab(gguf, &config));
  return config;
}

Status CheckLlamaTensors(const ModelConfig& config, const std::vector<TensorView>& tensors) {
  std::map<std::string, Shape> missing = ExpectedTensors(config);
  for (const TensorView& tensor : tensors) {
    const auto it = missing.find(std::string(tensor.name));
    if (it == missing.end()) {
      return absl::InvalidArgumentError(
          StrCat("tensor ", Quote(tensor.name), " is not one of this llama model (",
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
