#include "deploy/launcher/model.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

namespace flotilla {
namespace {

using testing::HasSubstr;

TEST(ModelTest, NamesComeFromTheFile) {
  EXPECT_EQ(ModelNameOfPath("/m/SmolLM2-135M-Instruct.Q4_1.gguf"), "SmolLM2-135M-Instruct");
  EXPECT_EQ(ModelNameOfPath("Qwen2.5-0.5B-Q8_0.gguf"), "Qwen2.5-0.5B");
  EXPECT_EQ(ModelNameOfPath("SmolLM2-135M.gguf"), "SmolLM2-135M");
  EXPECT_EQ(ModelNameOfPath("model-F16.gguf"), "model");
  EXPECT_EQ(ModelNameOfPath("plain"), "plain");
  EXPECT_EQ(ModelNameOfPath("/m/Qwen3-8B-Q4_K_M-00001-of-00003.gguf"), "Qwen3-8B");
  EXPECT_EQ(ModelNameOfPath("/m/Qwen2.5-0.5B/"), "Qwen2.5-0.5B");
  EXPECT_EQ(ModelNameOfPath("/m/Qwen3-0.6B"), "Qwen3-0.6B");
}

TEST(ModelTest, TpIsAtMostTheQueryHeads) {
  EXPECT_EQ(ResolveTp("9", 9).value(), 9u);
  EXPECT_THAT(std::string(ResolveTp("10", 9).status().message()), HasSubstr("--tp"));
  EXPECT_THAT(std::string(ResolveTp("0", 9).status().message()), HasSubstr("--tp"));
}

TEST(ModelTest, ReadsTheDefaultModelsHeader) {
  const char* path = std::getenv("FLOTILLA_TEST_MODEL");
  ASSERT_NE(path, nullptr) << "FLOTILLA_TEST_MODEL is not set; ./flotilla test sets it";
  const auto config = InspectModel(path);
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->num_key_value_heads, 3u);
}

TEST(ModelTest, RefusesForeignAndTruncatedFiles) {
  const char* path = std::getenv("FLOTILLA_TEST_MODEL");
  ASSERT_NE(path, nullptr) << "FLOTILLA_TEST_MODEL is not set; ./flotilla test sets it";
  const std::string foreign = testing::TempDir() + "/foreign" + std::to_string(getpid()) + ".gguf";
  std::ofstream(foreign) << "not a model at all, but long enough to have a header";
  EXPECT_FALSE(InspectModel(foreign).ok());
  const std::string truncated =
      testing::TempDir() + "/truncated" + std::to_string(getpid()) + ".gguf";
  std::string head(1 << 20, '\0');
  std::ifstream(path).read(head.data(), static_cast<std::streamsize>(head.size()));
  std::ofstream(truncated) << head;
  EXPECT_FALSE(InspectModel(truncated).ok());
  std::filesystem::remove(foreign);
  std::filesystem::remove(truncated);
}

TEST(ModelTest, AFolderWithAConfigIsAModel) {
  const std::string folder = testing::TempDir() + "/model_test_folder" + std::to_string(getpid());
  std::filesystem::create_directory(folder);
  EXPECT_FALSE(ResolveModelPath(folder).ok());
  std::ofstream(folder + "/config.json") << "{}";
  EXPECT_EQ(ResolveModelPath(folder + "/").value(), folder + "/");
  EXPECT_THAT(std::string(InspectModel(folder).status().message()), HasSubstr("config.json"));
  std::filesystem::remove_all(folder);
}

TEST(ModelTest, MissingFilesAndDirectoriesAreNamed) {
  EXPECT_THAT(std::string(ResolveModelPath("/none.gguf").status().message()),
              HasSubstr("no file or folder '/none.gguf'"));
  EXPECT_THAT(std::string(ResolveModelPath("/tmp").status().message()),
              HasSubstr("neither a .gguf file nor a folder with a config.json"));
}

}  // namespace
}  // namespace flotilla
