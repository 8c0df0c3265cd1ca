// A GGUF in several files: the same model as in one; anything else is refused by name.
#include "common/checkpoint/gguf_shards.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include "common/text/model_text.h"
#include "tests/fakes/gguf_builder.h"
#include "tests/support/temp_folder.h"

namespace flotilla {
namespace {

using ::flotilla::testing::GgufBuilder;
using ::flotilla::testing::TinyLlamaBytes;
using ::flotilla::testing::WriteBytes;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;

// Keys of `file` again.
void CopyKeys(const GgufFile& file, GgufBuilder* builder) {
  for (const auto& [key, value] : file.metadata()) {
    if (const auto* number = std::get_if<uint64_t>(&value)) {
      builder->AddUint32(key, static_cast<uint32_t>(*number));
    } else if (const auto* real = std::get_if<double>(&value)) {
      builder->AddFloat32(key, static_cast<float>(*real));
    } else if (const auto* flag = std::get_if<bool>(&value)) {
      builder->AddBool(key, *flag);
    } else if (const auto* text = std::get_if<std::string_view>(&value)) {
      builder->AddString(key, *text);
    } else if (const auto* texts = std::get_if<std::vector<std::string_view>>(&value)) {
      builder->AddStrings(key, {texts->begin(), texts->end()});
    } else if (const auto* numbers = std::get_if<std::vector<int64_t>>(&value)) {
      builder->AddInts(key, {numbers->begin(), numbers->end()});
    } else {
      ADD_FAILURE() << "a key of a type that this test does not copy: " << key;
    }
  }
}

class GgufShardsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    WriteBytes(folder_ + "/whole.gguf", TinyLlamaBytes({}));
    Split(3);
  }

  std::string Path(int number, int count = 3) const {
    return folder_ + "/m-0000" + std::to_string(number) + "-of-0000" + std::to_string(count) +
           ".gguf";
  }

  // whole.gguf's tensors, dealt out; the first file has the keys.
  void Split(uint32_t count) {
    const auto whole = GgufShards::Open(folder_ + "/whole.gguf");
    ASSERT_TRUE(whole.ok()) << whole.status();
    const std::vector<TensorView>& tensors = whole->gguf.tensors();
    for (uint32_t shard = 0; shard < count; ++shard) {
      GgufBuilder builder;
      if (shard == 0) CopyKeys(whole->gguf, &builder);
      builder.AddUint32("split.no", shard);
      builder.AddUint32("split.count", count);
      builder.AddUint32("split.tensors.count", static_cast<uint32_t>(tensors.size()));
      for (size_t i = shard; i < tensors.size(); i += count) {
        const TensorView& view = tensors[i];
        builder.AddTensor(view.name, {view.cols, view.rows}, static_cast<uint32_t>(view.dtype),
                          {reinterpret_cast<const char*>(view.data.data()), view.data.size()});
      }
      WriteBytes(Path(static_cast<int>(shard) + 1), builder.Build());
    }
  }

  // One more file with these numbers, and nothing else, in the place of shard `number`.
  void WriteShard(int number, uint32_t no, uint32_t count) {
    GgufBuilder builder;
    builder.AddUint32("split.no", no);
    builder.AddUint32("split.count", count);
    WriteBytes(Path(number), builder.Build());
  }

  std::string ErrorOf(const std::string& path) const {
    const auto checkpoint = OpenCheckpoint(path);
    return checkpoint.ok() ? "opened" : std::string(checkpoint.status().message());
  }

  const testing::TempFolder temp_;
  const std::string& folder_ = temp_.path();
};

TEST_F(GgufShardsTest, IsTheModelThatItWasInOneFile) {
  const auto whole = OpenCheckpoint(folder_ + "/whole.gguf");
  ASSERT_TRUE(whole.ok()) << whole.status();
  const auto shards = OpenCheckpoint(Path(1));
  ASSERT_TRUE(shards.ok()) << shards.status();
  EXPECT_EQ((*shards)->tensors().size(), (*whole)->tensors().size());
  for (const TensorView& view : (*whole)->tensors()) {
    const TensorView* there = (*shards)->Find(view.name);
    ASSERT_NE(there, nullptr) << view.name;
    EXPECT_EQ(there->rows, view.rows);
    EXPECT_EQ(there->cols, view.cols);
    EXPECT_TRUE(
        std::equal(there->data.begin(), there->data.end(), view.data.begin(), view.data.end()))
        << view.name;
  }
  EXPECT_EQ((*shards)->config().vocab_size, (*whole)->config().vocab_size);
  EXPECT_THAT((*shards)->Digest({}), SizeIs(64));
  EXPECT_NE((*shards)->Digest({}), (*whole)->Digest({}));
  std::string bytes;
  EXPECT_TRUE(OpenModelText(Path(1), &bytes).ok());
  EXPECT_TRUE(ParseModelText(bytes).ok());
}

TEST_F(GgufShardsTest, TheDigestIsThatOfAllFiles) {
  const std::string before = (*OpenCheckpoint(Path(1)))->Digest({});
  EXPECT_EQ((*OpenCheckpoint(Path(1)))->Digest({}), before);
  const auto third = GgufShards::Open(Path(1));
  ASSERT_TRUE(third.ok());
  const std::span<const uint8_t> bytes = third->files[2].bytes();
  std::string changed(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  changed.back() ^= 1;
  WriteBytes(Path(3) + ".new", changed);
  std::filesystem::rename(Path(3) + ".new", Path(3));
  EXPECT_NE((*OpenCheckpoint(Path(1)))->Digest({}), before);
}

TEST_F(GgufShardsTest, NamesOfTheOthersComeFromTheFirst) {
  EXPECT_THAT(GgufShardPaths("/x/a-00001-of-00002.gguf"),
              ElementsAre("/x/a-00001-of-00002.gguf", "/x/a-00002-of-00002.gguf"));
  for (const char* other : {"a.gguf", "/x/a-00002-of-00003.gguf", "a-00001-of-0000x.gguf",
                            "a-00001-of-00000.gguf", "-00001-of-00002.gguf", ""}) {
    EXPECT_THAT(GgufShardPaths(other), ElementsAre(other));
  }
}

TEST_F(GgufShardsTest, StemsHaveNeitherEndNorNumber) {
  EXPECT_EQ(GgufStem("m.Q4_1-00001-of-00002.gguf"), "m.Q4_1");
  EXPECT_EQ(GgufStem("m.gguf"), "m");
  for (const char* other : {"m", "m-00001-of-00002", "folder"}) EXPECT_EQ(GgufStem(other), other);
}

TEST_F(GgufShardsTest, AnotherThanTheFirstIsRefused) {
  EXPECT_THAT(ErrorOf(Path(2)), HasSubstr("file 2 of a model in 3; give the first"));
  const auto text = OpenModelText(Path(2), nullptr);
  EXPECT_THAT(std::string(text.status().message()), HasSubstr("00001-of-00003.gguf"));
  std::filesystem::rename(Path(1), folder_ + "/renamed.gguf");
  EXPECT_THAT(ErrorOf(folder_ + "/renamed.gguf"),
              HasSubstr("its name must end in -00001-of-00003"));
}

TEST_F(GgufShardsTest, MissingOrMixedUpFilesAreNamed) {
  std::filesystem::rename(Path(3), Path(3) + ".away");
  EXPECT_THAT(ErrorOf(Path(1)), HasSubstr("m-00003-of-00003.gguf"));
  std::filesystem::copy(Path(2), Path(3));
  EXPECT_THAT(ErrorOf(Path(1)), HasSubstr("says that it is file 2 of 3, not 3 of 3"));
  std::filesystem::remove(Path(3));
  WriteShard(3, 2, 4);
  EXPECT_THAT(ErrorOf(Path(1)), HasSubstr("says that it is file 3 of 4"));
  std::filesystem::remove(Path(3));
  WriteShard(3, 2, 3);
  EXPECT_THAT(ErrorOf(Path(1)), HasSubstr("tensors but"));
  std::filesystem::remove(Path(3));
  WriteShard(3, 7, 3);
  EXPECT_THAT(ErrorOf(Path(1)), HasSubstr("split.no is 7"));
}

TEST_F(GgufShardsTest, ATensorInTwoFilesIsRefused) {
  GgufBuilder builder;
  builder.AddUint32("split.no", 2);
  builder.AddUint32("split.count", 3);
  builder.AddMatrix("output_norm.weight", 0, 32, DType::kF32, std::vector<float>(32, 1.0f));
  builder.AddMatrix("token_embd.weight", 0, 32, DType::kF32, std::vector<float>(32, 1.0f));
  WriteBytes(Path(3), builder.Build());
  EXPECT_THAT(ErrorOf(Path(1)), HasSubstr("is in a file before it, too"));
}

TEST_F(GgufShardsTest, AFileSaysItIsTheOnlyOne) {
  for (const uint32_t count : {0u, 1u}) {
    GgufBuilder builder = testing::TinyLlama({});
    builder.AddUint32("split.count", count);
    WriteBytes(folder_ + "/one.gguf", builder.Build());
    EXPECT_EQ(ErrorOf(folder_ + "/one.gguf"), "opened");
  }
}

}  // namespace
}  // namespace flotilla
