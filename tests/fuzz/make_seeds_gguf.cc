// Seeds of the targets gguf and gguf_tokenizer: models without weights worth the name, each type of
// value, and files with one thing wrong.
#include <algorithm>
#include <cstdio>
#include <map>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "tests/fakes/gguf_builder.h"
#include "tests/fuzz/make_seeds.h"

namespace flotilla::fuzz {
namespace {

using testing::GgufBuilder;
using testing::GgufType;

constexpr uint32_t kHidden = 32;
constexpr uint32_t kVocab = 4;

// `changed`: other values for some keys.
void AddHyperparameters(GgufBuilder* gguf, const std::map<std::string, uint32_t>& changed = {}) {
  gguf->AddString("general.architecture", "llama");
  gguf->AddString("general.name", "n");
  for (const auto& [key, value] : {std::pair{"llama.block_count", 1u},
                                   {"llama.context_length", 64u},
                                   {"llama.embedding_length", kHidden},
                                   {"llama.feed_forward_length", 1u},
                                   {"llama.attention.head_count", 1u},
                                   {"llama.attention.head_count_kv", 1u},
                                   {"llama.attention.key_length", 2u},
                                   {"llama.attention.value_length", 2u},
                                   {"llama.rope.dimension_count", 2u},
                                   {"llama.expert_count", 0u},
                                   {"llama.vocab_size", kVocab}})
    gguf->AddUint32(key, changed.contains(key) ? changed.at(key) : value);
  gguf->AddString("llama.rope.scaling.type", "none");
  gguf->AddFloat32("llama.rope.freq_base", 10000.0f);
  gguf->AddFloat32("llama.attention.layer_norm_rms_epsilon", 1e-5f);
}

// A whole model of one layer, two wide. Those of super-blocks are the larger ones: no floats in
// them.
void AddTensors(GgufBuilder* gguf, DType dtype, bool tied, uint32_t hidden = kHidden,
                uint32_t experts = 0) {
  const auto matrix = [&](const std::string& name, uint64_t rows, uint64_t cols, DType type) {
    gguf->AddMatrix(name, rows, cols, type, std::vector<float>(std::max<uint64_t>(rows, 1) * cols));
  };
  const bool wide = hidden > kHidden;
  const DType norm = wide ? dtype : DType::kF32;
  matrix("token_embd.weight", kVocab, hidden, dtype);
  matrix("blk.0.attn_norm.weight", 0, hidden, norm);
  for (const char* name : {"attn_q", "attn_k", "attn_v"})
    matrix(StrCat("blk.0.", name, ".weight"), 2, hidden, dtype);
  matrix("blk.0.attn_output.weight", hidden, 2, DType::kF16);
  matrix("blk.0.ffn_norm.weight", 0, hidden, norm);
  const std::string all = experts > 0 ? "_exps" : "";
  const uint32_t times = std::max(experts, 1u);
  matrix(StrCat("blk.0.ffn_gate", all, ".weight"), times, hidden, dtype);
  matrix(StrCat("blk.0.ffn_up", all, ".weight"), times, hidden, dtype);
  matrix(StrCat("blk.0.ffn_down", all, ".weight"), times * hidden, 1,
         wide ? DType::kF16 : DType::kF32);
  if (experts > 0) matrix("blk.0.ffn_gate_inp.weight", experts, hidden, DType::kF32);
  matrix("output_norm.weight", 0, hidden, norm);
  if (!tied) matrix("output.weight", kVocab, hidden, dtype);
}

void MakeWrongGguf() {
  const std::pair<const char*, uint32_t> changes[] = {{"llama.block_count", 0},
                                                      {"llama.block_count", 2},
                                                      {"llama.attention.head_count", 2},
                                                      {"llama.attention.head_count_kv", 3},
                                                      {"llama.attention.key_length", 3},
                                                      {"llama.attention.value_length", 4},
                                                      {"llama.rope.dimension_count", 3},
                                                      {"llama.expert_count", 2},
                                                      {"llama.vocab_size", 5}};
  for (const auto& [key, value] : changes) {
    GgufBuilder gguf;
    AddHyperparameters(&gguf, {{key, value}});
    AddTensors(&gguf, DType::kQ4_0, true);
    Save("gguf", StrCat("wrong-", key, "-", value), gguf.Build());
  }
  for (const bool causal : {true, false}) {
    GgufBuilder gguf;
    AddHyperparameters(&gguf);
    gguf.AddBool("llama.attention.causal", causal);
    AddTensors(&gguf, DType::kQ4_0, true);
    Save("gguf", causal ? "causal" : "wrong-causal", gguf.Build());
  }
  GgufBuilder tokens, alignment, twice, huge, super_block, far, other;
  AddHyperparameters(&tokens);
  tokens.AddStrings("tokenizer.ggml.tokens", {"a"});
  AddTensors(&tokens, DType::kQ4_0, true);
  alignment.AddUint32("general.alignment", 12);
  for (int i = 0; i < 2; ++i) twice.AddMatrix("a", 0, 1, DType::kF32, {0});
  huge.AddTensor("a", {32, uint64_t{1} << 40, uint64_t{1} << 40}, 0, "");
  // Overflows in bytes only.
  super_block.AddTensor("a", {256, uint64_t{1} << 57}, static_cast<uint32_t>(DType::kQ6_K), "");
  far.AddTensor("a", {32}, 0, "", INT64_MAX - 31);
  other.AddString("general.architecture", "gpt2");
  for (const auto& [name, gguf] : {std::pair<const char*, const GgufBuilder*>{"tokens", &tokens},
                                   {"alignment", &alignment},
                                   {"twice", &twice},
                                   {"huge", &huge},
                                   {"super-block", &super_block},
                                   {"far", &far},
                                   {"other", &other}})
    Save("gguf", StrCat("wrong-", name), gguf->Build());
}

void AddOneOfEachType(GgufBuilder* gguf) {
  struct Scalar {
    GgufType type;
    std::string bytes;
  };
  const Scalar scalars[] = {
      {GgufType::kUint8, Raw<uint8_t>(1)},          {GgufType::kInt8, Raw<int8_t>(-1)},
      {GgufType::kUint16, Raw<uint16_t>(2)},        {GgufType::kInt16, Raw<int16_t>(-2)},
      {GgufType::kUint32, Raw<uint32_t>(3)},        {GgufType::kInt32, Raw<int32_t>(3)},
      {GgufType::kFloat32, Raw<float>(1.5f)},       {GgufType::kBool, Raw<uint8_t>(1)},
      {GgufType::kString, Raw<uint64_t>(2) + "ab"}, {GgufType::kUint64, Raw<uint64_t>(4)},
      {GgufType::kInt64, Raw<int64_t>(-4)},         {GgufType::kFloat64, Raw<double>(2.5)}};
  for (const Scalar& scalar : scalars) {
    const std::string name = StrCat(static_cast<uint32_t>(scalar.type));
    gguf->AddRaw("s" + name, scalar.type, scalar.bytes);
    gguf->AddRaw("a" + name, GgufType::kArray,
                 Raw(scalar.type) + Raw<uint64_t>(2) + scalar.bytes + scalar.bytes);
  }
}

void MakeGguf() {
  for (DType dtype : {DType::kF32, DType::kF16, DType::kQ4_0, DType::kQ4_1, DType::kQ5_0,
                      DType::kQ5_1, DType::kQ8_0, DType::kQ4_K, DType::kQ5_K, DType::kQ6_K}) {
    const uint32_t hidden = std::max(kHidden, Traits(dtype).block_values);
    GgufBuilder gguf;
    AddHyperparameters(&gguf, {{"llama.embedding_length", hidden}});
    AddTensors(&gguf, dtype, dtype != DType::kQ8_0, hidden);
    Save("gguf", Traits(dtype).name, gguf.Build());
  }
  const std::tuple<const char*, uint32_t, uint32_t> experts[] = {
      {"experts", 1, 0}, {"wrong-gating", 2, 0}, {"wrong-shared", 1, 1}};
  for (const auto& [name, gating, shared] : experts) {
    GgufBuilder gguf;
    AddHyperparameters(&gguf, {{"llama.expert_count", 2}});
    gguf.AddUint32("llama.expert_used_count", 1);
    gguf.AddUint32("llama.expert_gating_func", gating);
    gguf.AddUint32("llama.expert_shared_count", shared);
    AddTensors(&gguf, DType::kQ4_0, true, kHidden, 2);
    Save("gguf", name, gguf.Build());
  }
  GgufBuilder types;
  AddOneOfEachType(&types);
  Save("gguf", "types", types.Build());
  GgufBuilder aligned(64);
  AddHyperparameters(&aligned);
  aligned.AddUint32("general.alignment", 64);
  aligned.AddStrings("tokenizer.ggml.tokens", {"a", "b", "c", "d"});
  AddTensors(&aligned, DType::kQ4_0, true);
  Save("gguf", "aligned", aligned.Build());
}

void AddTokens(GgufBuilder* gguf, const std::string& pre,
               const std::vector<std::string>& merges = {"Ġ t", "h e", "Ġt he"}) {
  std::vector<std::string> tokens = {"<|endoftext|>", "<|im_end|>", "<|e"};
  std::vector<int32_t> types = {3, 3, 4};
  for (char c = 0x21; c < 0x7f; ++c) tokens.emplace_back(1, c);
  tokens.insert(tokens.end(), {"Ġ", "Ċ", "Ã", "©", "Ġt", "he", "Ġthe"});
  types.resize(tokens.size(), 1);
  gguf->AddString("tokenizer.ggml.model", "gpt2");
  gguf->AddString("tokenizer.ggml.pre", pre);
  gguf->AddStrings("tokenizer.ggml.tokens", tokens);
  gguf->AddInts("tokenizer.ggml.token_type", types);
  gguf->AddStrings("tokenizer.ggml.merges", merges);
}

// SentencePiece's characters: every printable one as a byte, some as themselves.
void AddCharacters(GgufBuilder* gguf, const std::string& model) {
  std::vector<std::string> tokens = {"<unk>", "<s>", "</s>", "▁", "h", "e", "é", "▁h", "he", "hh"};
  std::vector<int32_t> types = {2, 3, 3, 1, 1, 1, 1, 1, 1, 1};
  for (int byte = 0x20; byte < 0x7f; ++byte) {
    char written[8];
    std::snprintf(written, sizeof(written), "<0x%02X>", byte);
    tokens.emplace_back(written);
    types.push_back(6);
  }
  gguf->AddString("tokenizer.ggml.model", model);
  gguf->AddStrings("tokenizer.ggml.tokens", tokens);
  gguf->AddInts("tokenizer.ggml.token_type", types);
  gguf->AddStrings("tokenizer.ggml.merges", {"▁ h", "h e", "h h"});
  gguf->AddFloats("tokenizer.ggml.scores", std::vector<float>(tokens.size(), -1.0f));
  gguf->AddUint32("tokenizer.ggml.unknown_token_id", 0);
}

void MakeCharacterTokenizers() {
  for (const char* model : {"llama", "gemma4"}) {
    GgufBuilder gguf;
    AddCharacters(&gguf, model);
    gguf.AddString("general.name", "Phi-3");
    gguf.AddBool("tokenizer.ggml.add_eos_token", false);
    Save("gguf_tokenizer", model, gguf.Build());
  }
  GgufBuilder no_prefix, byte, types, pre;
  AddCharacters(&no_prefix, "llama");
  no_prefix.AddBool("tokenizer.ggml.add_space_prefix", false);
  Save("gguf_tokenizer", "no-prefix", no_prefix.Build());
  byte.AddString("tokenizer.ggml.model", "llama");
  byte.AddStrings("tokenizer.ggml.tokens", {"<0xZZ>"});
  byte.AddInts("tokenizer.ggml.token_type", {6});
  types.AddString("tokenizer.ggml.model", "gpt2");
  types.AddStrings("tokenizer.ggml.tokens", {"a", "b"});
  types.AddInts("tokenizer.ggml.token_type", {1});
  AddTokens(&pre, "unheard-of");
  Save("gguf_tokenizer", "wrong-byte", byte.Build());
  Save("gguf_tokenizer", "wrong-types", types.Build());
  Save("gguf_tokenizer", "wrong-pre", pre.Build());
}

void MakeGgufTokenizer() {
  for (const char* pre : {"gpt-2", "smollm"}) {
    GgufBuilder gguf;
    AddTokens(&gguf, pre);
    gguf.AddUint32("tokenizer.ggml.bos_token_id", 1);
    gguf.AddUint32("tokenizer.ggml.eos_token_id", 1);
    gguf.AddUint32("tokenizer.ggml.eot_token_id", 0);
    gguf.AddBool("tokenizer.ggml.add_bos_token", true);
    Save("gguf_tokenizer", pre, gguf.Build());
  }
  for (const char* merge : {"he", "h é"}) {
    GgufBuilder gguf;
    AddTokens(&gguf, "gpt-2", {merge});
    Save("gguf_tokenizer", StrCat("merge-", std::string(merge).size()), gguf.Build());
  }
  GgufBuilder role;
  AddTokens(&role, "gpt-2");
  role.AddUint32("tokenizer.ggml.eos_token_id", 1000);
  Save("gguf_tokenizer", "role", role.Build());
}

}  // namespace

void SaveGgufs() {
  MakeGguf();
  MakeWrongGguf();
  MakeGgufTokenizer();
  MakeCharacterTokenizers();
}

}  // namespace flotilla::fuzz
