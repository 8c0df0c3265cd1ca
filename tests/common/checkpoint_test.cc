#include "common/checkpoint/checkpoint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "common/base/sha256.h"
#include "tests/fakes/gguf_builder.h"
#include "tests/support/gguf_file_test.h"

namespace flotilla {
namespace {

using ::flotilla::testing::GgufBuilder;
using ::flotilla::testing::TinyLlama;
using ::flotilla::testing::TinyLlamaBytes;
using ::flotilla::testing::TinyLlamaOptions;
using ::flotilla::testing::TinyLlamaVocabSize;
using ::flotilla::testing::WriteBytes;
using ::testing::HasSubstr;

class CheckpointTest : public testing::GgufFileTest {};

// A model whose metadata has `key` replaced: the builder appends, so the tests below build the
// hyperparameters themselves.
struct Hyperparameters {
  std::map<std::string, uint32_t> counts = {
      {"llama.block_count", 1},          {"llama.context_length", 64},
      {"llama.embedding_length", 8},     {"llama.feed_forward_length", 12},
      {"llama.attention.head_count", 2}, {"llama.attention.head_count_kv", 1},
      {"llama.vocab_size", 5},
  };
  std::map<std::string, float> floats = {{"llama.rope.freq_base", 10000.0f},
                                         {"llama.attention.layer_norm_rms_epsilon", 1e-5f}};
  std::string architecture = "llama";
};

GgufBuilder Keys(const Hyperparameters& parameters) {
  GgufBuilder builder;
  builder.AddString("general.architecture", parameters.architecture);
  for (const auto& [key, value] : parameters.counts) builder.AddUint32(key, value);
  for (const auto& [key, value] : parameters.floats) builder.AddFloat32(key, value);
  return builder;
}

struct Matrix {
  std::string name;
  uint64_t rows;
  uint64_t cols;
};

std::vector<Matrix> SmallTensors() {
  return {{"token_embd.weight", 5, 8},        {"output_norm.weight", 0, 8},
          {"blk.0.attn_norm.weight", 0, 8},   {"blk.0.attn_q.weight", 8, 8},
          {"blk.0.attn_k.weight", 4, 8},      {"blk.0.attn_v.weight", 4, 8},
          {"blk.0.attn_output.weight", 8, 8}, {"blk.0.ffn_norm.weight", 0, 8},
          {"blk.0.ffn_gate.weight", 12, 8},   {"blk.0.ffn_up.weight", 12, 8},
          {"blk.0.ffn_down.weight", 8, 12}};
}

std::string Model(const Hyperparameters& parameters, const std::vector<Matrix>& tensors) {
  GgufBuilder builder = Keys(parameters);
  for (const Matrix& matrix : tensors) {
    const uint64_t values = std::max<uint64_t>(matrix.rows, 1) * matrix.cols;
    builder.AddMatrix(matrix.name, matrix.rows, matrix.cols, DType::kF32,
                      std::vector<float>(values, 0.5f));
  }
  return builder.Build();
}

TEST_F(CheckpointTest, SmallModelHasItsConfigAndTensors) {
  const auto checkpoint = Open(Model({}, SmallTensors()));
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  const ModelConfig& config = (*checkpoint)->config();
  EXPECT_EQ(config.architecture, "LlamaForCausalLM");
  EXPECT_EQ(config.head_dim, 4u);  // embedding_length / head_count
  EXPECT_EQ(config.rope_dim, 4u);  // the whole head
  EXPECT_EQ(config.vocab_size, 5u);
  EXPECT_TRUE(config.rope_interleaved);
  EXPECT_TRUE(config.tie_word_embeddings);
  EXPECT_EQ((*checkpoint)->Find("lm_head.weight"), nullptr);
  EXPECT_EQ((*checkpoint)->Find("blk.0.attn_q.weight"), nullptr);
  const TensorView* down = (*checkpoint)->Find("model.layers.0.mlp.down_proj.weight");
  ASSERT_NE(down, nullptr);
  EXPECT_EQ(down->name, "model.layers.0.mlp.down_proj.weight");
  EXPECT_EQ(down->rows, 8u);
  EXPECT_EQ(down->cols, 12u);
  EXPECT_EQ(down->data.size(), 8u * 12u * 4u);
}

TEST_F(CheckpointTest, TinyLlamaOpensInEveryType) {
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kQ4_0, DType::kQ4_1, DType::kQ5_0,
                            DType::kQ5_1, DType::kQ8_0, DType::kQ4_K, DType::kQ5_K, DType::kQ6_K}) {
    TinyLlamaOptions options;
    options.hidden_size = 256;
    options.intermediate_size = 256;
    options.num_attention_heads = 16;
    options.num_key_value_heads = 2;
    options.matrix_dtype = dtype;
    options.embedding_dtype = dtype;
    options.tie_word_embeddings = dtype == DType::kQ4_0;
    const auto checkpoint = Open(TinyLlamaBytes(options));
    ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
    EXPECT_EQ((*checkpoint)->config().vocab_size, TinyLlamaVocabSize());
    EXPECT_EQ((*checkpoint)->config().tie_word_embeddings, options.tie_word_embeddings);
    EXPECT_EQ((*checkpoint)->Find("lm_head.weight") == nullptr, options.tie_word_embeddings);
    EXPECT_EQ((*checkpoint)->tensors().size(), options.tie_word_embeddings ? 20u : 21u);
  }
}

TinyLlamaOptions WithExperts(const std::string& architecture) {
  TinyLlamaOptions options;
  options.architecture = architecture;
  options.num_experts = 3;
  return options;
}

TEST_F(CheckpointTest, ATensorOfAllExpertsIsOneMatrixForEach) {
  for (const char* architecture : {"llama", "qwen3moe"}) {
    SCOPED_TRACE(architecture);
    const auto checkpoint = Open(TinyLlamaBytes(WithExperts(architecture)));
    ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
    const ModelConfig& config = (*checkpoint)->config();
    EXPECT_EQ(config.architecture,
              *architecture == 'l' ? "MixtralForCausalLM" : "Qwen3MoeForCausalLM");
    EXPECT_EQ(config.num_experts, 3u);
    EXPECT_EQ(config.num_experts_per_tok, 2u);
    EXPECT_EQ(config.intermediate_size, 160u);
    EXPECT_TRUE(config.norm_topk_prob);
    EXPECT_EQ((*checkpoint)->Find("model.layers.0.mlp.gate.weight")->rows, 3u);
    const TensorView* first = (*checkpoint)->Find("model.layers.1.mlp.experts.0.up_proj.weight");
    const TensorView* last = (*checkpoint)->Find("model.layers.1.mlp.experts.2.up_proj.weight");
    ASSERT_TRUE(first != nullptr && last != nullptr);
    EXPECT_EQ(first->rows, 160u);
    EXPECT_EQ(first->cols, 96u);
    EXPECT_EQ(last->data.data(), first->data.data() + 2 * 160 * first->row_bytes());
    EXPECT_EQ(last->data.size(), 160 * first->row_bytes());
    EXPECT_EQ((*checkpoint)->Find("model.layers.0.mlp.experts.up_proj.weight"), nullptr);
  }
}

TEST_F(CheckpointTest, ExpertsThatAreNotThereOrComputedOtherwiseAreRefused) {
  const auto error = [&](const char* architecture, const char* key, uint32_t value) {
    GgufBuilder gguf = TinyLlama(WithExperts(architecture));
    gguf.AddUint32(key, value);
    return ErrorOf(gguf.Build());
  };
  EXPECT_THAT(error("qwen3moe", "qwen3moe.expert_gating_func", 2),
              HasSubstr("metadata qwen3moe.expert_gating_func is 2; only 1, softmax"));
  GgufBuilder scaled = TinyLlama(WithExperts("llama")), unscaled = TinyLlama(WithExperts("llama"));
  scaled.AddFloat32("llama.expert_weights_scale", 2.5f);
  EXPECT_THAT(ErrorOf(scaled.Build()), HasSubstr("metadata llama.expert_weights_scale is 2.5"));
  unscaled.AddFloat32("llama.expert_weights_scale", 1.0f);
  unscaled.AddBool("llama.expert_weights_norm", false);
  const auto plain = Open(unscaled.Build());
  ASSERT_TRUE(plain.ok()) << plain.status();
  EXPECT_FALSE((*plain)->config().norm_topk_prob);
  EXPECT_THAT(error("llama", "llama.expert_shared_count", 1),
              HasSubstr("metadata llama.expert_shared_count is 1"));
  EXPECT_THAT(ErrorOf(TinyLlamaBytes(WithExperts("qwen2"))),
              HasSubstr("metadata qwen2.expert_count is 3; experts are not supported"));
  Hyperparameters many;
  many.counts["llama.expert_count"] = 1024;
  many.counts["llama.expert_used_count"] = 2;
  EXPECT_THAT(ErrorOf(Model(many, SmallTensors())),
              HasSubstr("1024 experts in 1 layers need 3072"));
  many.counts["llama.block_count"] = 65;
  EXPECT_THAT(ErrorOf(Model(many, SmallTensors())),
              HasSubstr("llama.expert_count is 1024 in 65 layers; at most 65536"));
  std::vector<Matrix> tensors = SmallTensors();
  tensors.insert(tensors.begin(), {"blk.7.ffn_up_exps.weight", 8, 8});
  many.counts["llama.block_count"] = 1;
  many.counts["llama.expert_count"] = 2;
  EXPECT_THAT(ErrorOf(Model(many, tensors)),
              HasSubstr("'model.layers.7.mlp.experts.up_proj.weight'"))
      << "it stays one tensor, of no layer";
}

TEST_F(CheckpointTest, DigestIsTheFilesSha256FromAnyThread) {
  const std::string bytes = TinyLlamaBytes();
  const auto checkpoint = Open(bytes);
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  std::string first;
  std::thread other([&] { first = (*checkpoint)->Digest(); });
  const std::string second = (*checkpoint)->Digest();
  other.join();
  EXPECT_EQ(first, Sha256Hex(bytes));
  EXPECT_EQ(second, first);
  EXPECT_EQ((*OpenCheckpoint(path()))->Stamp(), (*checkpoint)->Stamp());
  std::filesystem::last_write_time(path(), std::filesystem::file_time_type::clock::now());
  EXPECT_NE((*OpenCheckpoint(path()))->Stamp(), (*checkpoint)->Stamp()) << "it was written";
}

TEST_F(CheckpointTest, WrongPathsAreNamed) {
  const auto missing = OpenCheckpoint(path() + ".nowhere");
  EXPECT_EQ(missing.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(missing.status().message()), HasSubstr("model.gguf.nowhere"));
  const auto folder = OpenCheckpoint(::testing::TempDir());
  EXPECT_THAT(std::string(folder.status().message()), HasSubstr("config.json"));
  const std::string fifo = path() + ".fifo";
  ASSERT_EQ(::mkfifo(fifo.c_str(), 0600), 0);
  EXPECT_THAT(std::string(OpenCheckpoint(fifo).status().message()), HasSubstr("not a regular"));
  EXPECT_THAT(ErrorOf(""), HasSubstr("is empty"));
  EXPECT_THAT(ErrorOf("{\"model\": 1}"), HasSubstr("not a GGUF file"));
  EXPECT_THAT(ErrorOf("GG"), HasSubstr("not a GGUF file"));
}

TEST_F(CheckpointTest, UnknownArchitectureListsTheKnownOnes) {
  EXPECT_THAT(ErrorOf(Model({.architecture = "mamba"}, SmallTensors())),
              AllOf(HasSubstr("'mamba'"), HasSubstr("supported: llama")));
  EXPECT_THAT(ErrorOf(GgufBuilder().Build()), HasSubstr("general.architecture is missing"));
}

TEST_F(CheckpointTest, MissingForeignAndMisshapenTensorsAreNamed) {
  const std::vector<Matrix> all = SmallTensors();
  for (size_t i = 0; i < all.size(); ++i) {
    std::vector<Matrix> tensors = all;
    tensors.erase(tensors.begin() + static_cast<ptrdiff_t>(i));
    EXPECT_THAT(ErrorOf(Model({}, tensors)), HasSubstr("is missing")) << all[i].name;
    // Each dimension in turn; the embedding's rows are the vocabulary's size.
    tensors = all;
    tensors[i].cols += 1;
    EXPECT_THAT(ErrorOf(Model({}, tensors)), HasSubstr("the hyperparameters ask for"))
        << all[i].name;
    tensors = all;
    tensors[i].rows += 2;
    EXPECT_THAT(ErrorOf(Model({}, tensors)),
                AnyOf(HasSubstr("the hyperparameters ask for"), HasSubstr("llama.vocab_size")))
        << all[i].name;
  }
  std::vector<Matrix> tensors = all;
  tensors.push_back({"blk.0.attn_q.bias", 0, 8});
  EXPECT_THAT(ErrorOf(Model({}, tensors)), HasSubstr("self_attn.q_proj.bias"));
  tensors.back() = {"rope_freqs.weight", 0, 8};
  EXPECT_THAT(ErrorOf(Model({}, tensors)), HasSubstr("'rope_freqs.weight' must be 2 floats"));
  tensors.back() = {"rope_phases.weight", 0, 8};
  EXPECT_THAT(ErrorOf(Model({}, tensors)), HasSubstr("'rope_phases.weight' is not known"));
  tensors.back() = {"blk.1.attn_norm.weight", 0, 8};
  EXPECT_THAT(ErrorOf(Model({}, tensors)), HasSubstr("model.layers.1.input_layernorm.weight"));
}

TEST_F(CheckpointTest, EveryHyperparameterIsChecked) {
  struct Case {
    std::string key;
    uint32_t value;
  };
  for (const auto& [key, value] : {Case{"llama.block_count", 0},
                                   Case{"llama.block_count", 0xffffffff},
                                   Case{"llama.context_length", 0},
                                   Case{"llama.context_length", 0xffffffff},
                                   Case{"llama.embedding_length", 0},
                                   Case{"llama.embedding_length", 9},
                                   Case{"llama.feed_forward_length", 0},
                                   Case{"llama.feed_forward_length", 0xffffffff},
                                   Case{"llama.attention.head_count", 0},
                                   Case{"llama.attention.head_count", 3},
                                   Case{"llama.attention.head_count", 8},
                                   Case{"llama.attention.head_count_kv", 0},
                                   Case{"llama.attention.head_count_kv", 3},
                                   Case{"llama.attention.key_length", 5},
                                   Case{"llama.attention.key_length", 0xffffffff},
                                   Case{"llama.attention.value_length", 8},
                                   Case{"llama.rope.dimension_count", 3},
                                   Case{"llama.rope.dimension_count", 6},
                                   Case{"llama.vocab_size", 6},
                                   Case{"llama.expert_count", 8},  // expert_used_count is missing
                                   Case{"llama.expert_count", 1025}}) {
    Hyperparameters parameters;
    parameters.counts[key] = value;
    EXPECT_THAT(ErrorOf(Model(parameters, SmallTensors())), HasSubstr("metadata llama."))
        << key << " = " << value;
  }
  for (const auto& [key, value] : Hyperparameters().floats) {
    for (const float bad : {0.0f, -1.0f, 1e30f, std::nanf(""), HUGE_VALF}) {
      Hyperparameters parameters;
      parameters.floats[key] = bad;
      EXPECT_THAT(ErrorOf(Model(parameters, SmallTensors())), HasSubstr(key)) << bad;
    }
  }
}

TEST_F(CheckpointTest, MissingOrMistypedKeysAreNamed) {
  for (const std::string key :
       {"llama.block_count", "llama.context_length", "llama.embedding_length",
        "llama.feed_forward_length", "llama.attention.head_count"}) {
    Hyperparameters parameters;
    parameters.counts.erase(key);
    EXPECT_THAT(ErrorOf(Model(parameters, SmallTensors())), HasSubstr(key + " is missing"));
    parameters.floats[key] = 2.0f;
    EXPECT_THAT(ErrorOf(Model(parameters, SmallTensors())),
                HasSubstr(key + " is not an unsigned integer"));
  }
}

TEST_F(CheckpointTest, VariantsThatWouldComputeSomethingElseAreRefused) {
  GgufBuilder scaled = TinyLlama({});
  scaled.AddString("llama.rope.scaling.type", "yarn");
  EXPECT_THAT(ErrorOf(scaled.Build()), HasSubstr("'yarn'"));
  GgufBuilder plain = TinyLlama({});
  plain.AddString("llama.rope.scaling.type", "none");
  EXPECT_EQ(ErrorOf(plain.Build()), "opened");
  for (const bool causal : {true, false}) {
    GgufBuilder builder = TinyLlama({});
    builder.AddBool("llama.attention.causal", causal);
    EXPECT_THAT(ErrorOf(builder.Build()),
                HasSubstr(causal ? "opened" : "llama.attention.causal is false"));
  }
  TinyLlamaOptions options;
  options.tokenizer = false;
  GgufBuilder tokens = TinyLlama(options);
  tokens.AddStrings("tokenizer.ggml.tokens", {"a", "b"});
  EXPECT_THAT(ErrorOf(tokens.Build()), HasSubstr("tokenizer.ggml.tokens has 2 entries"));
}

// As older converters wrote it.
TEST_F(CheckpointTest, ARopeFactorWithoutATypeIsLinear) {
  const auto divisors_of = [&](const char* key, float factor) {
    GgufBuilder builder = TinyLlama({});
    builder.AddFloat32(key, factor);
    const auto checkpoint = Open(builder.Build());
    EXPECT_TRUE(checkpoint.ok()) << checkpoint.status();
    return (*checkpoint)->config().rope_divisors;
  };
  const std::vector<double> quarter(8, 4.0);
  EXPECT_EQ(divisors_of("llama.rope.scaling.factor", 4), quarter);
  EXPECT_EQ(divisors_of("llama.rope.scale_linear", 4), quarter);
  EXPECT_TRUE(divisors_of("llama.rope.scale_linear", 0).empty());
}

TEST_F(CheckpointTest, RopeFactorsAreConfigNotWeights) {
  GgufBuilder builder = TinyLlama({});
  const std::vector<float> factors = {1, 1, 1, 2, 4, 8, 8, 8};
  builder.AddMatrix("rope_freqs.weight", 0, 8, DType::kF32, factors);
  const auto checkpoint = Open(builder.Build());
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  EXPECT_EQ((*checkpoint)->config().rope_divisors,
            std::vector<double>(factors.begin(), factors.end()));
  EXPECT_EQ((*checkpoint)->tensors().size(), 20u);
  GgufBuilder zero = TinyLlama({});
  zero.AddMatrix("rope_freqs.weight", 0, 8, DType::kF32, std::vector<float>(8, 0.0f));
  EXPECT_THAT(ErrorOf(zero.Build()), HasSubstr("'rope_freqs.weight' has the value 0"));
}

// Any one byte of the header may be damaged: the file opens or is refused, and what opened stays
// within the file (under AddressSanitizer, which sees the mapping's end only by a fault, so every
// view's bytes are touched).
TEST_F(CheckpointTest, DamagedHeaderBytesNeverReachOutsideTheFile) {
  TinyLlamaOptions options;
  options.num_hidden_layers = 1;
  options.tokenizer = false;
  const std::string good = TinyLlamaBytes(options);
  const size_t header_bytes = 2048;
  size_t opened = 0;
  for (size_t i = 0; i < header_bytes; ++i) {
    std::string bytes = good;
    bytes[i] = static_cast<char>(bytes[i] ^ (1 << (i % 8)));
    const auto checkpoint = Open(bytes);
    if (!checkpoint.ok()) continue;
    ++opened;
    uint64_t last_bytes = 0;
    for (const TensorView& view : (*checkpoint)->tensors()) {
      ASSERT_EQ(view.data.size(), view.rows * view.row_bytes());
      std::vector<float> row(view.cols);
      DequantizeRows(view, view.rows - 1, view.rows, row.data());
      last_bytes += view.data.back();
    }
    EXPECT_LT(last_bytes, 256 * (*checkpoint)->tensors().size());
  }
  EXPECT_GT(opened, 0u);  // a flipped letter of the model's name does no harm
  EXPECT_LT(opened, header_bytes / 2);
}

TEST(RealModelTest, SmolLm2OpensWithItsConfig) {
  const char* path = std::getenv("FLOTILLA_TEST_MODEL");
  ASSERT_NE(path, nullptr) << "set FLOTILLA_TEST_MODEL to SmolLM2-135M-Instruct.Q4_1.gguf; "
                              "`./flotilla test` fetches it and sets it";
  const auto checkpoint = OpenCheckpoint(path);
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  const ModelConfig& config = (*checkpoint)->config();
  EXPECT_EQ(config.vocab_size, 49152u);
  EXPECT_EQ(config.hidden_size, 576u);
  EXPECT_EQ(config.intermediate_size, 1536u);
  EXPECT_EQ(config.num_hidden_layers, 30u);
  EXPECT_EQ(config.num_attention_heads, 9u);
  EXPECT_EQ(config.num_key_value_heads, 3u);
  EXPECT_EQ(config.head_dim, 64u);
  EXPECT_EQ(config.rope_dim, 64u);
  EXPECT_EQ(config.max_position_embeddings, 8192u);
  EXPECT_EQ(config.rms_norm_eps, 1e-5f);
  EXPECT_EQ(config.rope_theta, 100000.0f);
  EXPECT_TRUE(config.tie_word_embeddings);
  EXPECT_TRUE(config.rope_interleaved);
  EXPECT_EQ((*checkpoint)->tensors().size(), 272u);
  const TensorView* embedding = (*checkpoint)->Find("model.embed_tokens.weight");
  ASSERT_NE(embedding, nullptr);
  EXPECT_EQ(embedding->dtype, DType::kQ8_0);
  // From ggml's own Python package, to its printed digits.
  std::vector<float> row(embedding->cols);
  DequantizeRows(*embedding, 5, 6, row.data());
  EXPECT_FLOAT_EQ(row[0], -0.0079956055f);
  EXPECT_FLOAT_EQ(row[40], 0.20088959f);
}

// KiB of this process's memory that the mapping around `at` takes, by the kernel's account.
uint64_t ResidentKib(const void* at) {
  std::ifstream maps("/proc/self/smaps");
  bool here = false;
  for (std::string line; std::getline(maps, line);) {
    unsigned long begin = 0, end = 0, kib = 0;
    if (std::sscanf(line.c_str(), "%lx-%lx ", &begin, &end) == 2) {
      here = begin <= reinterpret_cast<uintptr_t>(at) && reinterpret_cast<uintptr_t>(at) < end;
    } else if (here && std::sscanf(line.c_str(), "Rss: %lu kB", &kib) == 1) {
      return kib;
    }
  }
  ADD_FAILURE() << "no such mapping";
  return 0;
}

TEST(RealModelTest, ReleasedPagesTakeNoMemoryAndComeBack) {
  const auto checkpoint = OpenCheckpoint(std::getenv("FLOTILLA_TEST_MODEL"));
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  const TensorView& view = *(*checkpoint)->Find("model.embed_tokens.weight");
  const std::vector<uint8_t> before(view.data.begin(), view.data.end());
  const uint64_t read_kib = ResidentKib(view.data.data());
  EXPECT_GE(read_kib, view.data.size() / 1024);
  (*checkpoint)->ReleasePages(view);
  // Nearly all of it: what the kernel maps beside a page that is read, it may map and unmap when it
  // likes.
  EXPECT_LE(ResidentKib(view.data.data()), read_kib - view.data.size() / 1024 + 1024);
  EXPECT_TRUE(std::equal(before.begin(), before.end(), view.data.begin()));
  (*checkpoint)->ReleaseAllPages();
  EXPECT_LE(ResidentKib(view.data.data()), 1024);
  EXPECT_TRUE(std::equal(before.begin(), before.end(), view.data.begin()));
}

}  // namespace
}  // namespace flotilla
