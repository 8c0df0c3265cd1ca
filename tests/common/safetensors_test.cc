// safetensors files and model folders: small ones written here, what is read and what is refused.
#include "common/checkpoint/safetensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <cstring>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "tests/fakes/gguf_builder.h"
#include "tests/support/safetensors_builder.h"
#include "tests/support/temp_folder.h"

namespace flotilla {
namespace {

using ::flotilla::testing::BytesOf;
using ::flotilla::testing::SafetensorsBuilder;
using ::flotilla::testing::SafetensorsBytes;
using ::flotilla::testing::WriteBytes;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// A copy of exactly the file's size, so that a sanitizer sees every byte read past it.
struct Parsed {
  explicit Parsed(const std::string& bytes)
      : copy(std::make_unique<uint8_t[]>(bytes.size())),
        file((std::memcpy(copy.get(), bytes.data(), bytes.size()),
              SafetensorsFile::Parse({copy.get(), bytes.size()}))) {}
  std::unique_ptr<uint8_t[]> copy;
  StatusOr<SafetensorsFile> file;
};
std::string ErrorOf(const std::string& header, const std::string& data) {
  const Parsed parsed(SafetensorsBytes(header, data));
  return parsed.file.ok() ? "parsed" : std::string(parsed.file.status().message());
}
std::vector<float> Values(const TensorView& view) {
  std::vector<float> values(view.rows * view.cols);
  DequantizeRows(view, 0, view.rows, values.data());
  return values;
}

TEST(SafetensorsTest, TensorsOfAllTypesInTheOrderOfTheirBytes) {
  const std::string header = R"({"__metadata__": {"format": "pt"},
    "b": {"dtype": "BF16", "shape": [2], "data_offsets": [12, 16]},
    "a": {"dtype": "F32", "shape": [1, 1, 3], "data_offsets": [0, 12]},
    "c": {"dtype": "F16", "shape": [2, 1], "data_offsets": [16, 20]}}  )";
  const std::string data = BytesOf<float>({1.5f, -2.0f, 0.1f}) +
                           BytesOf<uint16_t>({0x3fc0, 0xc2f7}) +
                           BytesOf<uint16_t>({0x3c00, 0xb800});
  const Parsed parsed(SafetensorsBytes(header, data));
  ASSERT_TRUE(parsed.file.ok()) << parsed.file.status();
  const std::vector<TensorView>& tensors = parsed.file->tensors();
  ASSERT_EQ(tensors.size(), 3u);
  EXPECT_EQ(tensors[0].name, "a");
  EXPECT_EQ(tensors[0].rows, 1u);
  EXPECT_EQ(tensors[0].cols, 3u);
  EXPECT_THAT(Values(tensors[0]), ElementsAre(1.5f, -2.0f, 0.1f));
  EXPECT_EQ(tensors[1].rows, 1u);
  EXPECT_THAT(Values(tensors[1]), ElementsAre(1.5f, -123.5f));
  EXPECT_EQ(tensors[2].rows, 2u);
  EXPECT_THAT(Values(tensors[2]), ElementsAre(1.0f, -0.5f));
}

TEST(SafetensorsTest, WhatIsDamagedIsRefusedAndNamed) {
  const std::string four(4, 'x');
  const auto one = [](const char* fields) { return StrCat("{\"w\": {", fields, "}}"); };
  const std::string good = one(R"("dtype": "F32", "shape": [1], "data_offsets": [0, 4])");
  EXPECT_EQ(ErrorOf(good, four), "parsed");
  struct Case {
    const char *fields, *message;
  };
  for (const auto& [fields, message] : {
           Case{R"("dtype": "I64", "shape": [1], "data_offsets": [0, 4])", "dtype is 'I64'"},
           Case{R"("dtype": 1, "shape": [1], "data_offsets": [0, 4])", "dtype must be a string"},
           Case{R"("shape": [1], "data_offsets": [0, 4])", "dtype is missing"},
           Case{R"("dtype": "F8_E5M2", "shape": [4], "data_offsets": [0, 4])", "F8_E4M3"},
           Case{R"("dtype": "F8_E4M3", "shape": [], "data_offsets": [0, 4])", "ask for 1"},
           Case{R"("dtype": "F32", "shape": [1,1,1,1,1], "data_offsets": [0, 4])", "5 dimensions"},
           Case{R"("dtype": "F32", "shape": [0], "data_offsets": [0, 0])", "a 0 as dimension 0"},
           Case{R"("dtype": "F32", "shape": [-1], "data_offsets": [0, 4])", "unsigned integers"},
           Case{R"("dtype": "F32", "shape": 1, "data_offsets": [0, 4])", "array of numbers"},
           Case{R"("dtype": "F32", "shape": [4294967296, 4294967296, 1], "data_offsets": [0, 4])",
                "overflows"},
           Case{R"("dtype": "F32", "shape": [4611686018427387904], "data_offsets": [0, 4])",
                "overflows"},
           Case{R"("dtype": "F32", "shape": [1], "data_offsets": [0, 8])",
                "not within the 4 bytes"},
           Case{R"("dtype": "F32", "shape": [1], "data_offsets": [4, 0])",
                "not within the 4 bytes"},
           Case{R"("dtype": "F32", "shape": [1], "data_offsets": [0])", "must be two numbers"},
           Case{R"("dtype": "F16", "shape": [1], "data_offsets": [0, 4])", "ask for 2"},
       }) {
    EXPECT_THAT(ErrorOf(one(fields), four), HasSubstr(message)) << fields;
    EXPECT_THAT(ErrorOf(one(fields), four), HasSubstr("'w'")) << fields;
  }
  EXPECT_THAT(ErrorOf(good, four + four), HasSubstr("describes 4 bytes of data, but 8 follow"));
  const auto two = [](const char* offsets) {
    return StrCat(R"({"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]},)",
                  R"("b": {"dtype": "F16", "shape": [1], "data_offsets": )", offsets, "}}");
  };
  EXPECT_EQ(ErrorOf(two("[4, 6]"), "abcdef"), "parsed");
  EXPECT_THAT(ErrorOf(two("[6, 8]"), four + four),
              HasSubstr("'b' begins at byte 6 of the data, b"));
  EXPECT_THAT(ErrorOf(two("[2, 4]"), four), HasSubstr("within the one before"));
  EXPECT_THAT(ErrorOf(R"({"a": 1})", ""), HasSubstr("'a' is not a tensor's name"));
  EXPECT_THAT(ErrorOf(R"({"a": {}, "a": {}})", ""), HasSubstr("twice"));
  EXPECT_THAT(ErrorOf("[]", ""), HasSubstr("must be an object"));
  EXPECT_THAT(ErrorOf("{", ""), HasSubstr("header: "));
}

TEST(SafetensorsTest, TheHeadersLengthIsBoundedByTheFile) {
  for (const std::string& bytes :
       {std::string(), std::string(7, '\0'), std::string(8, '\xff'),
        SafetensorsBytes("{}", "").substr(0, 9), std::string("GGUF\3\0\0\0\0\0\0\0", 12)}) {
    const Parsed parsed(bytes);
    EXPECT_THAT(std::string(parsed.file.status().message()), HasSubstr("not a safetensors file"));
  }
}

// ---- Folders ------------------------------------------------------------------------------------

class FolderTest : public ::testing::Test {
 protected:
  void SetUp() override {
    Write("config.json", R"({"architectures": ["Qwen2ForCausalLM"], "hidden_size": 4,
      "intermediate_size": 6, "num_hidden_layers": 1, "num_attention_heads": 2,
      "num_key_value_heads": 1, "vocab_size": 5, "max_position_embeddings": 8,
      "rms_norm_eps": 1e-6, "tie_word_embeddings": true})");
    const std::string layer = "model.layers.0.";
    shapes_ = {{"model.embed_tokens.weight", {5, 4}},
               {"model.norm.weight", {4}},
               {layer + "input_layernorm.weight", {4}},
               {layer + "post_attention_layernorm.weight", {4}},
               {layer + "self_attn.q_proj.weight", {4, 4}},
               {layer + "self_attn.q_proj.bias", {4}},
               {layer + "self_attn.k_proj.weight", {2, 4}},
               {layer + "self_attn.k_proj.bias", {2}},
               {layer + "self_attn.v_proj.weight", {2, 4}},
               {layer + "self_attn.v_proj.bias", {2}},
               {layer + "self_attn.o_proj.weight", {4, 4}},
               {layer + "mlp.gate_proj.weight", {6, 4}},
               {layer + "mlp.up_proj.weight", {6, 4}},
               {layer + "mlp.down_proj.weight", {4, 6}}};
  }

  using Shapes = std::map<std::string, std::vector<uint64_t>>;
  void Write(const std::string& name, const std::string& bytes) {
    WriteBytes(folder_ + "/" + name, bytes);
  }
  // Zeros, but the first value of each tensor is the length of its name.
  void WriteShard(const std::string& name, const Shapes& shapes) {
    SafetensorsBuilder file;
    for (const auto& [tensor, shape] : shapes) {
      uint64_t count = 1;
      for (const uint64_t dim : shape) count *= dim;
      std::vector<float> values(count);
      values[0] = static_cast<float>(tensor.size());
      file.Add(tensor, "F32", shape, BytesOf(values));
    }
    Write(name, file.Build());
  }
  std::string ErrorOfFolder() {
    const auto checkpoint = OpenCheckpoint(folder_);
    return checkpoint.ok() ? "opened" : std::string(checkpoint.status().message());
  }
  // The first half of the tensors in one shard, the rest in another.
  void WriteShards(const std::string& second_name) {
    Shapes first, second;
    std::string index;
    for (const auto& [tensor, shape] : shapes_) {
      const bool early = first.size() < shapes_.size() / 2;
      (early ? first : second)[tensor] = shape;
      StrAppend(&index, index.empty() ? "" : ",", "\"", tensor, "\": \"",
                early ? "one.safetensors" : second_name, "\"");
    }
    WriteShard("one.safetensors", first);
    WriteShard("two.safetensors", second);
    Write("model.safetensors.index.json", "{\"metadata\": {}, \"weight_map\": {" + index + "}}");
  }

  const testing::TempFolder temp_;
  const std::string& folder_ = temp_.path();
  Shapes shapes_;
};

TEST_F(FolderTest, OpensWithItsTensors) {
  shapes_["lm_head.weight"] = {5, 4};  // the embedding once more
  shapes_["model.layers.0.self_attn.rotary_emb.inv_freq"] = {1};
  WriteShard("model.safetensors", shapes_);
  const auto checkpoint = OpenCheckpoint(folder_ + "/");
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  EXPECT_EQ((*checkpoint)->config().architecture, "Qwen2ForCausalLM");
  EXPECT_EQ((*checkpoint)->tensors().size(), shapes_.size() - 2);
  EXPECT_EQ((*checkpoint)->Find("lm_head.weight"), nullptr);
  EXPECT_EQ((*checkpoint)->Find("zzz"), nullptr);
  for (const TensorView& view : (*checkpoint)->tensors()) {
    EXPECT_EQ((*checkpoint)->Find(view.name), &view);
    EXPECT_EQ(Values(view)[0], static_cast<float>(view.name.size()));
  }
}

TEST_F(FolderTest, ShardsAreOneModelAndTheDigestIsOfAllFiles) {
  WriteShards("two.safetensors");
  std::string digest;
  {
    const auto checkpoint = OpenCheckpoint(folder_);
    ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
    EXPECT_EQ((*checkpoint)->tensors().size(), shapes_.size());
    digest = (*checkpoint)->Digest();
    EXPECT_EQ(digest.size(), 64u);
    EXPECT_EQ((*OpenCheckpoint(folder_))->Digest(), digest);
  }
  Shapes second;  // the same shapes with the first value of one tensor changed
  for (auto it = std::next(shapes_.begin(), static_cast<ptrdiff_t>(shapes_.size() / 2));
       it != shapes_.end(); ++it) {
    second.insert(*it);
  }
  WriteShard("two.safetensors", second);
  EXPECT_EQ((*OpenCheckpoint(folder_))->Digest(), digest);
  std::filesystem::resize_file(folder_ + "/config.json",
                               std::filesystem::file_size(folder_ + "/config.json"));
  Write("config.json", R"({"architectures": ["Qwen2ForCausalLM"], "hidden_size": 4,
      "intermediate_size": 6, "num_hidden_layers": 1, "num_attention_heads": 2,
      "num_key_value_heads": 1, "vocab_size": 5, "max_position_embeddings": 16,
      "rms_norm_eps": 1e-6, "tie_word_embeddings": true})");
  EXPECT_NE((*OpenCheckpoint(folder_))->Digest(), digest);
}

TEST_F(FolderTest, WrongFilesAreNamed) {
  EXPECT_THAT(ErrorOfFolder(), HasSubstr("model.safetensors: No such file"));
  WriteShards("../two.safetensors");
  EXPECT_THAT(ErrorOfFolder(), HasSubstr("not the name of a .safetensors file"));
  WriteShards("three.safetensors");
  EXPECT_THAT(ErrorOfFolder(), HasSubstr("three.safetensors: No such file"));
  WriteShards("one.safetensors");  // and no second one
  EXPECT_THAT(ErrorOfFolder(), HasSubstr("is missing"));
  WriteShards("two.safetensors");
  Shapes foreign = shapes_;
  foreign["extra"] = {1};
  WriteShard("one.safetensors", foreign);
  EXPECT_THAT(ErrorOfFolder(), HasSubstr("one.safetensors: tensor"));
  Write("model.safetensors.index.json", R"({"weight_map": {}})");
  EXPECT_THAT(ErrorOfFolder(), HasSubstr("weight_map is empty"));
  Write("model.safetensors.index.json", R"({"weight_map": {"a": 1}})");
  EXPECT_THAT(ErrorOfFolder(), HasSubstr("weight_map.a must be a string"));
  std::filesystem::remove(folder_ + "/model.safetensors.index.json");
  for (const auto& [tensor, shape] : shapes_) {
    Shapes shapes = shapes_;
    shapes.erase(tensor);
    WriteShard("model.safetensors", shapes);
    EXPECT_THAT(ErrorOfFolder(), HasSubstr(tensor + "' is missing"));
    shapes[tensor] = {1, shape.back()};
    if (shape.size() > 1) {
      WriteShard("model.safetensors", shapes);
      EXPECT_THAT(ErrorOfFolder(), HasSubstr("the hyperparameters ask for")) << tensor;
    }
  }
  Write("model.safetensors", "GGUF");
  EXPECT_THAT(ErrorOfFolder(), HasSubstr("model.safetensors: not a safetensors file"));
}

}  // namespace
}  // namespace flotilla
