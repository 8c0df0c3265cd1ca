// The real vocabulary: golden ids and text, round trips of random text, and a megabyte at once.
#include "common/text/tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <boost/json.hpp>
#include <cstdlib>
#include <ctime>
#include <fstream>
#include <iostream>
#include <random>
#include <sstream>

#include "common/base/utf8.h"
#include "common/text/incremental_detokenizer.h"

namespace flotilla {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class TokenizerTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    const char* path = std::getenv("FLOTILLA_TEST_MODEL");
    ASSERT_NE(path, nullptr) << "FLOTILLA_TEST_MODEL is not set: run `./flotilla test`, which "
                                "fetches the default model, or set it to a .gguf file";
    StatusOr<MappedFile> file = MappedFile::Open(path);
    ASSERT_TRUE(file.ok()) << file.status();
    StatusOr<GgufFile> whole = GgufFile::Parse(file->bytes(), {});
    ASSERT_TRUE(whole.ok()) << whole.status();
    // As a router has it: only the head of the file, gone once the tokenizer is there.
    const auto head = file->bytes().first(whole->header_bytes());
    const std::vector<uint8_t> copy(head.begin(), head.end());
    StatusOr<GgufFile> gguf = GgufFile::Parse(copy, {.metadata_only = true});
    ASSERT_TRUE(gguf.ok()) << gguf.status();
    StatusOr<std::unique_ptr<Tokenizer>> tokenizer = CreateTokenizer(*gguf);
    ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
    tokenizer_ = tokenizer->release();
  }
  static void TearDownTestSuite() { delete std::exchange(tokenizer_, nullptr); }
  void SetUp() override { ASSERT_NE(tokenizer_, nullptr); }

  static std::vector<TokenId> Encode(std::string_view text) {
    StatusOr<std::vector<TokenId>> ids = tokenizer_->Encode(text);
    EXPECT_TRUE(ids.ok()) << ids.status();
    return ids.ok() ? *ids : std::vector<TokenId>();
  }

  static inline const Tokenizer* tokenizer_ = nullptr;
};

boost::json::object Golden() {
  std::ifstream file(FLOTILLA_TOKENIZER_GOLDEN);
  std::stringstream text;
  text << file.rdbuf();
  return boost::json::parse(text.str()).as_object();
}

std::vector<TokenId> IdsOf(const boost::json::value& row) {
  std::vector<TokenId> ids;
  for (const boost::json::value& id : row.at("ids").as_array())
    ids.push_back(static_cast<TokenId>(id.as_int64()));
  return ids;
}

TEST_F(TokenizerTest, EqualsTheTokenizersLibrary) {
  const boost::json::object golden = Golden();
  ASSERT_GE(golden.at("encode").as_array().size(), 300u);
  for (const boost::json::value& row : golden.at("encode").as_array()) {
    const std::string text(row.at("text").as_string());
    ASSERT_EQ(Encode(text), IdsOf(row)) << text;
  }
  ASSERT_GE(golden.at("decode").as_array().size(), 100u);
  for (const boost::json::value& row : golden.at("decode").as_array()) {
    const std::vector<TokenId> ids = IdsOf(row);
    ASSERT_EQ(tokenizer_->Decode(ids, false), std::string(row.at("text").as_string()));
  }
}

TEST_F(TokenizerTest, KnowsTheModelsSpecialTokens) {
  EXPECT_EQ(tokenizer_->vocab_size(), 49152u);
  EXPECT_EQ(tokenizer_->bos_id(), 1);
  EXPECT_THAT(tokenizer_->eos_ids(), ElementsAre(0, 2));  // <|endoftext|>, <|im_end|>
  EXPECT_TRUE(tokenizer_->IsSpecial(2));
  EXPECT_FALSE(tokenizer_->IsSpecial(100));
  EXPECT_FALSE(tokenizer_->IsSpecial(-1));
  EXPECT_EQ(tokenizer_->TokenBytes(2), "<|im_end|>");
  EXPECT_EQ(tokenizer_->TokenBytes(-1), "");
  EXPECT_EQ(tokenizer_->TokenBytes(49152), "");
  EXPECT_THAT(Encode("<|im_start|><|im_end|>"), ElementsAre(1, 2));
  const auto plain = tokenizer_->Encode("<|im_end|>", {.parse_special = false});
  ASSERT_TRUE(plain.ok());
  EXPECT_GT(plain->size(), 1u);
  EXPECT_EQ(tokenizer_->Decode(*plain, true), "<|im_end|>");
  EXPECT_EQ(tokenizer_->Decode(std::vector<TokenId>{1, 2}, true), "");
}

TEST_F(TokenizerTest, RefusesInvalidUtf8WithTheOffset) {
  const auto ids = tokenizer_->Encode("ok \xc3\xa9 \xf0\x9f\x98");
  ASSERT_FALSE(ids.ok());
  EXPECT_EQ(ids.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(ids.status().message()), HasSubstr("byte 0xF0 at offset 6"));
}

// Any code point whose bytes all have tokens in this vocabulary.
char32_t RandomCodePoint(std::mt19937* random) {
  constexpr char32_t kEnds[] = {0x80, 0x800, 0x10000, 0x40000};
  while (true) {
    const uint32_t kind = (*random)() % 4;
    const char32_t c = kind == 0 ? (*random)() % 0x80 : (*random)() % kEnds[kind];
    const bool no_token = c == 4 || c == 6 || c == 0x13 || c == 0x14 || c == 0x16 || c == 0x1d;
    if (!no_token && !(c >= 0xd800 && c < 0xe000)) return c;
  }
}

TEST_F(TokenizerTest, EveryTextComesBackWholeAndInPieces) {
  std::mt19937 random(29);
  for (int round = 0; round < 4000; ++round) {
    std::string text;
    for (uint32_t n = random() % 60; n > 0; --n) {
      if (random() % 16 == 0) text.append("<|im_end|>");
      AppendUtf8(random() % 3 == 0 ? U' ' : RandomCodePoint(&random), &text);
    }
    const std::vector<TokenId> ids = Encode(text);
    ASSERT_EQ(tokenizer_->Decode(ids, false), text);
    IncrementalDetokenizer detokenizer(tokenizer_, false);
    std::string joined;
    for (TokenId id : ids) {
      const std::string piece = detokenizer.Push(id);
      ASSERT_EQ(FindInvalidUtf8(piece), std::nullopt);
      joined += piece;
    }
    ASSERT_EQ(joined + detokenizer.Finish(), text);
  }
}

TEST_F(TokenizerTest, RandomIdsDecodeTheSameInPieces) {
  std::mt19937 random(31);
  for (int round = 0; round < 4000; ++round) {
    std::vector<TokenId> ids(random() % 50);
    // Low ids are special tokens and single bytes: most invalid sequences come from them.
    for (TokenId& id : ids) id = static_cast<TokenId>(random() % (random() % 2 ? 300 : 49152));
    for (bool skip_special : {false, true}) {
      IncrementalDetokenizer detokenizer(tokenizer_, skip_special);
      std::string joined;
      for (TokenId id : ids) joined += detokenizer.Push(id);
      ASSERT_EQ(joined + detokenizer.Finish(), tokenizer_->Decode(ids, skip_special));
    }
  }
}

// Of this thread's CPU time, so that other work on the machine does not count.
double CpuSeconds() {
  timespec now;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

double SecondsToEncode(const Tokenizer& tokenizer, const std::string& text) {
  const double start = CpuSeconds();
  const auto ids = tokenizer.Encode(text);
  const double seconds = CpuSeconds() - start;
  EXPECT_TRUE(ids.ok());
  if (ids.ok()) {
    EXPECT_EQ(tokenizer.Decode(*ids, false), text);
  }
  return seconds;
}

TEST_F(TokenizerTest, AMegabyteWithoutABoundaryIsNearlyLinear) {
  for (const std::string unit : {"a", " ", "!", "é", "ab", "日", "\n", "'", "<|im_end", "1"}) {
    std::string small, large;
    while (small.size() < (64u << 10)) small += unit;
    while (large.size() < (1u << 20)) large += unit;
    SecondsToEncode(*tokenizer_, small);  // pages and caches warm
    const double once = SecondsToEncode(*tokenizer_, small);
    const double whole = SecondsToEncode(*tokenizer_, large);
    // 16 times the text: n log n gives about 21 times the time, n² gives 256.
    EXPECT_LT(whole, 100 * once + 1) << unit;
    std::cout << unit << ": 1 MiB in " << whole << " s\n";
  }
}

}  // namespace
}  // namespace flotilla
