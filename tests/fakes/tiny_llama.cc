// The small random model of gguf_builder.h.
#include <cmath>
#include <utility>

#include "common/base/check.h"
#include "common/base/status.h"
#include "tests/fakes/gguf_builder.h"

namespace flotilla::testing {
namespace {

// SplitMix64 (Steele, Lea, Flood 2014): the same numbers with every standard library.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}
  uint64_t Next() {
    uint64_t z = (state_ += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
  }
  // In [-1, 1).
  float Uniform() { return static_cast<float>(Next() >> 40) * 0x1p-23f - 1.0f; }

 private:
  uint64_t state_;
};

std::vector<float> RandomValues(Random* random, uint64_t count, float scale, float offset) {
  std::vector<float> values(count);
  for (float& value : values) value = offset + scale * random->Uniform();
  return values;
}

// Code points below U+0800.
std::string Utf8(uint32_t code_point) {
  if (code_point < 0x80) return std::string(1, static_cast<char>(code_point));
  return {static_cast<char>(0xc0 | (code_point >> 6)), static_cast<char>(0x80 | (code_point & 63))};
}

// GPT-2's spelling of bytes as printable characters, in its order: first the bytes that stand for
// themselves, then the others as U+0100, U+0101, …
std::vector<std::string> ByteTokens() {
  const auto printable = [](uint32_t byte) {
    return (byte >= 0x21 && byte <= 0x7e) || (byte >= 0xa1 && byte != 0xad);
  };
  std::vector<std::string> tokens;
  for (uint32_t byte = 0; byte < 256; ++byte) {
    if (printable(byte)) tokens.push_back(Utf8(byte));
  }
  uint32_t next = 0x100;
  for (uint32_t byte = 0; byte < 256; ++byte) {
    if (!printable(byte)) tokens.push_back(Utf8(next++));
  }
  return tokens;
}

// "Ġ" is the space; "Ã©" are the two bytes of é.
const std::vector<std::pair<std::string, std::string>>& Merges() {
  static const std::vector<std::pair<std::string, std::string>> kMerges = {
      {"Ġ", "t"},  {"h", "e"},   {"i", "n"},   {"Ġt", "he"}, {"r", "e"},   {"o", "n"},
      {"Ġ", "a"},  {"e", "r"},   {"in", "g"},  {"Ġ", "Ġ"},   {"l", "l"},   {"o", "r"},
      {"Ã", "©"},  {"ĠĠ", "ĠĠ"}, {"Ġa", "n"},  {"Ġan", "d"}, {"he", "ll"}, {"hell", "o"},
      {"w", "or"}, {"l", "d"},   {"wor", "ld"}};
  return kMerges;
}

void AddTokenizer(GgufBuilder* builder) {
  std::vector<std::string> tokens = {"<|endoftext|>", "<|im_start|>", "<|im_end|>"};
  std::vector<int32_t> types(tokens.size(), 3);  // control
  for (std::string& token : ByteTokens()) tokens.push_back(std::move(token));
  std::vector<std::string> merges;
  for (const auto& [left, right] : Merges()) {
    merges.push_back(StrCat(left, " ", right));
    tokens.push_back(left + right);
  }
  CHECK(tokens.size() == TinyLlamaVocabSize());
  types.resize(tokens.size(), 1);  // normal
  builder->AddString("tokenizer.ggml.model", "gpt2");
  builder->AddString("tokenizer.ggml.pre", "smollm");
  builder->AddStrings("tokenizer.ggml.tokens", tokens);
  builder->AddInts("tokenizer.ggml.token_type", types);
  builder->AddStrings("tokenizer.ggml.merges", merges);
  builder->AddUint32("tokenizer.ggml.bos_token_id", 1);
  builder->AddUint32("tokenizer.ggml.eos_token_id", 2);
  builder->AddUint32("tokenizer.ggml.unknown_token_id", 0);
  builder->AddUint32("tokenizer.ggml.padding_token_id", 2);
  builder->AddBool("tokenizer.ggml.add_bos_token", false);
  builder->AddBool("tokenizer.ggml.add_space_prefix", false);
  builder->AddString("tokenizer.chat_template",
                     "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + "
                     "message['content'] + '<|im_end|>' + '\n'}}{% endfor %}"
                     "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}");
}

bool IsGemma(const TinyLlamaOptions& options) { return options.architecture.starts_with("gemma"); }

void AddHyperparameters(GgufBuilder* builder, const TinyLlamaOptions& options) {
  const auto key = [&](const char* name) { return StrCat(options.architecture, ".", name); };
  builder->AddString("general.architecture", options.architecture);
  builder->AddString("general.name", StrCat("Tiny ", options.architecture, " for tests"));
  builder->AddUint32(key("block_count"), options.num_hidden_layers);
  builder->AddUint32(key("context_length"), options.max_position_embeddings);
  builder->AddUint32(key("embedding_length"), options.hidden_size);
  builder->AddUint32(key("feed_forward_length"), options.intermediate_size);
  if (options.num_experts > 0) {
    builder->AddUint32(key("expert_count"), options.num_experts);
    builder->AddUint32(key("expert_used_count"), options.num_experts_per_tok);
  }
  if (options.architecture == "qwen3moe") {
    builder->AddUint32(key("expert_feed_forward_length"), options.intermediate_size);
  }
  builder->AddUint32(key("attention.head_count"), options.num_attention_heads);
  builder->AddUint32(key("attention.head_count_kv"), options.num_key_value_heads);
  builder->AddUint32(key("attention.key_length"), options.head_dim);
  builder->AddUint32(key("attention.value_length"), options.head_dim);
  const bool phi3 = options.architecture == "phi3";
  builder->AddUint32(key("rope.dimension_count"), options.head_dim / (phi3 ? 2 : 1));
  builder->AddFloat32(key("rope.freq_base"), 10000.0f);
  builder->AddFloat32(key("attention.layer_norm_rms_epsilon"), 1e-5f);
  builder->AddUint32(key("vocab_size"), TinyLlamaVocabSize());
  if (options.rope_scale > 0) {
    builder->AddString(key("rope.scaling.type"), "linear");
    builder->AddFloat32(key("rope.scaling.factor"), options.rope_scale);
  }
  if (phi3) {
    builder->AddUint32("phi3.rope.scaling.original_context_length",
                       options.max_position_embeddings);
    builder->AddFloat32("phi3.rope.scaling.attn_factor", 1.2f);
    builder->AddUint32("phi3.attention.sliding_window", options.sliding_window);
  }
  if (options.architecture == "granite") {
    builder->AddFloat32("granite.embedding_scale", 3.0f);
    builder->AddFloat32("granite.residual_scale", 0.22f);
    builder->AddFloat32("granite.logit_scale", 2.0f);
    builder->AddFloat32("granite.attention.scale", 0.3f);
  }
  if (!IsGemma(options)) return;
  builder->AddUint32(key("attention.sliding_window"), options.sliding_window);
  if (options.architecture == "gemma3") builder->AddFloat32("gemma3.rope.freq_base_swa", 500.0f);
  if (options.softcap > 0) {
    builder->AddFloat32(key("attn_logit_softcapping"), options.softcap);
    builder->AddFloat32(key("final_logit_softcapping"), options.softcap);
  }
}

void AddWeights(GgufBuilder* builder, const TinyLlamaOptions& options) {
  Random random(options.seed);
  const uint64_t hidden = options.hidden_size;
  const uint64_t inner = options.intermediate_size;
  const uint64_t q = uint64_t{options.num_attention_heads} * options.head_dim;
  const uint64_t kv = uint64_t{options.num_key_value_heads} * options.head_dim;
  // Uniform with variance 1 / cols keeps activations of order one.
  const auto values = [&](uint64_t rows, uint64_t cols) {
    return RandomValues(&random, rows * cols, std::sqrt(3.0f / static_cast<float>(cols)), 0.0f);
  };
  const auto type_of = [&](const std::string& name, DType dtype) {
    for (const auto& [part, other] : options.other_dtypes) {
      if (name.find(part) != std::string::npos) dtype = other;
    }
    return dtype;
  };
  const auto matrix = [&](const std::string& name, uint64_t rows, uint64_t cols, DType dtype) {
    builder->AddMatrix(name, rows, cols, type_of(name, dtype), values(rows, cols));
  };
  const auto matrices = [&](const std::string& name, uint64_t count, uint64_t rows, uint64_t cols) {
    const DType dtype = type_of(name, options.matrix_dtype);
    builder->AddTensor(name, {cols, rows, count}, static_cast<uint32_t>(dtype),
                       Quantize(dtype, values(count * rows, cols)));
  };
  const auto vector = [&](const std::string& name, uint64_t size, float offset) {
    builder->AddMatrix(name, 0, size, DType::kF32, RandomValues(&random, size, 0.2f, offset));
  };
  const auto norm = [&](const std::string& name) { vector(name, hidden, 1.0f); };
  // The router's logits are far apart, so that arithmetic of 8 bits mostly chooses as doubles do.
  const auto add_experts = [&](const std::string& prefix) {
    const uint64_t experts = options.num_experts;
    builder->AddMatrix(prefix + "ffn_gate_inp.weight", experts, hidden, DType::kF32,
                       RandomValues(&random, experts * hidden, 1.0f, 0.0f));
    matrices(prefix + "ffn_gate_exps.weight", experts, inner, hidden);
    matrices(prefix + "ffn_up_exps.weight", experts, inner, hidden);
    matrices(prefix + "ffn_down_exps.weight", experts, hidden, inner);
  };
  matrix("token_embd.weight", TinyLlamaVocabSize(), hidden, options.embedding_dtype);
  for (uint32_t layer = 0; layer < options.num_hidden_layers; ++layer) {
    const std::string prefix = StrCat("blk.", layer, ".");
    norm(prefix + "attn_norm.weight");
    const bool fused = options.architecture == "phi3";
    if (fused) {
      matrix(prefix + "attn_qkv.weight", q + 2 * kv, hidden, options.matrix_dtype);
    } else {
      matrix(prefix + "attn_q.weight", q, hidden, options.matrix_dtype);
      matrix(prefix + "attn_k.weight", kv, hidden, options.matrix_dtype);
      matrix(prefix + "attn_v.weight", kv, hidden, options.matrix_dtype);
    }
    matrix(prefix + "attn_output.weight", hidden, q, options.matrix_dtype);
    if (options.architecture == "qwen2") {
      vector(prefix + "attn_q.bias", q, 0.0f);
      vector(prefix + "attn_k.bias", kv, 0.0f);
      vector(prefix + "attn_v.bias", kv, 0.0f);
    }
    if (options.architecture.starts_with("qwen3") || options.architecture == "gemma3") {
      vector(prefix + "attn_q_norm.weight", options.head_dim, 1.0f);
      vector(prefix + "attn_k_norm.weight", options.head_dim, 1.0f);
    }
    if (IsGemma(options)) norm(prefix + "post_attention_norm.weight");
    norm(prefix + "ffn_norm.weight");
    if (options.num_experts > 0) {
      add_experts(prefix);
      continue;
    }
    if (!fused) matrix(prefix + "ffn_gate.weight", inner, hidden, options.matrix_dtype);
    matrix(prefix + "ffn_up.weight", inner * (fused ? 2 : 1), hidden, options.matrix_dtype);
    matrix(prefix + "ffn_down.weight", hidden, inner, options.matrix_dtype);
    if (IsGemma(options)) norm(prefix + "post_ffw_norm.weight");
  }
  if (options.architecture == "phi3") {
    vector("rope_factors_short.weight", options.head_dim / 4, 1.5f);
    vector("rope_factors_long.weight", options.head_dim / 4, 9.0f);
  }
  norm("output_norm.weight");
  if (!options.tie_word_embeddings) {
    matrix("output.weight", TinyLlamaVocabSize(), hidden, options.embedding_dtype);
  }
}

}  // namespace

uint32_t TinyLlamaVocabSize() {
  return kTinyLlamaFirstByteToken + 256 + static_cast<uint32_t>(Merges().size());
}

GgufBuilder TinyLlama(const TinyLlamaOptions& options) {
  GgufBuilder builder;
  AddHyperparameters(&builder, options);
  if (options.tokenizer) AddTokenizer(&builder);
  AddWeights(&builder, options);
  return builder;
}

std::string TinyLlamaBytes(const TinyLlamaOptions& options) { return TinyLlama(options).Build(); }

void WriteTinyLlama(const std::string& path, const TinyLlamaOptions& options) {
  WriteBytes(path, TinyLlamaBytes(options));
}

}  // namespace flotilla::testing
