// Writes GGUF files for tests: field by field, or a whole small random llama model with a
// tokenizer.
//
// GgufBuilder appends what it is told without checking it, so that tests can also make broken
// files. TinyLlama's model computes nonsense but has everything a real one has: grouped heads that
// split over 2 or 3 ranks, quantised matrices, special tokens, merges and a chat template.
// Threads: one at a time. Same options and seed → same bytes. Errors: CHECK.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/checkpoint/checkpoint.h"

namespace flotilla::testing {

// GGUF's numbers of value types.
enum class GgufType : uint32_t {
  kUint8 = 0,
  kInt8 = 1,
  kUint16 = 2,
  kInt16 = 3,
  kUint32 = 4,
  kInt32 = 5,
  kFloat32 = 6,
  kBool = 7,
  kString = 8,
  kArray = 9,
  kUint64 = 10,
  kInt64 = 11,
  kFloat64 = 12,
};

// The value's bytes, as they lie in memory.
template <typename T>
void Put(std::string* out, T value) {
  out->append(reinterpret_cast<const char*>(&value), sizeof(value));
}

class GgufBuilder {
 public:
  explicit GgufBuilder(uint64_t alignment = 32) : alignment_(alignment) {}

  void AddUint32(std::string_view key, uint32_t value);
  void AddFloat32(std::string_view key, float value);
  void AddBool(std::string_view key, bool value);
  void AddString(std::string_view key, std::string_view value);
  void AddStrings(std::string_view key, const std::vector<std::string>& values);
  void AddInts(std::string_view key, const std::vector<int32_t>& values);
  void AddFloats(std::string_view key, const std::vector<float>& values);
  // A key with any bytes for its value, which follow the type.
  void AddRaw(std::string_view key, GgufType type, std::string_view value);

  // `dims` in GGUF's order (row length first). `offset` places the data by hand; -1 appends it.
  void AddTensor(std::string_view name, const std::vector<uint64_t>& dims, uint32_t type,
                 std::string_view data, int64_t offset = -1);
  // Quantises `values` (row-major [rows, cols]; rows = 0: a vector) to `dtype`.
  void AddMatrix(std::string_view name, uint64_t rows, uint64_t cols, DType dtype,
                 const std::vector<float>& values);

  // Overrides of the header, for hostile files. Set after the last Add.
  void set_version(uint32_t version) { version_ = version; }
  void set_tensor_count(uint64_t count) { tensor_count_ = count; }
  void set_key_count(uint64_t count) { key_count_ = count; }

  std::string Build() const;

 private:
  const uint64_t alignment_;
  uint32_t version_ = 3;
  uint64_t tensor_count_ = 0;
  uint64_t key_count_ = 0;
  std::string keys_;
  std::string tensors_;
  std::string data_;
};

// Whole blocks of `dtype`, rounded to nearest (not meant to be bit-equal to ggml's quantiser).
std::string Quantize(DType dtype, const std::vector<float>& values);

struct TinyLlamaOptions {
  std::string architecture = "llama";  // or qwen2, smollm3, granite, gemma2, …: GGUF's
  uint32_t hidden_size = 96;
  uint32_t intermediate_size = 160;
  uint32_t num_hidden_layers = 2;
  uint32_t num_attention_heads = 6;
  uint32_t num_key_value_heads = 3;
  uint32_t head_dim = 16;
  uint32_t max_position_embeddings = 512;
  DType matrix_dtype = DType::kQ4_1;     // of the layers' matrices
  DType embedding_dtype = DType::kQ8_0;  // of token_embd and output
  // Instead of matrix_dtype, for matrices with this in their name ("attn_v", "blk.0.ffn_down").
  std::vector<std::pair<std::string, DType>> other_dtypes = {};
  uint32_t num_experts = 0;  // llama, qwen3moe
  uint32_t num_experts_per_tok = 2;
  uint32_t sliding_window = 20;  // gemma2, gemma3
  float softcap = 0;             // the same, of scores and of logits
  float rope_scale = 0;          // linear scaling's factor; 0: none
  bool tie_word_embeddings = true;
  bool tokenizer = true;
  uint64_t seed = 1;
};

// The vocabulary: 0 <|endoftext|>, 1 <|im_start|> (bos), 2 <|im_end|> (eos), then the 256 bytes in
// byte-level spelling in GPT-2's order, then one token for each merge.
inline constexpr uint32_t kTinyLlamaFirstByteToken = 3;
uint32_t TinyLlamaVocabSize();

// Before Build(), so that tests may add or spoil something.
GgufBuilder TinyLlama(const TinyLlamaOptions& options);
std::string TinyLlamaBytes(const TinyLlamaOptions& options = {});
void WriteTinyLlama(const std::string& path, const TinyLlamaOptions& options = {});
void WriteBytes(const std::string& path, std::string_view bytes);

}  // namespace flotilla::testing
