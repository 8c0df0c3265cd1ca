// Tokenizer and chat template of a model folder and of a GGUF, from the files and from the bytes
// that routers fetch.
#include "common/text/model_text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <boost/json.hpp>
#include <filesystem>
#include <string>

#include "common/base/check.h"
#include "common/base/utf8.h"
#include "common/text/byte_level.h"
#include "tests/fakes/gguf_builder.h"
#include "tests/support/temp_folder.h"

namespace flotilla {
namespace {

namespace json = boost::json;
using ::flotilla::testing::WriteBytes;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// 256 bytes, then <|begin|> and <|fin|>.
std::string TokenizerJson() {
  json::object vocab;
  for (int b = 0; b < 256; ++b) {
    std::string written;
    AppendUtf8(ByteLevelCharacter(static_cast<uint8_t>(b)), &written);
    vocab[written] = b;
  }
  json::value file = json::parse(R"({
    "added_tokens": [{"id": 256, "content": "<|begin|>", "special": true},
                     {"id": 257, "content": "<|fin|>", "special": true}],
    "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false},
    "decoder": {"type": "ByteLevel"},
    "model": {"type": "BPE", "merges": []}})");
  file.as_object()["model"].as_object()["vocab"] = vocab;
  return json::serialize(file);
}

class ModelTextTest : public ::testing::Test {
 protected:
  void SetUp() override { Write("tokenizer.json", TokenizerJson()); }
  void Write(const std::string& name, const std::string& bytes) {
    WriteBytes(folder_ + "/" + name, bytes);
  }
  // As the files give it; what routers make of its bytes must be the same.
  ModelText Open() {
    std::string bytes;
    StatusOr<ModelText> text = OpenModelText(folder_, &bytes);
    EXPECT_TRUE(text.ok()) << text.status();
    const StatusOr<ModelText> routers = ParseModelText(bytes);
    EXPECT_TRUE(routers.ok()) << routers.status();
    if (!text.ok() || !routers.ok()) return {};
    EXPECT_EQ(routers->tokenizer->eos_ids(), text->tokenizer->eos_ids());
    EXPECT_EQ(*routers->tokenizer->Encode("a<|fin|>"), *text->tokenizer->Encode("a<|fin|>"));
    EXPECT_EQ(routers->chat_format.status(), text->chat_format.status());
    if (text->chat_format.ok()) {
      EXPECT_EQ(Render(*routers), Render(*text));
    }
    return *std::move(text);
  }
  static std::string Render(const ModelText& text) {
    ChatTemplateInput input;
    return *text.chat_format->Render(input);
  }
  std::string ErrorOf() {
    const StatusOr<ModelText> text = OpenModelText(folder_, nullptr);
    return text.ok() ? "opened" : std::string(text.status().message());
  }

  const testing::TempFolder temp_;
  const std::string& folder_ = temp_.path();
};

TEST_F(ModelTextTest, ATokenizerJsonAloneIsEnough) {
  const ModelText text = Open();
  EXPECT_THAT(*text.tokenizer->Encode("a<|fin|>"), ElementsAre('a', 257));
  EXPECT_THAT(text.tokenizer->eos_ids(), ElementsAre());
  EXPECT_EQ(text.chat_format.status().code(), absl::StatusCode::kNotFound);
}

TEST_F(ModelTextTest, GenerationConfigSaysWhatEndsAText) {
  Write("generation_config.json", R"({"eos_token_id": 257, "temperature": 0.6})");
  EXPECT_THAT(Open().tokenizer->eos_ids(), ElementsAre(257));
  Write("generation_config.json", R"({"eos_token_id": [257, 3]})");
  EXPECT_THAT(Open().tokenizer->eos_ids(), ElementsAre(3, 257));
  for (const char* wrong : {"258", "-1", "\"a\"", "[1, null]", "1e3"}) {
    Write("generation_config.json", StrCat("{\"eos_token_id\": ", wrong, "}"));
    EXPECT_NE(ErrorOf(), "opened") << wrong;
  }
  Write("generation_config.json", "{");
  EXPECT_THAT(ErrorOf(), HasSubstr("generation_config.json"));
}

TEST_F(ModelTextTest, GenerationConfigRecommendsSampling) {
  EXPECT_FALSE(Open().sampling.any());
  Write("generation_config.json", R"({"do_sample": true, "temperature": 0.6, "top_p": 0.95,
      "top_k": 20, "min_p": 0, "repetition_penalty": 1.05, "typical_p": 0.9})");
  const SamplingDefaults all = Open().sampling;
  EXPECT_EQ(all.temperature, 0.6f);
  EXPECT_EQ(all.top_p, 0.95f);
  EXPECT_EQ(all.top_k, 20);
  EXPECT_EQ(all.min_p, 0.0f);
  EXPECT_EQ(all.repetition_penalty, 1.05f);
  EXPECT_THAT(all.left_out, ElementsAre());
  Write(
      "generation_config.json",
      R"({"temperature": null, "top_p": 0, "top_k": 2.5, "min_p": "a", "repetition_penalty": 3})");
  const SamplingDefaults wrong = Open().sampling;
  EXPECT_EQ(wrong.temperature, std::nullopt);
  EXPECT_EQ(wrong.top_p, std::nullopt);
  EXPECT_EQ(wrong.top_k, std::nullopt);
  EXPECT_THAT(wrong.left_out, ElementsAre("top_p", "min_p", "repetition_penalty", "top_k"));
}

TEST_F(ModelTextTest, AGgufRecommendsSamplingByItsKeys) {
  testing::GgufBuilder builder;
  builder.AddFloat32("general.sampling.temp", 0.7f);
  builder.AddUint32("general.sampling.top_k", 40);
  builder.AddFloat32("general.sampling.top_p", 1.5f);
  builder.AddFloat32("general.sampling.penalty_repeat", 1.1f);
  builder.AddString("general.sampling.sequence", "kpt");
  const std::string bytes = builder.Build();
  const auto* data = reinterpret_cast<const uint8_t*>(bytes.data());
  const auto gguf = GgufFile::Parse({data, bytes.size()}, {.metadata_only = true});
  ASSERT_TRUE(gguf.ok()) << gguf.status();
  const SamplingDefaults defaults = SamplingDefaultsOf(*gguf);
  EXPECT_EQ(defaults.temperature, 0.7f);
  EXPECT_EQ(defaults.top_k, 40);
  EXPECT_EQ(defaults.repetition_penalty, 1.1f);
  EXPECT_EQ(defaults.min_p, std::nullopt);
  EXPECT_THAT(defaults.left_out, ElementsAre("top_p"));
}

TEST_F(ModelTextTest, WithoutOneTheTokenizersEosTokenDoes) {
  Write("tokenizer_config.json", R"({"eos_token": {"content": "<|fin|>"}})");
  EXPECT_THAT(Open().tokenizer->eos_ids(), ElementsAre(257));
  Write("generation_config.json", R"({"temperature": 0.6})");
  EXPECT_THAT(Open().tokenizer->eos_ids(), ElementsAre(257));
  Write("generation_config.json", R"({"eos_token_id": 256})");
  EXPECT_THAT(Open().tokenizer->eos_ids(), ElementsAre(256));
  std::filesystem::remove(folder_ + "/generation_config.json");
  for (const char* other : {R"({"eos_token": "a"})", R"({"eos_token": null})", "{", "{}"}) {
    Write("tokenizer_config.json", other);
    EXPECT_THAT(Open().tokenizer->eos_ids(), ElementsAre()) << other;  // "a" is no control token
  }
}

TEST_F(ModelTextTest, TheChatTemplateLiesInEitherFile) {
  Write("tokenizer_config.json", R"({"bos_token": "<|begin|>",
    "eos_token": {"content": "<|fin|>", "special": true},
    "chat_template": "{{ bos_token }}old{{ eos_token }}"})");
  EXPECT_EQ(Render(Open()), "<|begin|>old<|fin|>");
  Write("chat_template.jinja", "{{ bos_token }}new");
  EXPECT_EQ(Render(Open()), "<|begin|>new");
  std::filesystem::remove(folder_ + "/chat_template.jinja");
  Write("tokenizer_config.json", R"({"chat_template": [
    {"name": "tool_use", "template": "tools"}, {"name": "default", "template": "plain"}]})");
  EXPECT_EQ(Render(Open()), "plain");
  ChatTemplateInput with_tools;
  with_tools.tools = boost::json::array();
  EXPECT_EQ(*Open().chat_format->Render(with_tools), "tools");
  EXPECT_EQ(Open().chat_format->tool_use_source(), "tools");
  Write("chat_template.jinja", "");  // as if it were not there
  EXPECT_EQ(Render(Open()), "plain");
  Write("tokenizer_config.json", R"({"chat_template": [{"name": "rag", "template": "x"}]})");
  EXPECT_THAT(std::string(Open().chat_format.status().message()), HasSubstr("named 'default'"));
  Write("tokenizer_config.json", R"({"chat_template": "{% if"})");
  EXPECT_FALSE(Open().chat_format.ok());
}

TEST_F(ModelTextTest, WrongFilesAreNamed) {
  std::filesystem::remove(folder_ + "/tokenizer.json");
  EXPECT_THAT(ErrorOf(), HasSubstr("tokenizer.json"));
  Write("tokenizer.json", "{}");
  EXPECT_THAT(ErrorOf(), HasSubstr("tokenizer.json"));
  EXPECT_THAT(ErrorOf(), HasSubstr(folder_));
}

TEST_F(ModelTextTest, DamagedBundlesAreRefused) {
  std::string bytes;
  ASSERT_TRUE(OpenModelText(folder_, &bytes).ok());
  for (size_t size : {size_t{0}, size_t{7}, size_t{9}, bytes.size() / 2, bytes.size() - 1}) {
    EXPECT_FALSE(ParseModelText(bytes.substr(0, size)).ok()) << size;
  }
  EXPECT_FALSE(ParseModelText(bytes + "x").ok());
}

TEST_F(ModelTextTest, AGgufsHeadIsEnoughForRouters) {
  testing::WriteTinyLlama(folder_ + "/m.gguf");
  std::string bytes;
  const StatusOr<ModelText> text = OpenModelText(folder_ + "/m.gguf", &bytes);
  ASSERT_TRUE(text.ok()) << text.status();
  EXPECT_LT(bytes.size(), std::filesystem::file_size(folder_ + "/m.gguf") / 2);
  const StatusOr<ModelText> routers = ParseModelText(bytes);
  ASSERT_TRUE(routers.ok()) << routers.status();
  EXPECT_EQ(*routers->tokenizer->Encode("hello world"), *text->tokenizer->Encode("hello world"));
  EXPECT_TRUE(routers->chat_format.ok());
}

// For a model with one of its own, in a folder or a GGUF, and for one that has none.
TEST_F(ModelTextTest, AnotherTemplateHasTheModelsSpecialTokens) {
  Write("given.jinja", "{{ bos_token }}given{{ eos_token }}");
  const auto given = [this](const std::string& model) {
    std::string bytes;
    StatusOr<ModelText> text = OpenModelText(model, &bytes);
    CHECK_OK(text.status());
    CHECK_OK(UseChatTemplate(folder_ + "/given.jinja", &*text, &bytes));
    const StatusOr<ModelText> routers = ParseModelText(bytes);
    CHECK_OK(routers.status());
    EXPECT_EQ(Render(*routers), Render(*text));
    EXPECT_EQ(routers->chat_format->tool_use_source(), "{{ bos_token }}given{{ eos_token }}");
    EXPECT_EQ(routers->tokenizer->eos_ids(), text->tokenizer->eos_ids());
    return Render(*text);
  };
  Write("generation_config.json", R"({"eos_token_id": 257})");
  EXPECT_EQ(given(folder_), "given<|fin|>");
  Write("tokenizer_config.json", R"({"bos_token": "<|begin|>", "chat_template": [
    {"name": "tool_use", "template": "tools"}, {"name": "default", "template": "plain"}]})");
  EXPECT_EQ(given(folder_), "<|begin|>given");
  testing::WriteTinyLlama(folder_ + "/tiny.gguf");
  EXPECT_EQ(given(folder_ + "/tiny.gguf"), "<|im_start|>given<|im_end|>");
}

TEST_F(ModelTextTest, ATemplateThatIsWrongIsRefusedByItsName) {
  std::string bytes;
  StatusOr<ModelText> text = OpenModelText(folder_, &bytes);
  ASSERT_TRUE(text.ok());
  const std::string before = bytes;
  EXPECT_TRUE(absl::IsNotFound(UseChatTemplate(folder_ + "/none.jinja", &*text, &bytes)));
  Write("wrong.jinja", "{% if %}");
  const Status wrong = UseChatTemplate(folder_ + "/wrong.jinja", &*text, &bytes);
  EXPECT_TRUE(absl::IsInvalidArgument(wrong)) << wrong;
  EXPECT_THAT(std::string(wrong.message()), HasSubstr("wrong.jinja"));
  Write("long.jinja", std::string((1 << 20) + 1, 'x'));
  EXPECT_THAT(std::string(UseChatTemplate(folder_ + "/long.jinja", &*text, &bytes).message()),
              HasSubstr("more than 1048576 bytes"));
  EXPECT_EQ(bytes, before);
  EXPECT_TRUE(absl::IsNotFound(text->chat_format.status()));
  Write("right.jinja", "x");
  ASSERT_TRUE(UseChatTemplate(folder_ + "/right.jinja", &*text, &bytes).ok());
  for (size_t length = 0; length < bytes.size(); length += 7) {
    EXPECT_FALSE(ParseModelText(bytes.substr(0, length)).ok()) << length;
  }
}

}  // namespace
}  // namespace flotilla
