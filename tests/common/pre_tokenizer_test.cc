// How each rule of the table cuts text, by examples small enough to check by eye; the live test
// compares with the tokenizers library.
#include "common/text/pre_tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <string>
#include <utility>
#include <vector>

#include "common/text/pre_tokenizer_table.h"

namespace flotilla {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::vector<std::string> SplitBy(std::span<const SplitStage> stages, std::string_view text) {
  const StatusOr<PreTokenizer> pre_tokenizer = PreTokenizer::Create(stages);
  EXPECT_TRUE(pre_tokenizer.ok()) << pre_tokenizer.status();
  std::vector<std::string_view> pieces;
  EXPECT_TRUE(pre_tokenizer.ok() && pre_tokenizer->Split(text, &pieces).ok());
  return {pieces.begin(), pieces.end()};
}

std::vector<std::string> SplitBy(std::string_view name, std::string_view text) {
  const PreTokenizerRow* row = FindPreTokenizer(name);
  EXPECT_NE(row, nullptr) << name;
  return SplitBy(row->used_stages(), text);
}

TEST(PreTokenizerTest, Gpt2) {
  EXPECT_THAT(SplitBy("gpt-2", "I'll go  to\n\n x2024 !?  "),
              ElementsAre("I", "'ll", " go", " ", " to", "\n\n", " x", "2024", " !?", "  "));
}

TEST(PreTokenizerTest, SmollmCutsEachDigitFirst) {
  EXPECT_THAT(SplitBy("smollm", "a   12b ٣½"),
              ElementsAre("a", "   ", "1", "2", "b", " ", "٣", "½"));
  EXPECT_THAT(SplitBy("smollm", "a   b"), ElementsAre("a", "  ", " b"));
}

TEST(PreTokenizerTest, Llama3) {
  EXPECT_THAT(SplitBy("llama-bpe", "I'LL (go) 12345\n\n'ſ  x"),
              ElementsAre("I", "'LL", " (", "go", ")", " ", "123", "45", "\n\n", "'ſ", " ", " x"));
}

TEST(PreTokenizerTest, Qwen) {
  EXPECT_THAT(SplitBy("qwen2", "x12  e\u0301a!\n"),
              ElementsAre("x", "1", "2", " ", " e", "\u0301a", "!\n"));
  EXPECT_THAT(SplitBy("qwen35", "x12  e\u0301a!\n"),
              ElementsAre("x", "1", "2", " ", " e\u0301a", "!\n"));
}

TEST(PreTokenizerTest, WordsEndBeforeACapital) {
  EXPECT_THAT(SplitBy("gpt-4o", "HTTPServer'sName a/b//\n1234"),
              ElementsAre("HTTPServer's", "Name", " a", "/b", "//\n", "123", "4"));
  EXPECT_THAT(SplitBy("tekken", "aHTTPServer's 12"),
              ElementsAre("a", "HTTPServer", "'s", " ", "1", "2"));
}

TEST(PreTokenizerTest, Deepseek) {
  EXPECT_THAT(SplitBy("deepseek-llm", "a b\n, 12中文 한  "),
              ElementsAre("a", " b", "\n", ",", " ", "1", "2", "中文", " ", "한", "  "));
  EXPECT_THAT(SplitBy("deepseek-coder", "if(x)\n"), ElementsAre("if", "(", "x", ")", "\n"));
  EXPECT_THAT(SplitBy("deepseek-v3", "x.append 1234中"),
              ElementsAre("x", ".append", " ", "123", "4", "中"));
}

TEST(PreTokenizerTest, FalconCutsWithinCharacters) {
  EXPECT_THAT(SplitBy("falcon", "a, 12345"), ElementsAre("a", ",", " ", "123", "45"));
  // ½ is C2 BD, and the byte-level character for BD is a number.
  EXPECT_THAT(SplitBy("falcon", "½"), ElementsAre("\xc2", "\xbd"));
}

TEST(PreTokenizerTest, ComponentsOfATokenizerJson) {
  const auto split = [](SplitStage stage, std::string_view text) {
    return SplitBy(std::span(&stage, 1), text);
  };
  EXPECT_THAT(split({.pattern = kWordsAfterSpace}, "a  bc "), ElementsAre("a ", " ", "bc "));
  EXPECT_THAT(split({.pattern = kMetaspaceWords}, "a▁▁bc"), ElementsAre("a", "▁", "▁bc"));
  EXPECT_THAT(split({.pattern = kPunctuation}, "a,$b"), ElementsAre("a", ",", "$", "b"));
  EXPECT_THAT(split({.pattern = kPunctuations}, "a,$b"), ElementsAre("a", ",$", "b"));
  EXPECT_THAT(split({.pattern = kDigits}, "a12b"), ElementsAre("a", "12", "b"));
  EXPECT_THAT(split({.pattern = kDigit, .drop_gaps = true}, "a12b"), ElementsAre("1", "2"));
  EXPECT_THAT(SplitBy(std::span<const SplitStage>(), "a b"), ElementsAre("a b"));
}

TEST(PreTokenizerTest, TheTableKnowsItsNames) {
  EXPECT_EQ(FindPreTokenizer("viking"), nullptr);
  EXPECT_EQ(FindPreTokenizer(""), nullptr);
  EXPECT_THAT(KnownPreTokenizers(), HasSubstr("falcon, glm4, gpt-2, gpt-4o, llama-bpe"));
  EXPECT_EQ(FindSplitPattern(kGpt2Words), kGpt2Words);
  EXPECT_EQ(FindSplitPattern("\\s+$"), "(?<!\\s)\\s++\\z");
  EXPECT_TRUE(FindSplitPattern("(a+)+$").empty());
  EXPECT_TRUE(FindSplitPattern("").empty());
}

TEST(PreTokenizerTest, NoPieceIsLostOrEmpty) {
  std::mt19937 random(23);
  const std::vector<std::string> parts = {
      " ", "  ", "\n", "\t",      "a", "Z",  "é",      "'s",     "'",  "1",
      "٣", "!",  "日", "😀",       "Ⅻ", "\r", "\u180e", "\u00a0", "\v", "-",
      "½", "한", "/n", "e\u0301", "$", "ſ",  "▁",      "\u2028", "м"};
  for (int round = 0; round < 300; ++round) {
    std::string text;
    for (uint32_t n = random() % 30; n > 0; --n) text += parts[random() % parts.size()];
    for (std::string_view name :
         {"command-r", "deepseek-coder", "deepseek-llm", "deepseek-v3", "falcon", "gpt-2", "gpt-4o",
          "llama-bpe", "qwen2", "qwen35", "smollm", "tekken"}) {
      std::string joined;
      for (const std::string& piece : SplitBy(name, text)) {
        ASSERT_TRUE(text.empty() || !piece.empty()) << name;
        joined += piece;
      }
      ASSERT_EQ(joined, text) << name;
    }
  }
}

// One match over a long run must not need PCRE2's stack, which holds some thousand steps.
TEST(PreTokenizerTest, ALongRunIsNotTooHard) {
  std::vector<std::pair<std::string, std::vector<SplitStage>>> rules;
  for (std::string_view name : {"command-r", "deepseek-coder", "deepseek-llm", "deepseek-v3",
                                "falcon", "gpt-4o", "llama-bpe", "qwen35", "tekken"}) {
    const auto stages = FindPreTokenizer(name)->used_stages();
    rules.push_back({std::string(name), {stages.begin(), stages.end()}});
  }
  for (std::string_view pattern :
       {kDigits, kPunctuation, kPunctuations, kWordsAfterSpace, kMetaspaceWords})
    rules.push_back({std::string(pattern), {{.pattern = pattern}}});
  std::vector<std::string_view> pieces;
  for (const auto& [name, stages] : rules) {
    const StatusOr<PreTokenizer> pre_tokenizer = PreTokenizer::Create(stages);
    ASSERT_TRUE(pre_tokenizer.ok()) << pre_tokenizer.status();
    for (const std::string part :
         {"a",    "A", "Aa",      "!",      "$",  "「", "1",  "½", " ", "\n", " \n",
          "\r\n", "é", "e\u0301", "\u0301", "日", "한", "'s", "ǅ", "😀", "▁"}) {
      std::string text;
      while (text.size() < 20'000) text += part;
      pieces.clear();
      const Status status = pre_tokenizer->Split(text, &pieces);
      EXPECT_TRUE(status.ok()) << name << ", '" << part << "': " << status;
    }
  }
}

TEST(PreTokenizerTest, SaysWhenATextIsTooHard) {
  // Not of the table: its time is exponential.
  const SplitStage stage = {.pattern = R"((?:\s*a|\s*[ab])*c)"};
  const StatusOr<PreTokenizer> pre_tokenizer = PreTokenizer::Create(std::span(&stage, 1));
  ASSERT_TRUE(pre_tokenizer.ok()) << pre_tokenizer.status();
  std::vector<std::string_view> pieces;
  const Status status = pre_tokenizer->Split(std::string(200, 'a') + "dc", &pieces);
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(status.message()), HasSubstr("too hard to cut into words, at byte 0"));
}

}  // namespace
}  // namespace flotilla
